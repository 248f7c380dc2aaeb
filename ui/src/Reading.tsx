import { useState } from "react";

import { Copy } from "./Copy";
import type { BarrierDetail } from "./model";
import { Empty } from "./Told";

/** The text by which other engines read a table at this barrier. */
export function Reading({ deployment, barrier }: { deployment: string; barrier: BarrierDetail }) {
  const tables = barrier.tables.filter((table) => table.snapshot_id !== null).map((table) => table.table);
  const [chosen, choose] = useState<string | null>(null);
  const table = chosen !== null && tables.includes(chosen) ? chosen : tables[0];
  return (
    <section aria-labelledby="barrier-reading">
      <h4 id="barrier-reading">Read it</h4>
      {barrier.expiring_at !== null ? (
        <Empty>It expired: read a newer barrier.</Empty>
      ) : barrier.state !== "COMMIT" || table === undefined ? (
        <Empty>It can be read by its tag once it is COMMIT and one of its tables has rows: wait for its jobs.</Empty>
      ) : (
        <>
          {tables.length > 1 && (
            <label>
              Table{" "}
              <select value={table} onChange={(event) => choose(event.target.value)}>
                {tables.map((each) => (
                  <option key={each}>{each}</option>
                ))}
              </select>
            </label>
          )}
          {texts(table, deployment, barrier).map(([engine, text]) => (
            <div key={engine} className="text">
              <span className="dim">{engine}</span>
              <pre tabIndex={0} aria-label={`for ${engine}`}>
                {text}
              </pre>
              <Copy text={text} what={`the text for ${engine}`} />
            </div>
          ))}
        </>
      )}
    </section>
  );
}

function texts(table: string, deployment: string, { topology, barrier_id: at, tag }: BarrierDetail): [engine: string, text: string][] {
  return [
    ["Spark", `SELECT * FROM ${quoted(table, "`")} VERSION AS OF '${tag}'`],
    ["Trino", `SELECT * FROM ${quoted(table, '"')} FOR VERSION AS OF '${tag}'`],
    [
      "pyiceberg",
      `table = catalog.load_table(${JSON.stringify(table)})\n` +
        `table.scan(snapshot_id=table.snapshot_by_name(${JSON.stringify(tag)}).snapshot_id)`,
    ],
    [
      "DuckDB",
      `with BarrierHook(${JSON.stringify(deployment)}).consistent_session(${JSON.stringify(topology)}, at=${at}) as session:\n` +
        "    with session.duckdb() as connection:\n" +
        `        connection.sql(${JSON.stringify(`SELECT * FROM ${inDuckDB(table)}`)}).show()`,
    ],
  ];
}

/** A namespace of several parts is one schema there. */
function inDuckDB(table: string): string {
  const [name, ...namespace] = table.split(".").reverse();
  return [namespace.reverse().join("."), name ?? ""].map((part) => quotedPart(part, '"')).join(".");
}

function quoted(table: string, quote: string): string {
  return table
    .split(".")
    .map((part) => quotedPart(part, quote))
    .join(".");
}

function quotedPart(part: string, quote: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(part) ? part : quote + part.replaceAll(quote, quote + quote) + quote;
}
