import { useEffect, useRef } from "react";
import { Link } from "react-router-dom";

import { Buttons, useActing } from "./Action";
import { Age } from "./Age";
import { address } from "./api";
import { useAsked } from "./asked";
import { duration, fullTime } from "./clock";
import { Gantt } from "./Gantt";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { Attempt, BarrierDetail, TableAtBarrier } from "./model";
import { Reading } from "./Reading";
import { Section } from "./Section";
import { Hidden, Loading, Problem } from "./Told";
import { HealthMark } from "./Topologies";
import { taskAddress, Trouble } from "./Trouble";
import { attemptSaid, CELLS, count } from "./words";

interface Props {
  deployment: string;
  topology: string;
  barrier: string;
  live: Live;
  /** Of a task: what is theirs stands first, and is marked. */
  jobs?: string[];
}

const NO_JOBS: string[] = [];

/** All there is to know of one barrier. */
export function Barrier({ deployment, topology, barrier, live, jobs = NO_JOBS }: Props) {
  const at = ["deployments", deployment, "topologies", topology, "barriers", barrier];
  const { answer, problem, again } = useAsked<BarrierDetail>(address(at));
  useChanges(live, topology, again);
  const acting = useActing(again);
  const heading = useRef<HTMLHeadingElement>(null);
  // who came by the keyboard goes on from here, not from the top of the page
  useEffect(() => {
    heading.current?.focus();
  }, []);
  return (
    <article>
      <h3 ref={heading} tabIndex={-1}>
        Barrier {barrier}
        {answer && <span className={`pill state ${answer.state}`}>{answer.state}</span>}
      </h3>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && <Loading />}
      {acting.shown}
      {answer && <Head deployment={deployment} barrier={answer} />}
      {/* after the ways to mend it; another reason: other tables are in the way */}
      {answer && <Buttons key={answer.reason} actions={answer.actions} at={at} choose={acting.choose} />}
      {answer && <Detail deployment={deployment} barrier={answer} live={live} jobs={jobs} />}
    </article>
  );
}

/** How it is, who has failed or is late there since when, and what it is. */
function Head({ deployment, barrier }: { deployment: string; barrier: BarrierDetail }) {
  return (
    <>
      {barrier.failed.length + barrier.late.length > 0 && (
        <div className="line">
          <HealthMark topology={barrier} />
          <Trouble deployment={deployment} topology={barrier} here />
        </div>
      )}
      {barrier.reason && <p className={barrier.state === "COMMIT" ? "" : "warn"}>{barrier.reason}</p>}
      {barrier.expiring_at !== null && (
        <p className="warn">Expired {fullTime(barrier.expiring_at)}: it cannot be read any more.</p>
      )}
      <dl className="facts">
        <div>
          <dt>Timestamp</dt>
          <dd>
            <b title={barrier.opening}>{fullTime(barrier.timestamp)}</b>
            {barrier.seconds !== null && <span className="dim">{duration(barrier.seconds)} until it was readable</span>}
          </dd>
        </div>
        <div>
          <dt>{barrier.commit_at ? "Readable" : "Opened"}</dt>
          <dd>
            <b>
              <Age time={barrier.commit_at ?? barrier.opened_at} />
            </b>
          </dd>
        </div>
        <div>
          <dt>Opened by</dt>
          <dd>
            {barrier.dag_id !== null && barrier.run_id !== null ? (
              <Link to={`/dags/${encodeURIComponent(barrier.dag_id)}/runs/${encodeURIComponent(barrier.run_id)}`}>
                {barrier.dag_id}: {barrier.run_id}
              </Link>
            ) : (
              <span className="dim">{barrier.opening}</span>
            )}
          </dd>
        </div>
        {barrier.revision > 0 && (
          <div>
            <dt>Revision</dt>
            <dd>
              <b>{barrier.revision}</b>
            </dd>
          </div>
        )}
        {barrier.kind !== "EPOCH" && (
          <div>
            <dt>Kind</dt>
            <dd>
              <b>{barrier.kind}</b>
            </dd>
          </div>
        )}
      </dl>
      <Hidden dags={barrier.hidden_dags} />
    </>
  );
}

type Of = { deployment: string; barrier: BarrierDetail; live: Live; jobs: string[] };

