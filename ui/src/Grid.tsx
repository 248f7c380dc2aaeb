import { memo, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { KeyboardEvent, MouseEvent } from "react";
import { Link, useHref } from "react-router-dom";

import { address } from "./api";
import { useAsked } from "./asked";
import { clockTime, date } from "./clock";
import { FilterBox } from "./FilterBox";
import { Legend } from "./Legend";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { BarrierSummary, CellState, Grid as Answer, GridRow, Note } from "./model";
import type { Place } from "./place";
import { search } from "./place";
import { Empty, Loading, Problem } from "./Told";
import { BARRIERS, CELLS, barrierSaid, cellSaid, count } from "./words";

/** Tables that the API gives at once. */
const AT_MOST = 1_000;
const FAILED: readonly CellState[] = ["failed", "blocked"];
/** By the word in the address: of a table that is shown, one of its cells is one of these. */
const STATES: Record<string, readonly CellState[]> = {
  "not done": [...FAILED, "late", "running", "waiting", "pending"],
  failed: FAILED,
};

interface Props {
  deployment: string;
  topology: string;
  live: Live;
  place: Place;
  go: (place: Partial<Place>, replace?: boolean) => void;
}

/** Tables, by the DAGs that own them, at barriers. */
export function Grid({ deployment, topology, live, place, go }: Props) {
  const { before, after } = place;
  const filter = place.filter ?? "";
  const states = STATES[place.state ?? ""];
  // a filter looks at what was asked for
  const tables = filter === "" && states === undefined ? null : AT_MOST;
  const { answer, problem, again } = useAsked<Answer>(
    address(["deployments", deployment, "topologies", topology, "grid"], { before, after, tables }),
  );
  useChanges(live, topology, again);
  const here = { ...place, deployment, topology };
  const rows = useMemo(
    () =>
      answer?.rows.filter(
        ({ table, job, cells }) =>
          `${table} ${job ?? ""}`.toLowerCase().includes(filter.toLowerCase()) &&
          (states === undefined || cells.some((cell) => states.includes(cell))),
      ) ?? [],
    [answer, filter, states],
  );

  if (answer === null) {
    return problem ? <Problem problem={problem} again={again} /> : <Loading />;
  }
  return (
    <section aria-labelledby="barriers-grid">
      <div className="line">
        <h3 id="barriers-grid">Tables at barriers</h3>
        <FilterBox value={filter} change={(to) => go({ ...here, filter: to }, true)} of="a table or job" />
        <label>
          Show{" "}
          <select value={states === undefined ? "" : (place.state ?? "")} onChange={(event) => go({ ...here, state: event.target.value }, true)}>
            <option value="">all tables</option>
            {Object.keys(STATES).map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <nav className="pager" aria-label="Barriers">
          {before !== null && <Link to={{ search: search({ ...here, before: null }) }}>Newest</Link>}
          {answer.before !== null && (
            <Link to={{ search: search({ ...here, before: String(answer.before) }) }}>← Older</Link>
          )}
        </nav>
      </div>
      {problem && <Problem problem={problem} again={again} />}
      {answer.barriers.length === 0 ? (
        <Empty>
          {before === null
            ? "No barrier was opened yet: run a DAG that has the topology's BarrierGroup."
            : "There are no older barriers: go back to the newest."}
        </Empty>
      ) : (
        <>
          <Table answer={answer} rows={rows} place={here} go={go} />
          {rows.length === 0 && (
            <Empty>
              {tables !== null ? "No table here has that in its name, or is so: change the filter." : "You may read the DAG of none of its tables."}
            </Empty>
          )}
          <nav className="pager" aria-label="Tables">
            {after !== null && <Link to={{ search: search({ ...here, after: null }) }}>First tables</Link>}
            {answer.after !== null && (
              <>
                <span className="dim">{count(answer.rows.length, "table")} shown; the filter looks at these.</span>
                <Link to={{ search: search({ ...here, after: answer.after }) }}>More tables</Link>
              </>
            )}
          </nav>
          <Legend />
        </>
      )}
    </section>
  );
}

interface TableProps {
  answer: Answer;
  rows: GridRow[];
  place: Place;
  go: (place: Partial<Place>) => void;
}

function Table({ answer, rows, place, go }: TableProps) {
  const { barriers } = answer;
  const path = useHref({ search: "" });
  const notes = useMemo(() => {
    const found = new Map<string, Map<number, Note>>();
    for (const note of answer.notes) {
      found.set(note.table, (found.get(note.table) ?? new Map<number, Note>()).set(note.barrier_id, note));
    }
    return found;
  }, [answer]);
  // one cell takes part in the order of the tab key; arrows go on from there
  const [at, setAt] = useState<[table: string, column: number]>(["", 0]);
  const isThere = at[1] < barriers.length && rows.some((row) => row.table === at[0]);
  const [table, column] = isThere ? at : [rows[0]?.table ?? "", barriers.length - 1];
  const where = `${path}${search({ ...place, barrier: null })}`;
  const marks = useMemo(() => {
    const { repeatable_read: rr, read_committed: rc } = answer;
    return new Map(
      answer.barriers.map(({ barrier_id: id }) => [id, `${id === rr ? " rr" : ""}${id === rc ? " rc" : ""}`]),
    );
  }, [answer]);

  // links as any other, but thousands of the router's would each listen to the address
  const follow = (event: MouseEvent<HTMLElement>) => {
    const link = (event.target as HTMLElement).closest<HTMLElement>("a[data-barrier]");
    if (link && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      go({ ...place, barrier: link.dataset["barrier"] ?? null });
    }
  };
  const move = (event: KeyboardEvent<HTMLElement>) => {
    const step = STEPS[event.key];
    const cell = (event.target as HTMLElement).closest("td");
    if (!step || !cell) {
      return;
    }
    event.preventDefault();
    const lines = [...event.currentTarget.querySelectorAll("tr[data-table]")].map((line) => [
      ...line.querySelectorAll("td"),
    ]);
    let y = lines.findIndex((cells) => cells.includes(cell));
    let x = lines[y]?.indexOf(cell) ?? 0;
    let next: HTMLElement | null | undefined;
    // cells that are not part of their barrier are passed over
    do {
      [y, x] = [y + step[0], x + step[1]];
      next = lines[y]?.[x]?.querySelector("a");
    } while (!next && lines[y]?.[x]);
    next?.focus();
  };

  // where the window is narrow, what is newest is seen first
  const box = useRef<HTMLDivElement>(null);
  const newest = barriers[barriers.length - 1]?.barrier_id;
  useLayoutEffect(() => {
    // not scrollTo: newer browsers return a promise from it, which React would take for a clean-up
    if (box.current) {
      box.current.scrollLeft = box.current.scrollWidth;
    }
  }, [newest]);

  return (
    <div className="scroll" ref={box}>
      <table className="grid" onClick={follow} onKeyDown={move}>
        <caption className="hidden">States of tables at the newest barriers; arrow keys go from cell to cell.</caption>
        <thead>
          <tr>
            <th scope="col" className="name">
              Table
            </th>
            {barriers.map((barrier, index) => (
              <Column
                key={barrier.barrier_id}
                barrier={barrier}
                previous={barriers[index - 1]}
                mark={marks.get(barrier.barrier_id) ?? ""}
                answer={answer}
                to={search({ ...place, barrier: String(barrier.barrier_id) })}
              />
            ))}
          </tr>
        </thead>
        {byDag(rows).map(([dag, its]) => (
          <tbody key={dag}>
            <tr className="dag">
              <th scope="rowgroup" colSpan={barriers.length + 1}>
                <span>
                  {dag === "" ? (
                    "not written by any job now"
                  ) : (
                    <Link to={`/dags/${encodeURIComponent(dag)}`}>{dag}</Link>
                  )}
                </span>
              </th>
            </tr>
            {its.map((row) => (
              <Row
                key={row.table}
                row={row}
                barriers={barriers}
                notes={notes.get(row.table)}
                marks={marks}
                column={row.table === table ? column : -1}
                where={where}
                setAt={setAt}
              />
            ))}
          </tbody>
        ))}
      </table>
    </div>
  );
}

const STEPS: Record<string, [rows: number, columns: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

interface ColumnProps {
  barrier: BarrierSummary;
  previous: BarrierSummary | undefined;
  mark: string;
  answer: Answer;
  to: string;
}

function Column({ barrier, previous, mark, answer, to }: ColumnProps) {
  const state = BARRIERS[barrier.state];
  const { barrier_id: id } = barrier;
  const day = date(barrier.timestamp);
  return (
    <th scope="col" className={`barrier${mark}`}>
      <Link to={{ search: to }} title={barrierSaid(barrier)}>
        {id}
      </Link>
      <span className="dim">{clockTime(barrier.timestamp)}</span>
      <span className="dim">{day !== (previous && date(previous.timestamp)) && day}</span>
      <span className="marks">
        {id === answer.repeatable_read && <abbr title="repeatable read is here: what readers have">◆</abbr>}
        {id === answer.read_committed && <abbr title="read committed is here: staged in all tables">◇</abbr>}
        {barrier.state !== "COMMIT" && <abbr title={barrier.state}>{state?.mark ?? "?"}</abbr>}
      </span>
    </th>
  );
}

function byDag(rows: GridRow[]): [string, GridRow[]][] {
  const found = new Map<string, GridRow[]>();
  for (const row of rows) {
    found.set(row.dag ?? "", [...(found.get(row.dag ?? "") ?? []), row]);
  }
  return [...found];
}

interface RowProps {
  row: GridRow;
  barriers: BarrierSummary[];
  notes: Map<number, Note> | undefined;
  marks: Map<number, string>;
  /** Which cell is in the order of the tab key, or -1. */
  column: number;
  where: string;
  setAt: (at: [string, number]) => void;
}

/** Most rows of a new answer are those of the one before, and thousands of cells are not drawn for the one that changed. */
function isSame(one: RowProps, other: RowProps): boolean {
  const { row, barriers: _, notes, marks, ...rest } = one;
  return (
    (Object.keys(rest) as (keyof typeof rest)[]).every((name) => one[name] === other[name]) &&
    text(row) === text(other.row) &&
    text([...(notes ?? [])]) === text([...(other.notes ?? [])]) &&
    text([...marks]) === text([...other.marks])
  );
}

const text = JSON.stringify;

const Row = memo(function Row({ row, barriers, notes, marks, column, where, setAt }: RowProps) {
  return (
    <tr data-table={row.table}>
      <th scope="row" className="name" title={row.table}>
        {row.table}
        {row.job !== null && <span className="dim small"> {row.job}</span>}
      </th>
      {row.cells.map((state, index) => {
        const id = barriers[index]?.barrier_id ?? 0;
        const note = notes?.get(id);
        const said = cellSaid(row.table, id, state, note);
        return (
          <td key={id} className={marks.get(id)}>
            {state === "absent" ? (
              <span className="cell absent" title={said} />
            ) : (
              <a
                className={`cell ${state}`}
                href={`${where}&barrier=${id}`}
                data-barrier={id}
                title={said}
                aria-label={said}
                tabIndex={index === column ? 0 : -1}
                onFocus={() => setAt([row.table, index])}
              >
                {state === "running" && note ? note.tries : CELLS[state].mark}
                {state === "late" && note !== undefined && note.tries > 1 && note.tries}
              </a>
            )}
          </td>
        );
      })}
    </tr>
  );
}, isSame);
