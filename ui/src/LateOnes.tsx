import { Link } from "react-router-dom";

import { useNow } from "./clock";
import type { Late } from "./model";
import { search } from "./place";
import { lateSaid, worstFirst } from "./words";

const SHOWN = 3;

interface Props {
  late: Late[];
  /** Whose they are. */
  of: { deployment: string; topology: string };
  shown?: number;
  /** Where the page is, if not here. */
  pathname?: string;
}

/** Who is late, the worst first, in a sentence each that leads to its barrier. */
export function LateOnes({ late, of, shown = SHOWN, pathname }: Props) {
  const now = useNow();
  const more = late.length - shown;
  return (
    <ul className="warn plain">
      {worstFirst(late)
        .slice(0, shown)
        .map((each) => (
          <li key={`${each.barrier_id} ${each.job} ${each.dag}`} title={each.tables.join(", ")}>
            {each.barrier_id === null ? (
              lateSaid(each, now)
            ) : (
              <Link to={{ ...(pathname && { pathname }), search: search({ ...of, barrier: String(each.barrier_id) }) }}>
                {lateSaid(each, now)}
              </Link>
            )}
          </li>
        ))}
      {more > 0 && <li>And {more} more.</li>}
    </ul>
  );
}
