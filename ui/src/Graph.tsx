import { useMemo } from "react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import { spent, useNow } from "./clock";
import { EVERY, WindowLinks, daysOf, percent } from "./Delay";
import { FilterBox } from "./FilterBox";
import { draw, NODE_WIDTH } from "./drawing";
import type { Edge } from "./drawing";
import { useChanges } from "./LiveMark";
import type { Delay, Grid, Job, Late, Topology } from "./model";
import { search } from "./place";
import { Section } from "./Section";
import { Hidden } from "./Told";
import type { ViewProps } from "./View";
import { count, lateSaid } from "./words";

/** More jobs than so many are no picture any more: some of them are. */
const AT_ONCE = 60;
const WORST = 20;
/** Barriers that are looked at for jobs that failed. */
const NEWEST = 4;
const TABLES = 3;
const LINE = 19;

interface Of {
  topology: Topology;
  /** Job -> of the delay. */
  blame: Map<string, { share: number; seconds: number }>;
  late: Map<string, Late>;
  failed: Set<string>;
}

/** What reads what, from sources to sinks, and who took the time. */
export function Graph({ deployment, topology, live, place, go }: ViewProps) {
  const days = daysOf(place);
  const here = ["deployments", deployment, "topologies", topology];
  const asked = useAsked<Topology>(address(here));
  const { answer: delay } = useAsked<Delay>(address([...here, "delay"], { window: 86_400 * Number(days) }), EVERY);
  const grid = useAsked<Grid>(address([...here, "grid"], { limit: NEWEST }));
  useChanges(live, topology, asked.again);
  useChanges(live, topology, grid.again);
  const to = { deployment, topology, view: "graph", window: place.window, filter: place.filter };
  return (
    <section aria-labelledby="barriers-graph">
      <div className="line">
        <h3 id="barriers-graph">Graph</h3>
        <FilterBox value={place.filter ?? ""} change={(filter) => go({ ...to, filter }, true)} />
        <WindowLinks days={days} to={(window) => search({ ...to, window })} />
      </div>
      <Answered asked={asked}>
        {(answer) => (
          <>
            <Shown
              of={{
                topology: answer,
                blame: blameOf(delay),
                late: new Map(answer.late.flatMap((each) => (each.job === null ? [] : [[each.job, each]]))),
                failed: failedOf(grid.answer),
              }}
              filter={(place.filter ?? "").toLowerCase()}
              to={(name) => search({ deployment, topology, window: place.window, ...name })}
            />
            <p className="dim">
              Percent: of the time from opening until readable, on the critical path of{" "}
              {delay === null ? "the newest barriers" : `the newest ${count(delay.looked_into, "barrier")} of ${days} d`}.
            </p>
            <Hidden dags={answer.hidden_dags} />
          </>
        )}
      </Answered>
    </section>
  );
}

function blameOf(delay: Delay | null): Of["blame"] {
  const found: Of["blame"] = new Map();
  for (const { job, share, seconds } of delay?.blame ?? []) {
    if (job !== null) {
      const before = found.get(job) ?? { share: 0, seconds: 0 };
      found.set(job, { share: before.share + share, seconds: before.seconds + seconds });
    }
  }
  return found;
}

function failedOf(grid: Grid | null): Set<string> {
  return new Set(grid?.rows.flatMap(({ job, cells }) => (job !== null && cells.includes("failed") ? [job] : [])));
}

type To = (to: { view: string; table?: string }) => string;

function Shown({ of, filter, to }: { of: Of; filter: string; to: To }) {
  const { jobs, said } = chosen(of, filter);
  return (
    <>
      {said !== null && <p role="status">{said}</p>}
      {jobs.length > 0 && <Picture of={of} jobs={jobs} to={to} />}
      {jobs.length > 0 && <AsTable of={of} jobs={jobs} />}
    </>
  );
}

