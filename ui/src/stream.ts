// The stream of changes: says when to ask anew.

import { useEffect, useRef, useState } from "react";

import { address } from "./api";
import type { Change } from "./model";

export type Connection = "connecting" | "live" | "reconnecting";

const RETRY_AFTER = 5_000;

/** Calls ``changed`` for each topology that has changed since it was last heard of, and when the stream is back.
 *
 * A page that nobody looks at holds no connection (browsers have six per host for all their tabs); it catches up when it
 * is looked at again.
 */
export function useLive(deployment: string | null, changed: (topology: string | null) => void): Connection {
  const [connection, setConnection] = useState<Connection>("connecting");
  const tell = useRef(changed);
  useEffect(() => {
    tell.current = changed;
  });

  useEffect(() => {
    if (deployment === null) {
      return undefined;
    }
    const counts = new Map<string, number>();
    let stream: EventSource | null = null;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let lost = false;

    const open = () => {
      clearTimeout(timer);
      stream?.close();
      stream = new EventSource(address(["deployments", deployment, "events"]), { withCredentials: true });
      stream.onopen = () => {
        setConnection("live");
        if (lost) {
          tell.current(null);
        }
        lost = false;
      };
      stream.onerror = () => {
        lost = true;
        // a refusal ends the stream for good, a cut does not
        const refused = stream?.readyState === EventSource.CLOSED;
        setConnection(refused ? "connecting" : "reconnecting");
        if (refused) {
          timer = setTimeout(open, RETRY_AFTER);
        }
      };
      stream.addEventListener("change", (event: MessageEvent<string>) => {
        const { topology, changes } = JSON.parse(event.data) as Change;
        const before = counts.get(topology);
        counts.set(topology, changes);
        if (before !== changes) {
          tell.current(topology);
        }
      });
    };
    const close = () => {
      clearTimeout(timer);
      stream?.close();
      stream = null;
      lost = true;
    };
    const look = () => (document.hidden ? close() : open());

    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      close();
    };
  }, [deployment]);

  return connection;
}
