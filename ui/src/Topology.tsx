import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import { shortTime, useNow } from "./clock";
import { Grid } from "./Grid";
import { useChanges } from "./LiveMark";
import type { Sink, Topology as Answer } from "./model";
import { Hidden, Loading, Problem } from "./Told";
import { HealthMark, UnderWay } from "./Topologies";
import { Trouble } from "./Trouble";
import type { ViewProps } from "./View";

/** What readers have now, who is late, and the grid. */
export function Topology({ deployment, topology, live, place, go }: ViewProps) {
  const { answer, problem, again } = useAsked<Answer>(address(["deployments", deployment, "topologies", topology]));
  useChanges(live, topology, again);
  return (
    <>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && <Loading />}
      {answer && <Facts deployment={deployment} topology={answer} />}
      {(answer !== null || problem === null) && (
        <Grid deployment={deployment} topology={topology} live={live} place={place} go={go} />
      )}
      {answer && <Hidden dags={answer.hidden_dags} />}
    </>
  );
}

function Facts({ deployment, topology }: { deployment: string; topology: Answer }) {
  const now = useNow();
  const { readable, failed, late, failing, sinks } = topology;
  return (
    <>
      <div className="line">
        <HealthMark topology={topology} />
        {failed.length + late.length + failing.length > 0 ? (
          <Trouble deployment={deployment} topology={topology} />
        ) : (
          <span className="dim">Nobody is late.</span>
        )}
      </div>
      <dl className="facts">
        <div>
          <dt>Readers have (repeatable read)</dt>
          <dd>
            <b>{readable === null ? "nothing yet" : `${readable.barrier_id} · ${shortTime(readable.timestamp, now)}`}</b>
            {readable && <Age time={readable.timestamp} objective={topology.objective} />}
          </dd>
        </div>
        <div>
          <dt>Staged in all tables (read committed)</dt>
          <dd>
            <b>{topology.read_committed ?? "nothing yet"}</b>
          </dd>
        </div>
        <div>
          <dt>Open</dt>
          <dd>
            <b>{topology.open}</b>
            <span className="dim">
              {topology.recent
                .filter((barrier) => barrier.state === "OPEN" || barrier.state === "PRECOMMIT")
                .map((barrier) => barrier.barrier_id)
                .join(", ")}
            </span>
          </dd>
        </div>
        {topology.revision !== null && (
          <div>
            <dt>Computed again</dt>
            <dd>
              <UnderWay deployment={deployment} topology={topology} />
            </dd>
          </div>
        )}
        {sinks.length > 0 && (
          <div>
            <dt>Deliveries</dt>
            <dd>
              {sinks.map((sink) => (
                <Delivered key={sink.sink} sink={sink} />
              ))}
            </dd>
          </div>
        )}
      </dl>
    </>
  );
}

function Delivered({ sink }: { sink: Sink }) {
  const behind = sink.lacks > 0 ? `, ${sink.lacks} behind` : "";
  return (
    <span className={sink.error ? "bad" : ""} title={sink.error ?? undefined}>
      {sink.sink} {sink.barrier_id ?? "nothing yet"}
      {behind}
      {sink.error && `: ${sink.error}`}
    </span>
  );
}
