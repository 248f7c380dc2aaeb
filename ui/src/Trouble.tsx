import { Link } from "react-router-dom";

import { useNow } from "./clock";
import type { Task, TopologySummary } from "./model";
import { search } from "./place";
import { failedSaid, lateSaid, shortened } from "./words";

const SHOWN = 3;

interface Props {
  deployment: string;
  /** One that has something to tell; or a barrier, which has no sinks. */
  topology: Pick<TopologySummary, "topology" | "health" | "failed" | "late"> & { failing?: string[] };
  shown?: number;
  /** This is the barrier's own page, to which no sentence leads. */
  here?: boolean;
  /** Where the page is, if not here. */
  pathname?: string;
}

/**
 * What is not well, in a sentence each that leads to its barrier: jobs that have failed, with their error and the way to
 * the task; who else is late, the worst first; then the sinks that nothing comes to. A barrier that is BLOCKED, which is
 * among the late, is led out first.
 */
export function Trouble({
  deployment,
  topology: { topology, health, failed, late, failing = [] },
  shown = SHOWN,
  here = false,
  pathname,
}: Props) {
  const now = useNow();
  const to = (place: { barrier?: string; view?: string }) => ({
    ...(pathname && { pathname }),
    search: search({ deployment, topology, ...place }),
  });
  const sentence = (barrier: number | null, said: string) =>
    here || barrier === null ? said : <Link to={to({ barrier: String(barrier) })}>{said}</Link>;
  const failures = failed.map((each) => (
    <li key={`failed ${each.barrier_id} ${each.job}`} title={each.tables.join(", ")}>
      {sentence(each.barrier_id, failedSaid(each, now))}
      {each.task && (
        <>
          {" · "}
          <Link to={taskAddress(each.task)}>Log, and clear it</Link>
        </>
      )}
      <div className="dim" title={each.reason}>
        {shortened(each.reason)}
      </div>
    </li>
  ));
  const waits = late.map((each) => (
    <li key={`${each.barrier_id} ${each.job} ${each.dag}`} title={each.tables.join(", ")}>
      {sentence(each.barrier_id, lateSaid(each, now))}
    </li>
  ));
  const all = health === "blocked" ? [...waits, ...failures] : [...failures, ...waits];
  return (
    <ul className="warn plain">
      {all.slice(0, shown)}
      {all.length > shown && <li>And {all.length - shown} more.</li>}
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

/** Airflow's own page of a task instance: its log, and the dialog that clears it. */
export function taskAddress({ dag_id, run_id, task_id, map_index }: Task): string {
  const mapped = map_index < 0 ? "" : `/mapped/${map_index}`;
  return `/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}/tasks/${encodeURIComponent(task_id)}${mapped}`;
}
