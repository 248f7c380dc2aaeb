import { Link } from "react-router-dom";

import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import { Chart } from "./Chart";
import { duration, fullTime, spent } from "./clock";
import { useChanges } from "./LiveMark";
import { barOf } from "./Gantt";
import type { Blame, Delay, SinkDelay, Topology } from "./model";
import { PARTS, TOLD } from "./path";
import type { Place } from "./place";
import { search } from "./place";
import { Section } from "./Section";
import { Empty } from "./Told";
import type { ViewProps } from "./View";
import { count } from "./words";

const WINDOWS = ["1", "7", "30"];
/** A window has thousands of barriers: one more is looked at soon enough. */
export const EVERY = 10_000;

/** How late barriers were readable over a window, and who is to blame. */
export function DelayView({ deployment, topology, live, place, go }: ViewProps) {
  const days = daysOf(place);
  const { table } = place;
  const here = ["deployments", deployment, "topologies", topology];
  const tables = useAsked<Topology>(address(here)).answer?.jobs.flatMap((job) => job.outlets).sort() ?? [];
  const asked = useAsked<Delay>(address([...here, "delay"], { window: 86_400 * Number(days), table }), EVERY);
  useChanges(live, topology, asked.again);
  const to = { deployment, topology, view: "delay", table, window: days };
  return (
    <section aria-labelledby="barriers-delay">
      <div className="line">
        <h3 id="barriers-delay">Delay</h3>
        <WindowLinks days={days} to={(window) => search({ ...to, window })} />
        <label>
          Table{" "}
          <select value={table ?? ""} onChange={(event) => go({ ...to, table: event.target.value })}>
            <option value="">all</option>
            {[...new Set([...tables, ...(table === null ? [] : [table])])].map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
      </div>
      <Answered asked={asked}>
        {(delay) =>
          delay.points.length === 0 ? (
            <Empty>
              No barrier became readable in {duration(delay.window)}: take a longer window, or look under Barriers what
              holds them up.
            </Empty>
          ) : (
            <>
              <Sums delay={delay} />
              <Chart delay={delay} to={(barrier) => search({ deployment, topology, barrier: String(barrier) })} />
              <Ranking delay={delay} />
              {delay.deliveries.length > 0 && <Sinks sinks={delay.deliveries} />}
            </>
          )
        }
      </Answered>
    </section>
  );
}

export function daysOf({ window }: Place): string {
  return window !== null && WINDOWS.includes(window) ? window : "7";
}

export function WindowLinks({ days, to }: { days: string; to: (window: string) => string }) {
  return (
    <nav className="pager" aria-label="Window">
      {WINDOWS.map((each) => (
        <Link key={each} to={{ search: to(each) }} aria-current={each === days ? "page" : undefined}>
          {each} d
        </Link>
      ))}
    </nav>
  );
}

export function percent(share: number): string {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
}

function Sums({ delay }: { delay: Delay }) {
  const { percentiles: found, scheduled, objective, missed, present } = delay;
  const isOld = objective !== null && present.stale !== null && present.stale > objective;
  const facts: [string, number | null | undefined, string][] = [
    ["Half within", found.p50, ""],
    ["95 % within", found.p95, ""],
    ["All within", found.max, ""],
    [
      "Until a run opened it",
      scheduled.p50,
      scheduled.max === undefined ? "" : `half within, all within ${spent(scheduled.max)}; is part of the delay`,
    ],
  ];
  return (
    <dl className="facts">
      <div>
        <dt>Now</dt>
        <dd>
          <b className={isOld ? "warn" : ""}>
            {present.stale === null ? "nothing to read" : `${duration(present.stale)} old`}
          </b>
          <span className="dim">
            {present.stale !== null && "is what readers have; "}
            {present.seconds === null
              ? "no barrier is open"
              : `barrier ${present.barrier_id} is open, ${duration(present.seconds)} after its timestamp`}
          </span>
        </dd>
      </div>
      {facts.map(([name, seconds, more]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <b>{seconds == null ? "not known" : spent(seconds)}</b>
            <span className="dim">{more}</span>
          </dd>
        </div>
      ))}
      <div>
        <dt>Objective missed</dt>
        <dd>
          {objective === null ? (
            <span className="dim">none is declared: give BarrierGroup or a job its freshness</span>
          ) : (
            <>
              <b className={missed ? "warn" : ""}>
                {missed?.toLocaleString("en")} of {delay.barriers.toLocaleString("en")}
              </b>
              <span className="dim">readers had something older than {duration(objective)}</span>
            </>
          )}
        </dd>
      </div>
    </dl>
  );
}

const SHOWN = 10;
function Ranking({ delay }: { delay: Delay }) {
  const blame = delay.blame.filter(({ seconds }) => seconds >= TOLD);
  const shown = blame.slice(0, SHOWN);
  const rest = blame.slice(SHOWN);
  return (
    <section aria-labelledby="barriers-blame">
      <h4 id="barriers-blame">
        Who took the time{delay.table !== null && ` that held up ${delay.table}`}
      </h4>
      {delay.blame.length === 0 ? (
        <Empty>
          It is not known any more: these barriers were computed again, or trimmed. Look at a newer one.
        </Empty>
      ) : (
        <>
          <ul className="gantt blame">
            {shown.map((each) => (
              <li key={`${each.part} ${each.job} ${each.dag}`} title={each.dag ?? undefined}>
                <span className="label">{whoOf(each)}</span>
                <span className="track" aria-hidden="true">
                  <i className={barOf(each.part)} style={{ left: 0, width: `${each.share * 100}%` }} />
                </span>
                <span className="sum">
                  <b>{percent(each.share)}</b>, {each.job === null ? "" : `${PARTS[each.part][0]}, `}
                  {spent(each.seconds)}
                </span>
              </li>
            ))}
          </ul>
          <p className="dim">
            {rest.length > 0 && `And ${rest.length} more: ${percent(rest.reduce((sum, each) => sum + each.share, 0))}. `}
            Until readable, on the critical path of the newest {count(delay.looked_into, "barrier")} and of the one that is
            open; time in which no run had opened a barrier is left out.
          </p>
        </>
      )}
    </section>
  );
}

/** Parts that are some job's. */
const OF_JOBS: ReadonlySet<Blame["part"]> = new Set([
  "not asked for", "source away", "waking", "between tries", "failed, not repeated", "failed tries", "spark",
]);

function whoOf({ part, job }: Blame): string {
  return job ?? (OF_JOBS.has(part) ? `jobs of other DAGs: ${PARTS[part][0]}` : PARTS[part][0]);
}

function Sinks({ sinks }: { sinks: SinkDelay[] }) {
  return (
    <Section title="From readable to sinks" columns={["sink", "DAG", "half within", "all within", "lacks"]}>
      {sinks.map(({ sink, dag, percentiles: { p50, max }, lacks, since }) => (
        <tr key={sink}>
          <th scope="row">{sink}</th>
          <td>{dag}</td>
          <td>{p50 === undefined ? "" : spent(p50)}</td>
          <td>{max === undefined ? "" : spent(max)}</td>
          <td>{since === null ? "nothing" : `${count(lacks, "barrier")}, since ${fullTime(since)}`}</td>
        </tr>
      ))}
    </Section>
  );
}
