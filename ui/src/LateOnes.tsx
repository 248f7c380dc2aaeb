import { useNow } from "./clock";
import type { Late } from "./model";
import { lateSaid, worstFirst } from "./words";

const SHOWN = 3;

/** Who is late, the worst first, in a sentence each. */
export function LateOnes({ late, shown = SHOWN }: { late: Late[]; shown?: number }) {
  const now = useNow();
  const more = late.length - shown;
  return (
    <ul className="warn late-ones">
      {worstFirst(late)
        .slice(0, shown)
        .map((each) => (
          <li key={`${each.barrier_id} ${each.job} ${each.dag}`} title={each.tables.join(", ")}>
            {lateSaid(each, now)}
          </li>
        ))}
      {more > 0 && <li>And {more} more.</li>}
    </ul>
  );
}
