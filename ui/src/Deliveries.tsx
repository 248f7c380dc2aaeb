import { Link } from "react-router-dom";

import { Age } from "./Age";
import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import { useChanges } from "./LiveMark";
import type { Sink } from "./model";
import { Names } from "./Names";
import { search } from "./place";
import { Section } from "./Section";
import { Empty } from "./Told";
import type { ViewProps } from "./View";
import { count } from "./words";

/** What each sink was delivered, and what it lacks. */
export function Deliveries({ deployment, topology, live }: ViewProps) {
  const asked = useAsked<{ sinks: Sink[] }>(address(["deployments", deployment, "topologies", topology, "sinks"]));
  useChanges(live, topology, asked.again);
  return (
    <Answered asked={asked}>
      {({ sinks }) =>
        sinks.length === 0 ? (
          <Empty>Nothing is delivered: barrier.deliver(…) in a DAG brings each barrier to a system outside.</Empty>
        ) : (
          <Section below="page" title="Deliveries" above={<Failing sinks={sinks} />} columns={["sink", "kind", "DAG", "state", "has barrier", "lacks", "tables"]}>
            {sinks.map((each) => (
              <tr key={each.sink}>
                <th scope="row">{each.sink}</th>
                <td>{each.kind}</td>
                <td>
                  <Link to={`/dags/${encodeURIComponent(each.dag)}`}>{each.dag}</Link>
                </td>
                <td>{each.state}</td>
                <td>
                  {each.barrier_id === null ? (
                    <span className="dim">nothing yet</span>
                  ) : (
                    <Link to={{ search: search({ deployment, topology, barrier: String(each.barrier_id) }) }}>
                      {each.barrier_id}
                    </Link>
                  )}
                </td>
                <td className={each.lacks > 0 ? "warn" : ""}>
                  {each.lacks === 0 ? "nothing" : count(each.lacks, "barrier")}
                  {each.lacks > 0 && each.since !== null && (
                    <>
                      , since <Age time={each.since} />
                    </>
                  )}
                </td>
                <td>
                  <Names names={each.tables} />
                </td>
              </tr>
            ))}
          </Section>
        )
      }
    </Answered>
  );
}

/** Why, in sentences above the table: a column for them would have to be scrolled to. */
function Failing({ sinks }: { sinks: Sink[] }) {
  return (
    <ul className="bad plain">
      {sinks.map(({ sink, error, failures }) =>
        error === null ? null : (
          <li key={sink}>
            {sink} fails{failures > 1 && ` (${count(failures, "time")})`}: {error}
          </li>
        ),
      )}
    </ul>
  );
}
