import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { Answered } from "./Answered";
import { linkedLast, linksOf } from "./api";
import type { Asked } from "./asked";
import { useAsked } from "./asked";
import { Barrier } from "./Barrier";
import { fullTime } from "./clock";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { Run, RunBarrier } from "./model";
import { search } from "./place";
import { Section } from "./Section";
import { Empty, Loading } from "./Told";
import { Topologies } from "./Topologies";

const NOTHING =
  "This run has neither opened a barrier nor tried a job of one: its barrier appears here once a task of its BarrierGroup " +
  "has begun, and a member's once another DAG has opened it. If the DAG has no such group, put its Spark jobs into one.";
const NOTHING_OF_TASK =
  "This task works for no barrier so far: it appears here once the task has begun, if it is one of a BarrierGroup. The " +
  "tab of the run says what the others do.";

/** Airflow is asked for links at most once in so many milliseconds. */
const EVERY = 5_000;

interface OfRunProps {
  dagId: string;
  runId: string;
  deployments: string[];
  run: Asked<Run>;
  live: Live;
}

/** The barriers that a run opened or worked for, and the revisions that it is part of. */
export function OfRun({ run, ...props }: OfRunProps) {
  useChanges(props.live, null, run.again);
  return (
    <Answered asked={run}>
      {(found) =>
        found.barriers.length + found.revisions.length > 0 ? <Found found={found} live={props.live} /> : <Untried {...props} />
      }
    </Answered>
  );
}

/** Of a run whose tasks have tried nothing themselves, as another run has done it for them: the barrier that one of
 * them links to. If none does: what the run's DAG has jobs in. */
function Untried({ dagId, runId, deployments, live }: Omit<OfRunProps, "run">) {
  const linked = useAsked<{ xcom_entries: { task_id: string; map_index: number }[] }>(linkedLast(dagId, runId), EVERY);
  const last = linked.answer?.xcom_entries[0];
  const links = useAsked<Links>(last ? linksOf(dagId, runId, last.task_id, last.map_index) : null, EVERY);
  useChanges(live, null, linked.again);
  useChanges(live, null, links.again);
  if ((linked.answer ?? linked.problem) === null || (last && (links.answer ?? links.problem) === null)) {
    return <Loading />;
  }
  return (
    <Linked links={links.answer} live={live} who="this run">
      <Empty>{NOTHING}</Empty>
      {deployments.map((deployment) => (
        <Topologies key={deployment} deployment={deployment} dag={dagId} live={live} none="" />
      ))}
    </Linked>
  );
}

interface OfTaskProps extends Omit<OfRunProps, "deployments"> {
  taskId: string;
  mapIndex: number;
}

/** The barriers that a task has attempts at; or the one that it links to, as every task of ours does. */
export function OfTask({ dagId, runId, taskId, mapIndex, run, live }: OfTaskProps) {
  const { answer } = run;
  const barriers =
    answer?.barriers
      .map((each) => ({
        ...each,
        tasks: each.tasks.filter((task) => task.task_id === taskId && task.map_index === mapIndex),
      }))
      .filter(({ tasks }) => tasks.length > 0) ?? [];
  const none = answer !== null && barriers.length === 0;
  const links = useAsked<Links>(none ? linksOf(dagId, runId, taskId, mapIndex) : null);
  useChanges(live, null, run.again);
  useChanges(live, null, links.again);
  return (
    <Answered asked={run}>
      {(found) =>
        none ? (
          <Answered asked={links}>
            {(told) => (
              <Linked links={told} live={live} who="this task">
                <Empty>{NOTHING_OF_TASK}</Empty>
              </Linked>
            )}
          </Answered>
        ) : (
          <Found found={{ barriers, revisions: found.revisions }} live={live} ofTask />
        )
      }
    </Answered>
  );
}

/** What our links of tasks are called. */
const LINK = "Barrier";

interface Links {
  extra_links: Record<string, string | null>;
}

/** What ``who`` links to, or ``children``. */
function Linked({ links, live, who, children }: { links: Links | null; live: Live; who: string; children: ReactNode }) {
  const query = new URL(links?.extra_links[LINK] ?? "", document.baseURI).searchParams;
  const [deployment, topology, barrier, revision] = ["deployment", "topology", "barrier", "revision"].map((name) => query.get(name));
  if (!deployment || !topology || !(barrier || revision)) {
    return <>{children}</>;
  }
  return barrier ? (
    <Alone deployment={deployment} topology={topology} barrier={barrier} live={live} said={`the barrier that ${who} is for`} />
  ) : (
    <p>
      What {who} is for is <Link to={{ search: search({ deployment, topology, revision: revision ?? null }) }}>revision {revision}</Link> of{" "}
      {topology}.
    </p>
  );
}

type AloneProps = { deployment: string; topology: string; barrier: string; live: Live; said: string; jobs?: string[] };

function Alone({ said, ...of }: AloneProps) {
  const { deployment, topology } = of;
  return (
    <>
      <p>
        Topology <Link to={{ search: search({ deployment, topology }) }}>{topology}</Link>: {said}.
      </p>
      <Barrier key={`${deployment} ${topology} ${of.barrier}`} {...of} />
    </>
  );
}

function Found({ found: { barriers, revisions }, live, ofTask = false }: { found: Run; live: Live; ofTask?: boolean }) {
  const [only, ...others] = barriers;
  return (
    <>
      {others.length > 0 && (
        <Section below="page" title="Barriers" columns={["barrier", "topology", "state", "timestamp", "what this run does for it"]}>
          {barriers.map((each) => (
            <tr key={`${each.deployment} ${each.topology} ${each.barrier_id}`}>
              <th scope="row">
                <Link to={{ search: search({ ...whereabouts(each), barrier: String(each.barrier_id) }) }}>{each.barrier_id}</Link>
              </th>
              <td>{each.topology}</td>
              <td>{each.state}</td>
              <td>{fullTime(each.timestamp)}</td>
              <td>{doneSaid(each)}</td>
            </tr>
          ))}
        </Section>
      )}
      {revisions.length > 0 && (
        <Section below="page" title="Revisions" columns={["revision", "topology", "barrier"]}>
          {revisions.map((each) => (
            <tr key={`${each.deployment} ${each.topology} ${each.revision}`}>
              <th scope="row">
                <Link to={{ search: search({ ...whereabouts(each), revision: String(each.revision) }) }}>{each.revision}</Link>
              </th>
              <td>{each.topology}</td>
              <td>{each.barrier_id ?? "one after those that were asked for"}</td>
            </tr>
          ))}
        </Section>
      )}
      {only !== undefined && others.length === 0 && (
        <Alone
          {...whereabouts(only)}
          barrier={String(only.barrier_id)}
          live={live}
          said={ofTask ? `this task has tried ${jobsOf(only).join(", ")}` : doneSaid(only)}
          jobs={ofTask ? jobsOf(only) : []}
        />
      )}
    </>
  );
}

function whereabouts({ deployment, topology }: { deployment: string; topology: string }) {
  return { deployment, topology };
}

function jobsOf({ tasks }: RunBarrier): string[] {
  return [...new Set(tasks.map(({ job }) => job))];
}

function doneSaid(barrier: RunBarrier): string {
  const jobs = jobsOf(barrier).join(", ");
  return [barrier.opened && "this run opened the barrier", jobs && `it has tried ${jobs}`].filter(Boolean).join("; ");
}
