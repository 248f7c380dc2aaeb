import { useEffect, useMemo, useRef } from "react";

import type { Connection } from "./stream";
import { useLive } from "./stream";

type Listener = (topology: string | null) => void;

/** One stream for all that is on screen. */
export interface Live {
  connection: Connection;
  listen: (listener: Listener) => () => void;
}

export function useStream(deployment: string | null): Live {
  const listeners = useRef(new Set<Listener>());
  const connection = useLive(deployment, (topology) => listeners.current.forEach((each) => each(topology)));
  return useMemo(
    () => ({
      connection,
      listen: (listener) => {
        listeners.current.add(listener);
        return () => listeners.current.delete(listener);
      },
    }),
    [connection],
  );
}

/** Calls ``again`` when the topology has changed (null: any), or may have. */
export function useChanges({ listen }: Live, topology: string | null, again: () => void): void {
  useEffect(
    () => listen((changed) => (topology === null || changed === null || changed === topology) && again()),
    [listen, topology, again],
  );
}

const SAID: Record<Connection, [mark: string, words: string]> = {
  connecting: ["○", "connecting"],
  live: ["●", "live"],
  reconnecting: ["◌", "reconnecting"],
};

export function LiveMark({ connection }: Live) {
  const [mark, words] = SAID[connection];
  return (
    <span className={`live ${connection}`} role="status">
      <span aria-hidden="true">{mark}</span> {words}
    </span>
  );
}
