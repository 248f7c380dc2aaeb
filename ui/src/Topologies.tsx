import { useState } from "react";
import { Link } from "react-router-dom";

import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import { useEvery } from "./every";
import { FilterBox } from "./FilterBox";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { Health, Topologies as Answer, TopologySummary } from "./model";
import type { Place } from "./place";
import { search, usePlace } from "./place";
import { Empty, Hidden, Loading, Problem } from "./Told";
import { Trouble } from "./Trouble";
import { BARRIERS, HEALTH, barrierSaid, count, total } from "./words";

export const NOTHING =
  "No topology is here yet that you may read. Run a DAG that has a BarrierGroup once, and its topology appears; before " +
  "that, airflow-barrier doctor checks the connection (of type barrier, under Admin, Connections). If it ran, ask for the " +
  "right to read it.";

/** Time alone makes somebody late, and the stream is of one deployment. */
const EVERY = 30_000;

interface Props {
  deployment: string;
  /** Only those that it has jobs in. */
  dag: string | null;
  live: Live;
  /** What is said if there are none. */
  none?: string;
}

/** All topologies of a deployment, or of a DAG, the worst first. */
export function Topologies({ deployment, dag, live, none = NOTHING }: Props) {
  const [place, go] = usePlace();
  const { health, filter } = place;
  const asks = `${health} ${filter}`;
  const [paged, setPaged] = useState<{ asks: string; pages: (string | null)[] }>({ asks, pages: [null] });
  const pages = paged.asks === asks ? paged.pages : [null];
  const after = pages[pages.length - 1] ?? null;
  const asked = useAsked<Answer>(
    address(["deployments", deployment, "topologies"], { after, dag, health, name: filter }),
  );
  const { answer, problem, again } = asked;
  useChanges(live, null, again);
  useEvery(asked, EVERY);
  const narrowed = health !== null || filter !== null;
  const turn = (to: (string | null)[]) => setPaged({ asks, pages: to });

  return (
    <>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && <Loading />}
      {answer && (narrowed || total(answer.counts) > 1) && (
        <div className="line">
          <Counts counts={answer.counts} place={{ ...place, deployment }} />
          <FilterBox value={filter ?? ""} change={(to) => go({ ...place, deployment, filter: to }, true)} of="a topology, job or table" />
        </div>
      )}
      {answer?.topologies.length === 0 && after === null && (narrowed || none !== "") && (
        <Empty>{narrowed ? "None is so, or has that in its name: change the filter." : none}</Empty>
      )}
      <ul className="cards">
        {answer?.topologies.map((each) => (
          <Card key={each.topology} deployment={deployment} topology={each} filter={filter ?? ""} />
        ))}
      </ul>
      <div className="pager">
        {pages.length > 1 && <button onClick={() => turn(pages.slice(0, -1))}>Topologies before these</button>}
        {answer?.after != null && <button onClick={() => turn([...pages, answer.after])}>More topologies</button>}
      </div>
    </>
  );
}

/** How many there are of each health; each is a filter. */
function Counts({ counts, place }: { counts: Answer["counts"]; place: Place }) {
  return (
    <nav className="line" aria-label="By health">
      <Link to={{ search: search({ ...place, health: null }) }} aria-current={place.health === null ? "true" : undefined}>
        {count(total(counts), "topology", "topologies")}
      </Link>
      {Object.entries(counts).map(([health, number]) => (
        <Link
          key={health}
          className={`pill ${health}`}
          to={{ search: search({ ...place, health }) }}
          aria-current={place.health === health ? "true" : undefined}
        >
          {number} {HEALTH[health as Health].word}
        </Link>
      ))}
    </nav>
  );
}

function Card({ deployment, topology, filter }: { deployment: string; topology: TopologySummary; filter: string }) {
  const to = { deployment, topology: topology.topology };
  // what was looked for is one of its jobs or tables
  const within = topology.topology.toLowerCase().includes(filter.toLowerCase()) ? null : filter;
  return (
    <li className={`card ${topology.health}`}>
      <div className="line">
        <h3>
          <Link to={{ search: search({ ...to, filter: within }) }}>{topology.topology}</Link>
        </h3>
        <HealthMark topology={topology} />
      </div>
      <p className="big">
        {topology.readable === null ? (
          "Nothing to read yet"
        ) : (
          <>
            Barrier {topology.readable.barrier_id}, <Age time={topology.readable.timestamp} objective={topology.objective} />
          </>
        )}
      </p>
      {topology.failed.length + topology.late.length + topology.failing.length > 0 && (
        <Trouble deployment={deployment} topology={topology} shown={1} />
      )}
      <div className="line">
        <span className="dots">
          {topology.recent.map((barrier) => {
            const { mark, className } = BARRIERS[barrier.state] ?? { mark: "?", className: "pending" };
            return (
              <Link
                key={barrier.barrier_id}
                className={`dot ${className}`}
                title={barrierSaid(barrier)}
                aria-label={barrierSaid(barrier)}
                to={{ search: search({ ...to, barrier: String(barrier.barrier_id) }) }}
              >
                {mark}
              </Link>
            );
          })}
        </span>
        <span className="dim">
          {topology.open} open · {count(topology.tables, "table")} · {count(topology.dags.length, "DAG")}
          {topology.revision !== null && (
            <>
              {" · "}
              <UnderWay deployment={deployment} topology={topology} />
            </>
          )}
        </span>
      </div>
      <Hidden dags={topology.hidden_dags} />
    </li>
  );
}

export function UnderWay({ deployment, topology: { topology, revision } }: { deployment: string; topology: TopologySummary }) {
  return <Link to={{ search: search({ deployment, topology, revision: String(revision) }) }}>revision {revision} is under way</Link>;
}

export function HealthMark({ topology }: { topology: Pick<TopologySummary, "health"> }) {
  const { mark, word } = HEALTH[topology.health];
  return (
    <span className={`pill ${topology.health}`}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}
