import type { ReactNode } from "react";

import type { Refused } from "./api";
import { count } from "./words";

/** What went wrong, with a way to try again. */
export function Problem({ problem, again }: { problem: Refused; again: () => void }) {
  return (
    <div className="problem" role="alert">
      <span>{problem.message}</span> <button onClick={again}>Try again</button>
    </div>
  );
}

/** Deployments that have no answer, beside those that have. */
export function Unanswered({ deployments }: { deployments: string[] }) {
  return deployments.length > 0 ? (
    <p className="warn" role="alert">
      {deployments.join(", ")} cannot be asked just now; the log of Airflow's API server says why.
    </p>
  ) : null;
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="sentence">{children}</p>;
}

export function Loading() {
  return (
    <p className="dim" role="status">
      Asking Airflow…
    </p>
  );
}

export function Hidden({ dags }: { dags: number }) {
  return dags > 0 ? (
    <p className="dim">Of {count(dags, "more DAG")}, which you may not read, nothing is shown.</p>
  ) : null;
}
