import { Link } from "react-router-dom";

import { search } from "./place";

export const VIEWS: [view: string | null, words: string][] = [
  [null, "Barriers"],
  ["graph", "Graph"],
  ["delay", "Delay"],
  ["revisions", "Revisions"],
  ["readers", "Readers"],
  ["sources", "Sources"],
  ["deliveries", "Deliveries"],
];

/** What there is to see of a topology. */
export function Tabs({ deployment, topology, view }: { deployment: string; topology: string; view: string | null }) {
  return (
    <nav className="tabs" aria-label="Of this topology">
      {VIEWS.map(([each, words]) => (
        <Link
          key={words}
          to={{ search: search({ deployment, topology, view: each }) }}
          aria-current={each === view ? "page" : undefined}
        >
          {words}
        </Link>
      ))}
    </nav>
  );
}
