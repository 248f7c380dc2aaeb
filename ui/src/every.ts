// For what no stream of changes tells of.

import { useEffect } from "react";

import type { Asked } from "./asked";

/** Asks again each so many milliseconds, as long as somebody looks. */
export function useEvery({ again }: Pick<Asked<unknown>, "again">, milliseconds: number): void {
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && again(), milliseconds);
    return () => clearInterval(timer);
  }, [again, milliseconds]);
}