function Detail({ deployment, barrier, live, jobs }: Of) {
  const isMine = ({ job }: { job: string | null }) => job !== null && jobs.includes(job);
  const mineFirst = <T extends { job: string | null }>(rows: T[]) =>
    [...rows].sort((one, other) => Number(isMine(other)) - Number(isMine(one)));
  return (
    <>
      {barrier.state !== "ABORTED" && <Gantt deployment={deployment} barrier={barrier} live={live} />}
      <Section title="Tables" columns={["table", "job", "state", "staged", "readable"]}>
        {mineFirst(barrier.tables).map((table) => (
          <Table key={table.table} topology={barrier.topology} table={table} mine={isMine(table)} />
        ))}
      </Section>
      {barrier.attempts.length > 0 && (
        <Section title="Attempts" columns={["attempt", "job", "DAG", "state", "asked for", "ran", "why it ended, or waits"]}>
          {mineFirst(barrier.attempts).map((attempt) => (
            <Tried key={attempt.attempt_id} attempt={attempt} mine={isMine(attempt)} />
          ))}
        </Section>
      )}
      {barrier.cuts.length > 0 && (
        <Section title="Sources" columns={["source", "read up to"]}>
          {barrier.cuts.map((cut) => (
            <tr key={cut.source}>
              <th scope="row">{cut.source}</th>
              <td>{cut.put_off ?? cut.summary}</td>
            </tr>
          ))}
        </Section>
      )}
      {barrier.deliveries.length > 0 && (
        <Section title="Deliveries" columns={["sink", "rows", "took", "delivered"]}>
          {barrier.deliveries.map((delivery) => (
            <tr key={`${delivery.sink} ${delivery.revision}`}>
              <th scope="row">{delivery.sink}</th>
              <td>
                {count(delivery.inserted, "insert")}, {count(delivery.updated, "update")}, {count(delivery.deleted, "delete")}
              </td>
              <td>{duration(delivery.seconds)}</td>
              <td>{fullTime(delivery.delivered_at)}</td>
            </tr>
          ))}
        </Section>
      )}
      <Reading deployment={deployment} barrier={barrier} />
    </>
  );
}

function Table({ topology, table, mine }: { topology: string; table: TableAtBarrier; mine: boolean }) {
  const { mark, means } = CELLS[table.state];
  // of which Airflow's UI has events, and what runs by it
  const asset = `/assets?${new URLSearchParams({ name_pattern: `barrier://${topology}/${encodeURIComponent(table.table)}` })}`;
  return (
    <tr>
      <th scope="row">
        {table.table}{" "}
        <Link className="small dim" to={asset} aria-label={`Asset of ${table.table}`}>
          asset
        </Link>
      </th>
      <Job job={table.job} mine={mine} />
      <td>
        <span className={`cell ${table.state}`} aria-hidden="true">
          {mark}
        </span>{" "}
        {table.unchanged_since === null ? means : `unchanged since barrier ${table.unchanged_since}`}
        {table.waits && `: ${table.waits}`}
      </td>
      <td>{table.processed_at && fullTime(table.processed_at)}</td>
      <td>{table.written_at && fullTime(table.written_at)}</td>
    </tr>
  );
}

function Tried({ attempt, mine }: { attempt: Attempt; mine: boolean }) {
  const end = attempt.processed_at ?? attempt.ended_at;
  const ran = attempt.started_at && end ? (Date.parse(end) - Date.parse(attempt.started_at)) / 1_000 : null;
  const waits = attempt.started_at === null && end === null && attempt.waits_for.length > 0;
  return (
    <tr>
      <th scope="row">{attempt.attempt_id}</th>
      <Job job={attempt.job} mine={mine} />
      <td>
        <Link to={`/dags/${encodeURIComponent(attempt.dag)}`}>{attempt.dag}</Link>
      </td>
      <td>
        {attemptSaid(attempt.state)}
        {attempt.task && attempt.state === "ABORTED" && (
          <>
            {" · "}
            <Link to={taskAddress(attempt.task)} aria-label={`Log of attempt ${attempt.attempt_id}`}>
              Log
            </Link>
          </>
        )}
      </td>
      <td>{fullTime(attempt.requested_at)}</td>
      <td>{ran !== null ? duration(ran) : attempt.started_at && <Since time={attempt.started_at} />}</td>
      <td>{attempt.reason ?? (waits && `waits for ${attempt.waits_for.join(", ")}`)}</td>
    </tr>
  );
}

function Job({ job, mine }: { job: string | null; mine: boolean }) {
  return <td>{mine ? <b>{job} (this task)</b> : job}</td>;
}

function Since({ time }: { time: string }) {
  return (
    <>
      since <Age time={time} />
    </>
  );
}
