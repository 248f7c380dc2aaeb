// Times as people read them, in the time zone that Airflow's UI shows.

import { useSyncExternalStore } from "react";

import { serverNow } from "./api";

const listeners = new Set<() => void>();
let now = serverNow();
let ticking: ReturnType<typeof setInterval> | undefined;

function listen(listener: () => void): () => void {
  listeners.add(listener);
  ticking ??= setInterval(() => {
    now = serverNow();
    listeners.forEach((each) => each());
  }, 1_000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(ticking);
      ticking = undefined;
    }
  };
}

/** The server's time in milliseconds, which counts on. */
export function useNow(): number {
  return useSyncExternalStore(listen, () => now);
}

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** 42 s, 2 min 50 s, 18 min, 3 h 20 min, 2 d 4 h: seconds up to ten minutes. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  for (const [index, [size, unit]] of UNITS.entries()) {
    const next = UNITS[index + 1];
    if (whole >= size && next !== undefined) {
      const rest = Math.floor((whole % size) / next[0]);
      return `${Math.floor(whole / size)} ${unit}${rest > 0 && (size > 60 || whole < 600) ? ` ${rest} ${next[1]}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** As ``duration``, to a tenth of a second below ten. */
export function spent(seconds: number): string {
  return seconds >= 0 && seconds < 9.95 ? `${Number(seconds.toFixed(1))} s` : duration(seconds);
}

export function secondsSince(time: string, at: number): number {
  return (at - Date.parse(time)) / 1_000;
}

function zone(): string | undefined {
  try {
    const chosen: unknown = JSON.parse(localStorage.getItem("timezone") ?? "null");
    if (typeof chosen === "string") {
      Intl.DateTimeFormat(undefined, { timeZone: chosen });
      return chosen;
    }
  } catch {
    // not one that this browser knows
  }
  return undefined;
}

function parts(time: string): Record<string, string> {
  const format = new Intl.DateTimeFormat("en-CA", {
    timeZone: zone(),
    hourCycle: "h23",
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  } as Intl.DateTimeFormatOptions);
  return Object.fromEntries(format.formatToParts(new Date(time)).map(({ type, value }) => [type, value]));
}

export function fullTime(time: string): string {
  const { year, month, day, hour, minute, second } = parts(time);
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`;
}

export function date(time: string): string {
  const { month, day } = parts(time);
  return `${month}-${day}`;
}

export function clockTime(time: string): string {
  const { hour, minute } = parts(time);
  return `${hour}:${minute}`;
}

/** The time of day, with the date unless that is today's. */
export function shortTime(time: string, at: number): string {
  const today = date(new Date(at).toISOString()) === date(time) && Math.abs(secondsSince(time, at)) < 86_400;
  return today ? clockTime(time) : `${date(time)} ${clockTime(time)}`;
}
