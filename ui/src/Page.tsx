import { Link } from "react-router-dom";

import { address } from "./api";
import { useAsked } from "./asked";
import { Barrier } from "./Barrier";
import { useEvery } from "./every";
import { LiveMark, useStream } from "./LiveMark";
import type { Deployments, Run } from "./model";
import { search, usePlace } from "./place";
import { OfRun, OfTask } from "./Run";
import { STYLE } from "./style";
import { Tabs } from "./Tabs";
import { Empty, Loading, Problem, Unanswered } from "./Told";
import { NOTHING, Topologies } from "./Topologies";
import { View } from "./View";

/** No stream says that a deployment is made, or answers again. */
const EVERY = 30_000;
const NOTHING_OF_DAG =
  "This DAG has no job in a topology of any deployment: put its jobs into a BarrierGroup, and run it once.";

/** Of what it is a tab, as Airflow says it. */
export interface Host {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

/** What Airflow's UI shows at /plugin/barriers, and as a tab of a DAG, a run or a task in a run. */
export function Page({ dagId, runId, taskId, mapIndex }: Host) {
  const [place, go] = usePlace();
  const ofRun = dagId !== undefined && runId !== undefined ? { dagId, runId } : null;
  const ofDag = dagId !== undefined && runId === undefined ? dagId : null;
  const deployments = useAsked<Deployments>(address(["deployments"], { dag: ofDag }));
  useEvery(deployments, EVERY);
  const { answer, problem, again } = deployments;
  const all = answer?.deployments.map((each) => each.deployment) ?? [];
  const run = useAsked<Run>(ofRun && address(["dags", ofRun.dagId, "runs", ofRun.runId]));
  const found = run.answer?.barriers[0] ?? run.answer?.revisions[0];
  // a link names its deployment, and works while the list of them is on its way
  const deployment = place.deployment ?? found?.deployment ?? all[0] ?? null;
  const choices = deployment === null || all.includes(deployment) ? all : [...all, deployment];
  const live = useStream(deployment);
  const { topology, barrier, revision } = place;
  const view = revision !== null ? "revisions" : place.view;

  return (
    <main className="barriers">
      <style>{STYLE}</style>
      <header className="line">
        <nav aria-label="Where you are">
          <h2>
            {topology === null ? (
              "Barriers"
            ) : (
              <>
                <Link to={{ search: search({ deployment }) }}>Barriers</Link> ›{" "}
                {barrier === null && revision === null ? (
                  topology
                ) : (
                  <Link to={{ search: search({ ...place, view, deployment, barrier: null, revision: null }) }}>{topology}</Link>
                )}
              </>
            )}
          </h2>
        </nav>
        {choices.length > 1 && dagId === undefined && (
          <label>
            Deployment{" "}
            <select value={deployment ?? ""} onChange={(event) => go({ deployment: event.target.value })}>
              {choices.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
        )}
        {deployment !== null && <LiveMark {...live} />}
      </header>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && deployment === null && <Loading />}
      {answer && <Unanswered deployments={answer.failed} />}
      {answer?.failed.length === 0 && deployment === null && <Empty>{ofDag === null ? NOTHING : NOTHING_OF_DAG}</Empty>}
      {deployment !== null && topology === null && ofRun !== null && taskId === undefined && (
        <OfRun {...ofRun} deployments={all} run={run} live={live} />
      )}
      {deployment !== null && topology === null && ofRun !== null && taskId !== undefined && (
        <OfTask {...ofRun} taskId={taskId} mapIndex={Number(mapIndex ?? -1)} run={run} live={live} />
      )}
      {topology === null &&
        ofDag !== null &&
        all.map((each) => (
          <section key={each} aria-label={each}>
            {all.length > 1 && <b>{each}</b>}
            <Topologies deployment={each} dag={ofDag} live={live} />
          </section>
        ))}
      {deployment !== null && topology === null && dagId === undefined && (
        <Topologies key={deployment} deployment={deployment} dag={null} live={live} />
      )}
      {deployment !== null && topology !== null && barrier === null && (
        <>
          <Tabs deployment={deployment} topology={topology} view={view} />
          <View
            key={`${deployment} ${topology}`}
            deployment={deployment}
            topology={topology}
            live={live}
            place={{ ...place, view }}
            go={go}
          />
        </>
      )}
      {deployment !== null && topology !== null && barrier !== null && (
        <Barrier
          key={`${deployment} ${topology} ${barrier}`}
          deployment={deployment}
          topology={topology}
          barrier={barrier}
          live={live}
        />
      )}
    </main>
  );
}
