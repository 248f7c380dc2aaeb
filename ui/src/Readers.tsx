import { useState } from "react";
import { Link } from "react-router-dom";

import { Buttons, useActing } from "./Action";
import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import { duration, fullTime, secondsSince, useNow } from "./clock";
import { Choice, Connecting } from "./Connecting";
import { useEvery } from "./every";
import { useChanges } from "./LiveMark";
import type { Lease, Topology } from "./model";
import { search } from "./place";
import { Section } from "./Section";
import { Empty } from "./Told";
import type { ViewProps } from "./View";
import { count } from "./words";

const EVERY = 5_000;
const LEVELS = ["repeatable read", "read committed", "read uncommitted"];

/** How to become a reader, and who holds which barriers, and until when. */
export function Readers({ deployment, topology, live }: ViewProps) {
  const at = ["deployments", deployment, "topologies", topology, "leases"];
  const asked = useAsked<{ leases: Lease[] }>(address(at));
  useChanges(live, topology, asked.again);
  // who begins to read changes nothing that the stream tells of
  useEvery(asked, EVERY);
  const acting = useActing(asked.again);
  const now = useNow();
  const to = (barrier: number) => ({ search: search({ deployment, topology, barrier: String(barrier) }) });
  return (
    <>
      <Connect deployment={deployment} topology={topology} />
      {acting.shown}
      <Answered asked={asked}>
        {({ leases: found }) => {
          // one that has ended holds nothing, whether it was told again or not
          const leases = found
            .filter((each) => Date.parse(each.expires_at) > now)
            .sort((one, other) => one.barrier_id - other.barrier_id);
          const [oldest] = leases;
          const mayAct = leases.some(({ actions }) => actions.length > 0);
          return oldest === undefined ? (
            <Empty>Nobody holds a barrier now: whoever reads with a hold is listed here, until it is released or ends.</Empty>
          ) : (
            <Section
              below="page"
              title="Readers"
              columns={["holds barrier", "until, unless renewed", "who", "since", "held up in expiring", ...(mayAct ? ["what you may do"] : [])]}
              above={
                <p>
                  {count(leases.length, "reader")} {leases.length === 1 ? "keeps" : "keep"} barriers from being expired; the
                  oldest is barrier {oldest.barrier_id}.
                </p>
              }
            >
              {leases.map((each) => (
                <tr key={each.lease_id}>
                  <th scope="row">
                    <Link to={to(each.barrier_id)}>{each.barrier_id}</Link>
                    {each.through_id !== each.barrier_id && (
                      <>
                        {" "}
                        to <Link to={to(each.through_id)}>{each.through_id}</Link>
                      </>
                    )}
                  </th>
                  <td title={fullTime(each.expires_at)}>in {duration(-secondsSince(each.expires_at, now))}</td>
                  <td>
                    {each.holder ?? <span className="dim">told to who may read all of its DAGs</span>}
                    {each.rolled_back && <span className="warn"> What it read was staged anew or given up since.</span>}
                  </td>
                  <td>{fullTime(each.granted_at)}</td>
                  <td>{each.holds_up === 0 ? "none so far" : count(each.holds_up, "barrier")}</td>
                  {mayAct && (
                    <td>
                      <Buttons actions={each.actions} at={[...at, String(each.lease_id)]} choose={acting.choose} />
                    </td>
                  )}
                </tr>
              ))}
            </Section>
          );
        }}
      </Answered>
    </>
  );
}

function Connect({ deployment, topology }: { deployment: string; topology: string }) {
  const { answer } = useAsked<Topology>(address(["deployments", deployment, "topologies", topology]));
  const [level, choose] = useState("repeatable read");
  const tables = answer?.jobs.flatMap((job) => job.outlets) ?? [];
  return tables.length === 0 ? null : (
    <section aria-labelledby="barriers-connect">
      <h3 id="barriers-connect">Connect</h3>
      <p>
        An engine stays at the barrier that was the newest when it connected, until it connects anew; at read uncommitted it
        reads the newest of each table. Trino never connects anew: give it one barrier, by <i>Read it</i> on its page.
      </p>
      <Connecting deployment={deployment} warehouse={`${topology}@${level.replace(" ", "_")}`} tables={tables}>
        <Choice what="Consistency" among={LEVELS} value={level} choose={choose} />
      </Connecting>
    </section>
  );
}
