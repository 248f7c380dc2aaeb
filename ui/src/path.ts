// The critical path of a barrier in words: who took the time, and what of it was waiting.

import { spent } from "./clock";
import type { Attempt, BarrierDelay, Part } from "./model";

const WAITED_FOR: Partial<Record<Part, string>> = {
  schedule: "for the schedule",
  inputs: "for inputs",
  slot: "for a slot",
  "earlier barriers": "for earlier barriers",
  commit: "for the commit",
};

export const FAILED: ReadonlySet<string> = new Set(["FENCED", "VOIDED", "ABORTED"]);

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
  return path.map((each, index) => ({
    // whatever it was to the barrier that it was done for
    part: each.barrier_id === here ? each.part : "earlier barriers",
    job: each.job,
    barrier: each.barrier_id,
    begin: Date.parse(each.begin),
    end: now !== null && index === path.length - 1 ? Math.max(now, Date.parse(each.end)) : Date.parse(each.end),
  }));
}

export function isWaiting(part: Part): boolean {
  return WAITED_FOR[part] !== undefined;
}

/** Whose row of the picture it is in. */
export function whose({ part, job, barrier }: Pick<Stretch, "part" | "job" | "barrier">, here: number): string {
  if (barrier !== here) {
    return job === null ? `barrier ${barrier}` : `${job} at barrier ${barrier}`;
  }
  if (job !== null) {
    return job;
  }
  return part === "schedule" ? "opening" : part === "commit" || part === "not known any more" ? part : "jobs of other DAGs";
}

export function seconds(spans: Span[]): number {
  return spans.reduce((sum, { begin, end }) => sum + end - begin, 0) / 1_000;
}

/** Critical path: load, price, commit. 38 s of 170 were waiting: 4 s for the schedule, 6 s for a slot.
 *
 * ``late``: it was opened so much later than its timestamp that this is told apart.
 */
export function pathSaid(path: Stretch[], here: number, late: boolean): string {
  const scheduled = path.filter(({ part }) => part === "schedule");
  const told = late ? path.filter(({ part }) => part !== "schedule") : path;
  const waited = told.filter(({ part }) => isWaiting(part));
  const lost = told.filter(({ part }) => part === "retries");
  const unknown = told.filter(({ part }) => part === "not known any more");
  const names = new Set(path.filter(({ part }) => part !== "schedule").map((each) => whose(each, here)));
  const whole = late ? `the ${spent(seconds(told))} since it was opened` : spent(seconds(told));
  const sentences = [];
  if (unknown.length > 0) {
    sentences.push("Who took most of it is not known any more, since it was computed again or trimmed.");
  } else if (names.size > 0) {
    sentences.push(`Critical path: ${[...names].join(", ")}.`);
  }
  if (late) {
    sentences.push(`It was opened ${spent(seconds(scheduled))} after its timestamp.`);
  }
  if (waited.length > 0) {
    const parts = [...new Set(waited.map(({ part }) => part))].map(
      (part) => `${spent(seconds(waited.filter((each) => each.part === part)))} ${WAITED_FOR[part]}`,
    );
    sentences.push(`${spent(seconds(waited))} of ${whole} were waiting: ${parts.join(", ")}.`);
  } else {
    sentences.push(`Nothing of ${whole} was waiting.`);
  }
  if (lost.length > 0) {
    sentences.push(`${spent(seconds(lost))} went into tries that came to nothing.`);
  }
  return sentences.join(" ");
}

/** What a job did at a barrier. ``ready``: when its inputs were there, if that is known. ``until``: the end of time. */
export function done(attempts: Attempt[], opened: number, ready: number | null, until: number): (Span & { failed: boolean })[] {
  const spans: (Span & { failed: boolean })[] = [];
  const add = (part: Part, begin: number, end: number, failed = false) => {
    if (Math.min(end, until) > begin) {
      spans.push({ part, begin, end: Math.min(end, until), failed });
    }
  };
  let free = ready;
  if (ready !== null) {
    add("inputs", opened, ready);
  }
  for (const each of attempts) {
    const started = each.started_at === null ? null : Date.parse(each.started_at);
    const end = each.processed_at ?? each.ended_at;
    const stop = end === null ? until : Date.parse(end);
    add(free === null ? "inputs" : "slot", free ?? Date.parse(each.requested_at), started ?? stop);
    if (started !== null) {
      add(FAILED.has(each.state) ? "retries" : "spark", started, stop, FAILED.has(each.state));
    }
    free = Math.max(stop, free ?? stop);
  }
  return spans;
}
