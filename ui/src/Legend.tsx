import type { CellState } from "./model";
import { CELLS } from "./words";

const SHOWN: CellState[] = [
  "written", "unchanged", "processed", "running", "waiting", "pending", "late", "failed", "blocked", "aborted",
];

export function Legend() {
  return (
    <ul className="legend" aria-label="Legend">
      {SHOWN.map((state) => (
        <li key={state}>
          <span className={`cell ${state}`} aria-hidden="true">
            {state === "running" ? "1" : CELLS[state].mark}
          </span>{" "}
          {CELLS[state].word}
        </li>
      ))}
      <li>
        <span className="rr-mark" aria-hidden="true">
          ◆
        </span>{" "}
        readers are here (repeatable read)
      </li>
      <li>
        <span className="rr-mark" aria-hidden="true">
          ◇
        </span>{" "}
        read committed is here
      </li>
    </ul>
  );
}