/** Which jobs are drawn; of many those that matter most, or what the filter finds with its neighbours. */
function chosen({ topology, blame, late, failed }: Of, filter: string): { jobs: Job[]; said: string | null } {
  const { jobs, sinks } = topology;
  const all = count(jobs.length, "job");
  const rank = ({ job }: Job) => (late.has(job) || failed.has(job) ? 1 : 0) + (blame.get(job)?.share ?? 0);
  const worst = (of: Job[], most: number) => {
    const kept = new Set([...of].sort((one, other) => rank(other) - rank(one)).slice(0, most));
    return jobs.filter((each) => kept.has(each));
  };
  if (filter === "") {
    return jobs.length <= AT_ONCE
      ? { jobs, said: null }
      : {
          jobs: worst(jobs, WORST),
          said: `${WORST} of ${all}: first those that are late, then those that took most of the time. Filter for others.`,
        };
  }
  const holds = (names: string[]) => names.some((name) => name.toLowerCase().includes(filter));
  const to = (job: Job) => sinks.filter(({ tables }) => tables.some((table) => job.outlets.includes(table)));
  const found = jobs.filter((each) =>
    holds([each.job, each.dag, ...each.outlets, ...each.sources, ...to(each).map(({ sink }) => sink)]),
  );
  const [reads, writes] = [new Set(found.flatMap((job) => job.inlets)), new Set(found.flatMap((job) => job.outlets))];
  const near = jobs.filter(
    (each) => found.includes(each) || each.outlets.some((table) => reads.has(table)) || each.inlets.some((table) => writes.has(table)),
  );
  const drawn = worst(near, AT_ONCE);
  const most = drawn.length < near.length ? `; of these with their neighbours ${AT_ONCE} are drawn` : "";
  return {
    jobs: drawn,
    said:
      found.length === 0
        ? "No job, table, DAG, source or sink has that in its name: shorten the filter."
        : `${found.length} of ${all} ${found.length === 1 ? "matches" : "match"}${most}.`,
  };
}

interface Drawn {
  id: string;
  lines: number;
  className: string;
  label: string;
  content: ReactNode;
}

