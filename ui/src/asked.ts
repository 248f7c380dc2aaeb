// An answer that is kept fresh: asked again when told so, one question at a time, at most one a second.

import { useCallback, useEffect, useRef, useState } from "react";

import { act, ask, Refused } from "./api";

const AT_MOST_EVERY = 1_000;

export interface Asked<T> {
  /** The newest answer; of another address than the one that is asked, until that one answers. */
  answer: T | null;
  /** Why the last question had no answer. */
  problem: Refused | null;
  again: () => void;
}

interface Heard<T> {
  url: string;
  answer: T | null;
  problem: Refused | null;
}

/** ``url`` null asks nothing. ``every``: at most once in so many milliseconds. */
export function useAsked<T>(url: string | null, every = AT_MOST_EVERY): Asked<T> {
  const [heard, setHeard] = useState<Heard<T>>({ url: "", answer: null, problem: null });
  const wake = useRef<() => void>(() => undefined);

  useEffect(() => {
    if (url === null) {
      return undefined;
    }
    const stopped = new AbortController();
    let begun = 0;
    let underWay = false;
    let wanted = false;
    let timer: ReturnType<typeof setTimeout> | undefined;

    const question = async () => {
      timer = undefined;
      underWay = true;
      wanted = false;
      begun = Date.now();
      try {
        const answer = await ask<T>(url, stopped.signal);
        if (!stopped.signal.aborted) {
          setHeard({ url, answer, problem: null });
        }
      } catch (error) {
        if (!stopped.signal.aborted) {
          const problem = error instanceof Refused ? error : new Refused(0, String(error));
          setHeard((before) => ({ url, answer: kept(before, url, problem), problem }));
        }
      }
      underWay = false;
      if (wanted) {
        plan();
      }
    };
    const plan = () => {
      wanted = true;
      if (!underWay && timer === undefined && !stopped.signal.aborted) {
        timer = setTimeout(() => void question(), Math.max(0, begun + every - Date.now()));
      }
    };
    wake.current = plan;
    plan();
    return () => {
      stopped.abort();
      clearTimeout(timer);
    };
  }, [url, every]);

  const again = useCallback(() => wake.current(), []);
  return { answer: heard.answer, problem: heard.problem, again };
}

/** What is on screen stays there while the server is away, but not when it says that it is no more to be seen. */
function kept<T>(before: Heard<T>, url: string, problem: Refused): T | null {
  return before.url === url && (problem.status === 0 || problem.status >= 500) ? before.answer : null;
}

/** Something that is being done, or what came of the last one. */
export interface Doing<T> {
  busy: boolean;
  answer: T | null;
  problem: Refused | null;
  start: (url: string, body: Record<string, unknown>) => void;
  forget: () => void;
}

const NOTHING = { busy: false, answer: null, problem: null };

/** ``then``: called once something has been done. */
export function useDoing<T>(then: (answer: T) => void = () => undefined): Doing<T> {
  const [state, setState] = useState<Pick<Doing<T>, "busy" | "answer" | "problem">>(NOTHING);
  const start = (url: string, body: Record<string, unknown>) => {
    if (state.busy) {
      return;
    }
    setState({ ...NOTHING, busy: true });
    act<T>(url, body).then(
      (answer) => {
        setState({ ...NOTHING, answer });
        then(answer);
      },
      (error: unknown) =>
        setState({ ...NOTHING, problem: error instanceof Refused ? error : new Refused(0, String(error)) }),
    );
  };
  return { ...state, start, forget: () => setState((before) => (before.busy ? before : NOTHING)) };
}
