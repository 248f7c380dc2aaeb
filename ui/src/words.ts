// What states are called, and what they mean.

import { duration, fullTime, secondsSince, shortTime } from "./clock";
import type { BarrierSummary, CellState, Failed, Health, Late, Note } from "./model";

export const HEALTH: Record<Health, { mark: string; word: string }> = {
  ok: { mark: "●", word: "ok" },
  failing: { mark: "✕", word: "failing" },
  retrying: { mark: "↻", word: "retrying" },
  late: { mark: "▲", word: "late" },
  blocked: { mark: "■", word: "blocked" },
  empty: { mark: "○", word: "no barrier yet" },
};

/** ``mark``: what stands in the cell, so that states differ by more than their colour. */
export const CELLS: Record<CellState, { mark: string; word: string; means: string }> = {
  written: { mark: "✓", word: "readable", means: "readable by everybody" },
  unchanged: { mark: "=", word: "unchanged", means: "readable, with the rows of the barrier before" },
  processed: { mark: "•", word: "staged", means: "staged: readable at read committed only" },
  running: { mark: "▸", word: "running, with its try", means: "running" },
  waiting: { mark: "…", word: "waits", means: "waits for its inputs" },
  pending: { mark: "", word: "not yet", means: "not asked for yet" },
  late: { mark: "!", word: "late", means: "late, and nothing else holds this barrier up" },
  failed: { mark: "✕", word: "failed", means: "its newest attempt failed" },
  blocked: { mark: "■", word: "blocked", means: "blocked: somebody else wrote to a table" },
  aborted: { mark: "–", word: "aborted", means: "aborted" },
  absent: { mark: "", word: "not part of it", means: "not part of this barrier" },
};

/** An attempt's state, in the words of cells and of `status`: aborted is what is done to barriers. */
export function attemptSaid(state: string): string {
  return state === "ABORTED" ? "failed" : state.toLowerCase();
}

/** The barrier's columns are headed by a mark unless it is readable. */
export const BARRIERS: Record<string, { mark: string; className: string }> = {
  COMMIT: { mark: "✓", className: "written" },
  COMMITTING: { mark: "•", className: "processed" },
  PRECOMMIT: { mark: "•", className: "processed" },
  OPEN: { mark: "▸", className: "running" },
  BLOCKED: { mark: "■", className: "blocked" },
  ABORTED: { mark: "–", className: "aborted" },
};

export function cellSaid(table: string, barrier: number, state: CellState, note: Note | undefined): string {
  const tries = note !== undefined && (note.tries > 1 || state === "running") ? `, try ${note.tries}` : "";
  const since = note?.since ? ` (since ${fullTime(note.since)})` : "";
  const more = note?.summary ? `: ${note.summary}` : "";
  return `${table} at barrier ${barrier}: ${CELLS[state].means}${tries}${more}${since}`;
}

export function barrierSaid(barrier: BarrierSummary): string {
  return `barrier ${barrier.barrier_id}, ${fullTime(barrier.timestamp)}: ${barrier.state}${
    barrier.reason ? `: ${barrier.reason}` : ""
  }`;
}

/** Who has failed where, when, and when it is tried again. */
export function failedSaid({ at, again_at, summary }: Failed, now: number): string {
  const ago = `${shortTime(at, now)}, ${duration(secondsSince(at, now))} ago`;
  if (again_at === null) {
    return `${summary} (${ago}).`;
  }
  const left = -secondsSince(again_at, now);
  return `${summary} (${ago}); the next try ${left > 0 ? `comes in ${duration(left)}` : "is due"}.`;
}

const LONGEST = 120;

export function shortened(text: string): string {
  return text.length <= LONGEST ? text : `${text.slice(0, LONGEST)}…`;
}

/** Who or what holds up what, and for how long. */
export function lateSaid({ since, summary }: Late, now: number): string {
  // a table's name stays as it is
  const said = /^[a-z]+ /.test(summary) ? summary.charAt(0).toUpperCase() + summary.slice(1) : summary;
  return `${said} (for ${duration(secondsSince(since, now))}).`;
}

export function total(counts: Partial<Record<Health, number>>): number {
  return Object.values(counts).reduce((sum, each) => sum + each, 0);
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
