// The critical path of a barrier in words: who took the time, and what of it was waiting.

import { spent } from "./clock";
import type { BarrierDelay, Part, Segment } from "./model";

/** What a part is called beside a bar, and, of time that was waiting, what for. */
export const PARTS: Record<Part, [said: string, waitedFor?: string]> = {
  schedule: ["no run had opened it", "for the schedule"],
  inputs: ["waited for inputs", "for inputs"],
  "not asked for": ["had no task that had begun", "for its task to begin"],
  "source away": ["waited for a source that was away", "for a source that was away"],
  waking: ["was being woken", "to be woken"],
  "between tries": ["waited for the next try", "for the next try"],
  "failed, not repeated": ["had failed, and nobody repeated it", "for somebody to repeat what had failed"],
  "failed tries": ["ran, and failed"],
  spark: ["ran"],
  siblings: ["waited for other tables", "for other tables"],
  "earlier barriers": ["an earlier barrier held it up", "for earlier barriers"],
  decision: ["waited for the commit task", "for the commit task"],
  commit: ["was published"],
  blocked: ["was BLOCKED", "for a person to decide, as it is BLOCKED"],
  "not known any more": ["not known any more"],
};

/** Milliseconds since the epoch. */
export interface Span {
  part: Part;
  begin: number;
  end: number;
}

export interface Stretch extends Span {
  job: string | null;
  barrier: number;
}

/** The path until ``now``, if the barrier is not readable yet. */
export function stretches({ critical_path: path, barrier_id: here }: BarrierDelay, now: number | null): Stretch[] {
  const last = path[path.length - 1];
  return path.map((each) => ({
    // whatever it was to the barrier that it was done for
    ...spanOf(each, each === last ? now : null),
    part: each.barrier_id === here ? each.part : "earlier barriers",
    job: each.job,
    barrier: each.barrier_id,
  }));
}

/** What a job did; ``until``: when the API looked. What went on then goes on until ``now``, if the barrier is open. */
export function spans(path: Segment[], until: string, now: number | null): Span[] {
  return path.map((each) => spanOf(each, each.end === until ? now : null));
}

function spanOf({ part, begin, end }: Segment, now: number | null): Span {
  return { part, begin: Date.parse(begin), end: Math.max(now ?? 0, Date.parse(end)) };
}

export function isWaiting(part: Part): boolean {
  return PARTS[part][1] !== undefined;
}

/** Whose row of the picture it is in. */
export function whose({ part, job, barrier }: Pick<Stretch, "part" | "job" | "barrier">, here: number): string {
  if (barrier !== here) {
    return job === null ? `barrier ${barrier}` : `${job} at barrier ${barrier}`;
  }
  if (job !== null) {
    return job;
  }
  const rows: Partial<Record<Part, string>> = { schedule: "opening", decision: "commit", commit: "commit", blocked: "commit", "not known any more": part };
  return rows[part] ?? "jobs of other DAGs";
}

/** What took less is not worth a word. */
export const TOLD = 0.05;

export function seconds(spans: Span[]): number {
  return spans.reduce((sum, { begin, end }) => sum + end - begin, 0) / 1_000;
}

/** Critical path: load, price, commit. 38 s of 170 were waiting: 4 s for the schedule, 6 s for a slot.
 *
 * ``opened``: it was opened so much later than its timestamp that this is told apart; null: it was not.
 */
export function pathSaid(path: Stretch[], here: number, opened: number | null): string {
  const told = opened === null ? path : path.filter(({ begin }) => begin >= opened);
  const waited = told.filter((each) => isWaiting(each.part) && seconds([each]) >= TOLD);
  const lost = told.filter(({ part }) => part === "failed tries");
  const unknown = told.filter(({ part }) => part === "not known any more");
  const names = new Set(path.filter(({ part }) => part !== "schedule").map((each) => whose(each, here)));
  const whole = opened === null ? spent(seconds(told)) : `the ${spent(seconds(told))} since it was opened`;
  const sentences = [];
  if (unknown.length > 0) {
    sentences.push("Who took most of it is not known any more, since it was computed again or trimmed.");
  } else if (names.size > 0) {
    sentences.push(`Critical path: ${[...names].join(", ")}.`);
  }
  if (opened !== null) {
    sentences.push(`It was opened ${spent(seconds(path) - seconds(told))} after its timestamp.`);
  }
  if (waited.length > 0) {
    const parts = [...new Set(waited.map(({ part }) => part))].map(
      (part) => `${spent(seconds(waited.filter((each) => each.part === part)))} ${PARTS[part][1]}`,
    );
    sentences.push(`${spent(seconds(waited))} of ${whole} were waiting: ${parts.join(", ")}.`);
  } else {
    sentences.push(`Nothing of ${whole} was waiting.`);
  }
  if (lost.length > 0) {
    sentences.push(`${spent(seconds(lost))} went into tries that failed.`);
  }
  return sentences.join(" ");
}
