// Where one is: in the query of the address, so that back, forward and a shared link work.

import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router-dom";

export interface Place {
  deployment: string | null;
  topology: string | null;
  /** What of a topology; null: the grid. */
  view: string | null;
  /** One revision instead of the list of them. */
  revision: string | null;
  /** One barrier instead of the grid. */
  barrier: string | null;
  /** For how many days the delay is told. */
  window: string | null;
  /** Of which table the delay is told. */
  table: string | null;
  /** The grid's columns, or the list, end before this barrier. */
  before: string | null;
  /** The grid's rows begin behind this table. */
  after: string | null;
  /** Only topologies, or tables, whose names hold this, or that have something whose name does. */
  filter: string | null;
  /** Only topologies whose health is this. */
  health: string | null;
  /** Only tables that are so at one of the grid's barriers. */
  state: string | null;
}

const NAMES = [
  "deployment", "topology", "view", "revision", "barrier", "window", "table", "before", "after", "filter",
  "health", "state",
] as const;

export function search(place: Partial<Place>): string {
  const query = new URLSearchParams();
  for (const name of NAMES) {
    const value = place[name];
    if (value !== null && value !== undefined && value !== "") {
      query.set(name, value);
    }
  }
  return `?${query}`;
}

export function usePlace(): [Place, (place: Partial<Place>, replace?: boolean) => void] {
  const [query, setQuery] = useSearchParams();
  const place = useMemo(
    () => Object.fromEntries(NAMES.map((name) => [name, query.get(name)])) as unknown as Place,
    [query],
  );
  const go = useCallback(
    (to: Partial<Place>, replace = false) => setQuery(search(to).slice(1), { replace }),
    [setQuery],
  );
  return [place, go];
}
