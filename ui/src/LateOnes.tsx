import { Link } from "react-router-dom";

import { useNow } from "./clock";
import type { TopologySummary } from "./model";
import { search } from "./place";
import { lateSaid, worstFirst } from "./words";

const SHOWN = 3;

interface Props {
  deployment: string;
  topology: TopologySummary;
  shown?: number;
  /** Where the page is, if not here. */
  pathname?: string;
}

/** Who is late, the worst first, in a sentence each that leads to its barrier; then the sinks that nothing comes to. */
export function LateOnes({ deployment, topology: { topology, late, failing }, shown = SHOWN, pathname }: Props) {
  const now = useNow();
  const more = late.length - shown;
  const to = (place: { barrier?: string; view?: string }) => ({
    ...(pathname && { pathname }),
    search: search({ deployment, topology, ...place }),
  });
  return (
    <ul className="warn plain">
      {worstFirst(late)
        .slice(0, shown)
        .map((each) => (
          <li key={`${each.barrier_id} ${each.job} ${each.dag}`} title={each.tables.join(", ")}>
            {each.barrier_id === null ? (
              lateSaid(each, now)
            ) : (
              <Link to={to({ barrier: String(each.barrier_id) })}>{lateSaid(each, now)}</Link>
            )}
          </li>
        ))}
      {more > 0 && <li>And {more} more.</li>}
      {failing.length > 0 && (
        <li>
          <Link to={to({ view: "deliveries" })}>
            The last delivery to {failing.slice(0, shown).join(", ")}
            {failing.length > shown && ` and ${failing.length - shown} more`} failed.
          </Link>
        </li>
      )}
    </ul>
  );
}
