import { useState } from "react";
import { Link } from "react-router-dom";

import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { Topologies as Answer, TopologySummary } from "./model";
import { search } from "./place";
import { Empty, Hidden, Loading, Problem } from "./Told";
import { Trouble } from "./Trouble";
import { BARRIERS, HEALTH, barrierSaid, count } from "./words";

export const NOTHING =
  "Nothing is here that you may read: run a DAG that has a BarrierGroup once, and its topology appears; if it ran, ask " +
  "for the right to read it. Its deployment is a connection of type barrier, under Admin, Connections.";
const NOTHING_OF_DAG =
  "This DAG has no job in a topology of this deployment: put its jobs into a BarrierGroup, and run it once.";

interface Props {
  deployment: string;
  /** Only those that it has jobs in. */
  dag: string | null;
  live: Live;
  /** What is said if there are none. */
  none?: string;
}

/** All topologies of a deployment, or of a DAG. */
export function Topologies({ deployment, dag, live, none = dag === null ? NOTHING : NOTHING_OF_DAG }: Props) {
  const [pages, setPages] = useState<(string | null)[]>([null]);
  const last = pages[pages.length - 1] ?? null;
  const { answer, problem, again } = useAsked<Answer>(
    address(["deployments", deployment, "topologies"], { after: last, dag }),
  );
  useChanges(live, null, again);

  return (
    <>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && <Loading />}
      {answer?.topologies.length === 0 && last === null && none !== "" && <Empty>{none}</Empty>}
      <ul className="cards">
        {answer?.topologies.map((each) => <Card key={each.topology} deployment={deployment} topology={each} />)}
      </ul>
      <div className="pager">
        {pages.length > 1 && <button onClick={() => setPages(pages.slice(0, -1))}>Topologies before these</button>}
        {answer?.after != null && (
          <button onClick={() => setPages([...pages, answer.after])}>More topologies</button>
        )}
      </div>
    </>
  );
}

function Card({ deployment, topology }: { deployment: string; topology: TopologySummary }) {
  const to = { deployment, topology: topology.topology };
  return (
    <li className={`card ${topology.health}`}>
      <div className="line">
        <h3>
          <Link to={{ search: search(to) }}>{topology.topology}</Link>
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
        </span>
      </div>
      <Hidden dags={topology.hidden_dags} />
    </li>
  );
}

export function HealthMark({ topology }: { topology: Pick<TopologySummary, "health"> }) {
  const { mark, word } = HEALTH[topology.health];
  return (
    <span className={`pill ${topology.health}`}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}
