// Where one is: in the query of the address, so that back, forward and a shared link work.

import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router-dom";

export interface Place {
  deployment: string | null;
  topology: string | null;
  /** One barrier instead of the grid. */
  barrier: string | null;
  /** The grid's columns end before this barrier. */
  before: string | null;
  /** The grid's rows begin behind this table. */
  after: string | null;
  /** Only tables whose names hold this. */
  filter: string | null;
}

const NAMES = ["deployment", "topology", "barrier", "before", "after", "filter"] as const;
const NOWHERE: Place = { deployment: null, topology: null, barrier: null, before: null, after: null, filter: null };

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
    () => ({ ...NOWHERE, ...Object.fromEntries(NAMES.map((name) => [name, query.get(name)])) }) as Place,
    [query],
  );
  const go = useCallback(
    (to: Partial<Place>, replace = false) => setQuery(search(to).slice(1), { replace }),
    [setQuery],
  );
  return [place, go];
}
