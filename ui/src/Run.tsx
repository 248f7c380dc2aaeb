import { Link } from "react-router-dom";

import { Answered } from "./Answered";
import { linksOf } from "./api";
import type { Asked } from "./asked";
import { useAsked } from "./asked";
import { Barrier } from "./Barrier";
import { fullTime } from "./clock";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { Run, RunBarrier } from "./model";
import { search } from "./place";
import { Section } from "./Section";
import { Empty } from "./Told";

const NOTHING =
  "This run has neither opened a barrier nor tried a job of one: its barrier appears here once the first task of its " +
  "BarrierGroup has begun. If the DAG has none, put its Spark jobs into one.";
const NOTHING_OF_TASK =
  "This task works for no barrier so far: it appears here once the task has begun, if it is one of a BarrierGroup. The " +
  "tab of the run says what the others do.";

/** The barriers that a run opened or worked for, and the revisions that it is part of. */
export function OfRun({ run, live }: { run: Asked<Run>; live: Live }) {
  useChanges(live, null, run.again);
  return <Answered asked={run}>{(found) => <Found found={found} live={live} />}</Answered>;
}

interface OfTaskProps {
  dagId: string;
  runId: string;
  taskId: string;
  mapIndex: number;
  run: Asked<Run>;
  live: Live;
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
  const links = useAsked<{ extra_links: Record<string, string | null> }>(
    none ? linksOf(dagId, runId, taskId, mapIndex) : null,
  );
  useChanges(live, null, run.again);
  useChanges(live, null, links.again);
  return (
    <Answered asked={run}>
      {(found) =>
        none ? (
          <Answered asked={links}>
            {(told) => <Linked link={told.extra_links[LINK]} live={live} />}
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

function Linked({ link, live }: { link: string | null | undefined; live: Live }) {
  const query = new URL(link ?? "", document.baseURI).searchParams;
  const [deployment, topology, barrier, revision] = ["deployment", "topology", "barrier", "revision"].map((name) => query.get(name));
  if (!deployment || !topology || !(barrier || revision)) {
    return <Empty>{NOTHING_OF_TASK}</Empty>;
  }
  return barrier ? (
    <Alone deployment={deployment} topology={topology} barrier={barrier} live={live} said="the barrier that this task is for" />
  ) : (
    <p>
      This task is for <Link to={{ search: search({ deployment, topology, revision: revision ?? null }) }}>revision {revision}</Link> of{" "}
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
  if (only === undefined && revisions.length === 0) {
    return <Empty>{NOTHING}</Empty>;
  }
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
