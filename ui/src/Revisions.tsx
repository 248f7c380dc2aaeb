import { Link, useLocation } from "react-router-dom";

import { Buttons, Outcome, useActing } from "./Action";
import { Age } from "./Age";
import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import { fullTime } from "./clock";
import { useChanges } from "./LiveMark";
import type { Revision as One, RevisionDetail, RevisionMissing, Revisions as Answer } from "./model";
import { Names } from "./Names";
import { search } from "./place";
import { Section } from "./Section";
import { Empty, Hidden } from "./Told";
import type { ViewProps } from "./View";
import { count } from "./words";

const MEANS: Record<One["state"], string> = {
  STAGING: "its barriers are computed again; readers have what was",
  COMMITTING: "it is being published",
  COMMIT: "readers have it",
  CANCELLED: "it was given up",
};

/** Barriers that are told at once; the others are folded away. */
const AT_ONCE = 5;

/** What was computed again, and why. */
export function Revisions({ deployment, topology, live, place }: ViewProps) {
  const { before } = place;
  const asked = useAsked<Answer>(
    address(["deployments", deployment, "topologies", topology, "revisions"], { before }),
  );
  useChanges(live, topology, asked.again);
  const here = { deployment, topology, view: "revisions" };
  return (
    <Answered asked={asked}>
      {({ revisions, before: older }) => (
        <>
          {revisions.length === 0 ? (
            <Empty>
              {before === null
                ? "Nothing was computed again yet: once input or code was corrected, open the first barrier that is wrong, and correct from there."
                : "There are no older revisions: go back to the newest."}
            </Empty>
          ) : (
            <Section below="page" title="Revisions" columns={["revision", "state", "from barrier", "begun", "by", "why"]}>
              {revisions.map((each) => (
                <tr key={each.revision}>
                  <th scope="row">
                    <Link to={{ search: search({ ...here, revision: String(each.revision) }) }}>{each.revision}</Link>
                  </th>
                  <td title={MEANS[each.state]}>{each.state}</td>
                  <td>{each.first_barrier}</td>
                  <td>{fullTime(each.created_at)}</td>
                  <td>{each.actor}</td>
                  <td>{each.reason}</td>
                </tr>
              ))}
            </Section>
          )}
          <nav className="pager" aria-label="Revisions">
            {before !== null && <Link to={{ search: search(here) }}>Newest</Link>}
            {older !== null && <Link to={{ search: search({ ...here, before: String(older) }) }}>Older →</Link>}
          </nav>
        </>
      )}
    </Answered>
  );
}

/** One revision: why it is, and how far. */
export function Revision({ deployment, topology, live, revision }: ViewProps & { revision: string }) {
  const at = ["deployments", deployment, "topologies", topology, "revisions", revision];
  const asked = useAsked<RevisionDetail>(address(at));
  useChanges(live, topology, asked.again);
  const acting = useActing(asked.again);
  // what the page said that began it
  const { state } = useLocation() as { state: { said?: string } | null };
  return (
    <article>
      <h3>
        Revision {revision}
        {asked.answer && <span className={`pill state ${asked.answer.state}`}>{asked.answer.state}</span>}
      </h3>
      {state?.said && <Outcome>{state.said}</Outcome>}
      {acting.shown}
      {asked.answer && <Buttons actions={asked.answer.actions} at={at} choose={acting.choose} />}
      <Answered asked={asked}>
        {(found) => <Detail found={found} to={(barrier) => search({ deployment, topology, barrier: String(barrier) })} />}
      </Answered>
    </article>
  );
}

function Missing({ missing, to }: { missing: RevisionMissing[]; to: (barrier: number) => string }) {
  const [first, others] = [missing.slice(0, AT_ONCE), missing.slice(AT_ONCE)];
  const list = (some: RevisionMissing[]) => (
    <ul className="missing">
      {some.map(({ barrier_id: id, timestamp, tables, why }) => (
        <li key={id}>
          <Link to={{ search: to(id) }}>Barrier {id}</Link> <span className="dim">{fullTime(timestamp)}</span>{" "}
          {why || (
            <>
              lacks {count(tables.length, "table")}: <Names names={tables} />
            </>
          )}
        </li>
      ))}
    </ul>
  );
  return (
    <section aria-labelledby="barriers-missing">
      <h4 id="barriers-missing">What is missing</h4>
      {list(first)}
      {others.length > 0 && (
        <details>
          <summary>and at {count(others.length, "more barrier")}</summary>
          {list(others)}
        </details>
      )}
    </section>
  );
}

function Detail({ found, to }: { found: RevisionDetail; to: (barrier: number) => string }) {
  const ended = found.commit_at ?? found.cancelled_at;
  const isUnderWay = found.state === "STAGING" || found.state === "COMMITTING";
  return (
    <>
      <p>
        {found.reason !== null && `${found.reason}: `}
        {MEANS[found.state]}.{found.gated && isUnderWay && " No barrier opens until it is published."}
      </p>
      <dl className="facts">
        <div>
          <dt>Begun</dt>
          <dd>
            <b>{fullTime(found.created_at)}</b>
            {found.actor !== null && <span className="dim">by {found.actor}</span>}
          </dd>
        </div>
        {ended !== null && (
          <div>
            <dt>{found.commit_at === null ? "Given up" : "Published"}</dt>
            <dd>
              <b>
                <Age time={ended} />
              </b>
            </dd>
          </div>
        )}
        <div>
          <dt>Barriers</dt>
          <dd>
            <b>from {found.first_barrier} on</b>
            <span className="dim">
              asked for up to {found.window_end}; {found.mode}
            </span>
          </dd>
        </div>
        <div>
          <dt>Tables</dt>
          <dd>
            <Names names={found.tables} />
          </dd>
        </div>
      </dl>
      <Hidden dags={found.hidden_dags} />
      {isUnderWay && found.missing.length > 0 && (
        <Missing missing={found.missing} to={to} />
      )}
      {found.runs.length > 0 && (
        <Section title="Runs that compute it" columns={["run", "DAG", "barrier", "came"]}>
          {found.runs.map(({ dag_id: dag, run_id: run, barrier_id: barrier, arrived_at: came }) => (
            <tr key={`${dag} ${run}`}>
              <th scope="row">
                <Link to={`/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`}>{run}</Link>
              </th>
              <td>{dag}</td>
              <td>{barrier ?? "those after"}</td>
              <td>{came === null ? "woken, not yet" : fullTime(came)}</td>
            </tr>
          ))}
        </Section>
      )}
      {found.barriers.length > 0 && (
        <Section title="Its barriers" columns={["barrier", "timestamp", "state", "jobs"]}>
          {found.barriers.map(({ barrier_id: id, timestamp, state, jobs }) => (
            <tr key={id}>
              <th scope="row">
                <Link to={{ search: to(id) }}>{id}</Link>
              </th>
              <td>{fullTime(timestamp)}</td>
              <td>{state}</td>
              <td>
                <Names names={Object.entries(jobs).map(([job, summary]) => `${job}: ${summary}`)} />
              </td>
            </tr>
          ))}
        </Section>
      )}
    </>
  );
}
