import { Link } from "react-router-dom";

import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import { useEvery } from "./every";
import type { Deployments, Health, Topologies, TopologySummary } from "./model";
import { search } from "./place";
import { STYLE } from "./style";
import { HealthMark } from "./Topologies";
import { Trouble } from "./Trouble";
import { count } from "./words";

/** No stream here: browsers have few connections, and everybody's first page would take one. */
const EVERY = 30_000;
/** As many as the API tells at once. */
const LOOKED_AT = 200;
const SHOWN = 5;
/** The worst first. */
const ILL: readonly Health[] = ["blocked", "failing", "retrying", "late"];
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
      {all.map(({ deployment }) => (
        <OfDeployment key={deployment} deployment={deployment} named={all.length > 1} />
      ))}
    </section>
  );
}

function OfDeployment({ deployment, named }: { deployment: string; named: boolean }) {
  const asked = useAsked<Topologies>(address(["deployments", deployment, "topologies"], { limit: LOOKED_AT }));
  useEvery(asked, EVERY);
  const { answer, problem } = asked;
  const found = answer?.topologies ?? [];
  const ill = ILL.flatMap((health) => found.filter((each) => each.health === health));
  const all = `${answer?.after == null ? "" : "the first "}${count(found.length, "topology", "topologies")}`;
  return (
    <>
      {problem && <p className="warn">{problem.message}</p>}
      {answer && (
        <p>
          {named && <b>{deployment}: </b>}
          {ill.length === 0 ? `Of ${all}, all are well.` : `Of ${all}, ${ill.length} ${ill.length === 1 ? "is" : "are"} not well:`}
        </p>
      )}
      <ul>
        {ill.slice(0, SHOWN).map((each) => (
          <Ill key={each.topology} deployment={deployment} topology={each} />
        ))}
        {ill.length > SHOWN && <li className="dim">And {ill.length - SHOWN} more.</li>}
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