function Picture({ of, jobs, to }: { of: Of; jobs: Job[]; to: To }) {
  const { topology } = of;
  const now = useNow();
  const writers = new Map(jobs.flatMap((job) => job.outlets.map((table) => [table, job.job])));
  const sources = topology.sources.filter(({ source }) => jobs.some((job) => job.sources.includes(source)));
  const sinks = topology.sinks.filter(({ tables }) => tables.some((table) => writers.has(table)));
  const nodes: Drawn[] = [
    ...sources.map(({ source, kind }) => ({
      id: `source ${source}`,
      lines: 2,
      className: "outside",
      label: `source ${source}`,
      content: (
        <>
          <Link to={{ search: to({ view: "sources" }) }}>{source}</Link>
          <span className="dim">source · {kind}</span>
        </>
      ),
    })),
    ...jobs.map((job) => ({
      id: `job ${job.job}`,
      lines: 2 + Math.min(job.outlets.length, TABLES + 1),
      className: `share${levelOf(of.blame.get(job.job)?.share ?? 0)}`,
      label: `job ${job.job}`,
      content: <Writer of={of} job={job} now={now} to={to} />,
    })),
    ...sinks.map(({ sink, kind, lacks, error }) => ({
      id: `sink ${sink}`,
      lines: 2,
      className: "outside",
      label: `sink ${sink}`,
      content: (
        <>
          <Link to={{ search: to({ view: "deliveries" }) }}>{sink}</Link>
          <span className={error === null ? "dim" : "bad"} title={error ?? undefined}>
            sink · {error !== null ? "✕ fails" : lacks > 0 ? `${lacks} behind` : kind}
          </span>
        </>
      ),
    })),
  ];
  const edges: Edge[] = [
    ...jobs.flatMap((job) => job.sources.map((source): Edge => [`source ${source}`, `job ${job.job}`])),
    ...jobs.flatMap((job) =>
      [...new Set(job.inlets.flatMap((table) => writers.get(table) ?? []))].map((from): Edge => [`job ${from}`, `job ${job.job}`]),
    ),
    ...sinks.flatMap(({ sink, tables }) =>
      [...new Set(tables.flatMap((table) => writers.get(table) ?? []))].map((from): Edge => [`job ${from}`, `sink ${sink}`]),
    ),
  ];
  const shape = JSON.stringify([nodes.map(({ id, lines }) => [id, lines]), edges]);
  const { places, paths, width, height } = useMemo(
    () => draw(nodes.map(({ id, lines }) => ({ id, height: lines * LINE + 14 })), edges),
    [shape],
  );
  return (
    <div className="scroll graph" role="group" aria-label="From sources to sinks" tabIndex={0}>
      <div style={{ width, height }}>
        <svg width={width} height={height} aria-hidden="true">
          {paths.map((path, index) => (
            <path key={edges[index]?.join(" > ")} d={path} />
          ))}
        </svg>
        {inReadingOrder(nodes, places).map(({ id, lines, className, label, content }) => (
          <div
            key={id}
            role="group"
            aria-label={label}
            className={`node ${className}`}
            style={{ left: places.get(id)?.x, top: places.get(id)?.y, width: NODE_WIDTH, height: lines * LINE + 14 }}
          >
            {content}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Column by column, as the tab key goes. */
function inReadingOrder(nodes: Drawn[], places: Map<string, { x: number; y: number }>): Drawn[] {
  const at = (id: string) => places.get(id) ?? { x: 0, y: 0 };
  return [...nodes].sort(({ id: one }, { id: other }) => at(one).x - at(other).x || at(one).y - at(other).y);
}

function Writer({ of: { blame, late, failed }, job, now, to }: { of: Of; job: Job; now: number; to: To }) {
  const took = blame.get(job.job);
  const held = late.get(job.job);
  const [first] = job.outlets;
  const more = job.outlets.length - TABLES;
  return (
    <>
      <Link to={{ search: to({ view: "delay", ...(first !== undefined && { table: first }) }) }} title={`${job.job}, of DAG ${job.dag}`}>
        {job.job}
      </Link>
      <span className={held || failed.has(job.job) ? "warn" : "dim"} title={held && lateSaid(held, now)}>
        {failed.has(job.job) ? "✕ failed, " : held ? "! late, " : ""}
        {took === undefined ? "0 %" : `${percent(took.share)}, ${spent(took.seconds)}`}
      </span>
      {job.outlets.slice(0, TABLES).map((table) => (
        <Link key={table} className="small" to={{ search: to({ view: "delay", table }) }} title={table}>
          {table}
        </Link>
      ))}
      {more > 0 && <span className="dim small">and {count(more, "more table")}</span>}
    </>
  );
}

/** Four shades; the number stands beside. */
function levelOf(share: number): number {
  return share >= 0.25 ? 3 : share >= 0.1 ? 2 : share >= 0.01 ? 1 : 0;
}

function AsTable({ of: { topology, blame, late, failed }, jobs }: { of: Of; jobs: Job[] }) {
  return (
    <details>
      <summary>As a table</summary>
      <Section title="Who reads and writes what" columns={["job", "DAG", "reads", "writes", "is delivered to", "of the delay", ""]}>
        {jobs.map((job) => (
          <tr key={job.job}>
            <th scope="row">{job.job}</th>
            <td>{job.dag}</td>
            <td>{[...job.sources, ...job.inlets].join(", ")}</td>
            <td>{job.outlets.join(", ")}</td>
            <td>
              {topology.sinks
                .filter(({ tables }) => tables.some((table) => job.outlets.includes(table)))
                .map(({ sink }) => sink)
                .join(", ")}
            </td>
            <td>{percent(blame.get(job.job)?.share ?? 0)}</td>
            <td>{failed.has(job.job) ? "failed" : late.has(job.job) ? "late" : ""}</td>
          </tr>
        ))}
      </Section>
    </details>
  );
}
