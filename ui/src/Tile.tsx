import { Link } from "react-router-dom";

import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import { useEvery } from "./every";
import type { Deployments, Health, Topologies, TopologySummary } from "./model";
import { search } from "./place";
import { STYLE } from "./style";
import { Unanswered } from "./Told";
import { HealthMark } from "./Topologies";
import { Trouble } from "./Trouble";
import { count, total } from "./words";

/** No stream here: browsers have few connections, and everybody's first page would take one. */
const EVERY = 30_000;
const SHOWN = 5;
const WELL: readonly Health[] = ["ok", "empty"];
const PAGE = "/plugin/barriers";

/** What Airflow's dashboard says of barriers: a line per deployment, and what is not well. */
export function Tile() {
  const asked = useAsked<Deployments>(address(["deployments"]));
  useEvery(asked, EVERY);
  const all = asked.answer?.deployments ?? [];
  // whoever sees nothing of it has no tile
  return all.length === 0 && (asked.problem === null || asked.problem.status < 500) ? null : (
    <section className="barriers tile" aria-labelledby="barriers-tile">
      <style>{STYLE}</style>
      <h3 id="barriers-tile">
        <Link to={PAGE}>Barriers</Link>
      </h3>
      {asked.problem && <p className="warn">{asked.problem.message}</p>}
      {asked.answer && <Unanswered deployments={asked.answer.failed} />}
      {all.map(({ deployment }) => (
        <OfDeployment key={deployment} deployment={deployment} named={all.length > 1} />
      ))}
    </section>
  );
}

function OfDeployment({ deployment, named }: { deployment: string; named: boolean }) {
  const asked = useAsked<Topologies>(address(["deployments", deployment, "topologies"], { limit: SHOWN }));
  useEvery(asked, EVERY);
  const { answer, problem } = asked;
  // they come first
  const shown = answer?.topologies.filter(({ health }) => !WELL.includes(health)) ?? [];
  const { ok = 0, empty = 0, ...others } = answer?.counts ?? {};
  const ill = total(others);
  const all = count(ill + ok + empty, "topology", "topologies");
  return (
    <>
      {problem && <p className="warn">{problem.message}</p>}
      {answer && (
        <p>
          {named && <b>{deployment}: </b>}
          {ill === 0 ? `Of ${all}, all are well.` : `Of ${all}, ${ill} ${ill === 1 ? "is" : "are"} not well:`}
        </p>
      )}
      <ul>
        {shown.map((each) => (
          <Ill key={each.topology} deployment={deployment} topology={each} />
        ))}
        {ill > shown.length && <li className="dim">And {ill - shown.length} more.</li>}
      </ul>
    </>
  );
}

function Ill({ deployment, topology }: { deployment: string; topology: TopologySummary }) {
  return (
    <li>
      <div className="line">
        <HealthMark topology={topology} />
        <Link to={{ pathname: PAGE, search: search({ deployment, topology: topology.topology }) }}>{topology.topology}</Link>
        {topology.readable && (
          <span className="dim">
            Readers have barrier {topology.readable.barrier_id}, <Age time={topology.readable.timestamp} objective={topology.objective} />
          </span>
        )}
      </div>
      <Trouble deployment={deployment} topology={topology} shown={1} pathname={PAGE} />
    </li>
  );
}
