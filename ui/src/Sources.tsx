import { Link } from "react-router-dom";

import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked } from "./asked";
import type { Lag } from "./model";
import { search } from "./place";
import { Section } from "./Section";
import { Empty } from "./Told";
import type { ViewProps } from "./View";

/** How much of its sources no barrier has read. Brokers are asked for it: when this is opened, and at a click. */
export function Sources({ deployment, topology }: ViewProps) {
  const asked = useAsked<{ sources: Lag[] }>(
    address(["deployments", deployment, "topologies", topology, "sources"]),
  );
  return (
    <Answered asked={asked}>
      {({ sources }) =>
        sources.length === 0 ? (
          <Empty>No job reads from outside: give barrier.job its sources, and what is in them is told here.</Empty>
        ) : (
          <>
            <div className="line">
              <button onClick={asked.again}>Ask them again</button>
              <span className="dim">They are asked when this is opened, and not by themselves.</span>
            </div>
            <Section below="page" title="Sources" columns={["source", "kind", "read at barrier", "not read yet"]}>
              {sources.map((each) => (
                <tr key={each.source}>
                  <th scope="row">{each.source}</th>
                  <td>{each.kind}</td>
                  <td>
                    {each.barrier_id === null ? (
                      <span className="dim">nothing yet</span>
                    ) : (
                      <Link to={{ search: search({ deployment, topology, barrier: String(each.barrier_id) }) }}>
                        {each.barrier_id}
                      </Link>
                    )}
                  </td>
                  <td className={each.urgent ? "warn" : ""}>
                    {each.behind === null
                      ? `not known: ${each.unknown ?? "it cannot be asked"}`
                      : `${each.behind.toLocaleString("en")} ${each.unit ?? ""}`}
                    {each.urgent && "; some of it is gone from the source, or soon will be"}
                    {each.note && <div className="dim">{each.note}</div>}
                  </td>
                </tr>
              ))}
            </Section>
          </>
        )
      }
    </Answered>
  );
}
