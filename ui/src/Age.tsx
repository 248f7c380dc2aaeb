import { duration, fullTime, secondsSince, useNow } from "./clock";

/** How long ago, counting on; ``behind`` when that is more than the objective. */
export function Age({ time, objective = null }: { time: string; objective?: number | null }) {
  const seconds = secondsSince(time, useNow());
  const late = objective !== null && seconds > objective;
  return (
    <span title={fullTime(time)}>
      {duration(seconds)} ago
      {objective !== null && (
        <span className={late ? "warn" : "dim"}>
          {late ? `; more than the objective of ${duration(objective)}` : `; the objective is ${duration(objective)}`}
        </span>
      )}
    </span>
  );
}
