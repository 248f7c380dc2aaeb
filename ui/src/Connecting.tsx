import { type ReactNode, useState } from "react";

import { catalogAt } from "./api";
import { Copy } from "./Copy";

interface Props {
  deployment: string;
  /** Which barrier is read: the topology, `@`, and a level or a barrier. */
  warehouse: string;
  tables: string[];
  /** Of one barrier, which a server may stay at: engines that need one are offered, too. */
  tag?: string;
  /** What else can be chosen. */
  children?: ReactNode;
}

/** The texts by which an engine reads all tables at one barrier. */
export function Connecting({ deployment, warehouse, tables, tag, children }: Props) {
  const engines: Record<string, (to: Target) => Texts> = tag === undefined ? ENGINES : { ...ENGINES, ...AT_A_BARRIER };
  const [engine, chooseEngine] = useState("Spark");
  const [chosen, chooseTable] = useState("");
  const table = tables.includes(chosen) ? chosen : (tables[0] ?? "");
  const texts = engines[engine]?.({ uri: catalogAt(deployment), warehouse, table, tag: tag ?? "" }) ?? {};
  return (
    <>
      <div className="line">
        {children}
        <Choice what="Engine" among={Object.keys(engines)} value={engine} choose={chooseEngine} />
        {tables.length > 1 && <Choice what="Table" among={tables} value={table} choose={chooseTable} />}
      </div>
      {Object.entries(texts).map(([what, text]) => (
        <div key={what} className="text">
          <span className="dim">{what}</span>
          <pre tabIndex={0} aria-label={`${what} for ${engine}`}>
            {text}
          </pre>
          <Copy text={text} what={`the ${what} for ${engine}`} />
        </div>
      ))}
      {Object.values(texts).some((text) => text.includes(TOKEN)) && (
        <p className="dim">
          Put an access token of Airflow's in place of {TOKEN}: <code>{TOKENS}</code> gives you one. It reads what you may read.
        </p>
      )}
    </>
  );
}

export function Choice({ what, among, value, choose }: { what: string; among: string[]; value: string; choose: (one: string) => void }) {
  return (
    <label>
      {what}{" "}
      <select value={value} onChange={(event) => choose(event.target.value)}>
        {among.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </label>
  );
}

interface Target {
  uri: string;
  warehouse: string;
  table: string;
  tag: string;
}

/** By what each of them is: a file, or a language. */
type Texts = Record<string, string>;

/** Seconds: a catalog of Trino's cannot connect anew when its lease has ended over night. */
const DAY = 86_400;
const TOKEN = "<token>";
const TOKENS = `POST ${new URL("auth/token", document.baseURI)}`;

const ENGINES: Record<string, (to: Target) => Texts> = {
  Spark: (to) => ({
    "spark-defaults.conf": conf(to)
      .map(([name, value]) => `${name.padEnd(38)} ${value}`)
      .join("\n"),
    SQL: `SELECT * FROM pinned.${quoted(to.table, "`")}`,
  }),
  "Thrift server": (to) => ({
    command: ["start-thriftserver.sh", ...conf(to).map(([name, value]) => `--conf '${name}=${value}'`)].join(" "),
    SQL: `SELECT * FROM pinned.${quoted(to.table, "`")}`,
  }),
  DuckDB: ({ uri, warehouse, table }) => ({
    SQL:
      `ATTACH '${warehouse}' AS pinned (TYPE iceberg, ENDPOINT '${uri}', TOKEN '${TOKEN}');\n` +
      `SELECT * FROM pinned.${inTwoParts(table)};`,
  }),
  pyiceberg: ({ uri, warehouse, table }) => ({
    Python:
      "from pyiceberg.catalog.rest import RestCatalog\n\n" +
      `pinned = RestCatalog("pinned", uri="${uri}", warehouse="${warehouse}", token="${TOKEN}")\n` +
      `rows = pinned.load_table(${JSON.stringify(table)}).scan().to_arrow()`,
  }),
  dbt: ({ uri, warehouse, table }) => ({
    "profiles.yml, for dbt-duckdb":
      "pinned:\n" +
      "  target: dev\n" +
      "  outputs:\n" +
      "    dev:\n" +
      "      type: duckdb\n" +
      "      extensions: [httpfs, avro, iceberg]\n" +
      "      attach:\n" +
      `        - path: ${warehouse}\n` +
      "          alias: pinned\n" +
      "          type: iceberg\n" +
      "          options:\n" +
      `            endpoint: ${uri}\n` +
      `            token: ${TOKEN}`,
    SQL: `SELECT * FROM pinned.${inTwoParts(table)}`,
  }),
};

const AT_A_BARRIER: Record<string, (to: Target) => Texts> = {
  Trino: ({ uri, warehouse, table }) => ({
    "etc/catalog/pinned.properties":
      "connector.name=iceberg\n" +
      "iceberg.catalog.type=rest\n" +
      `iceberg.rest-catalog.uri=${uri}\n` +
      `iceberg.rest-catalog.warehouse=${warehouse}?hold=${DAY}\n` +
      "iceberg.rest-catalog.security=OAUTH2\n" +
      `iceberg.rest-catalog.oauth2.token=${TOKEN}` +
      (table.split(".").length > 2 ? "\niceberg.rest-catalog.nested-namespace-enabled=true" : ""),
    SQL: `SELECT * FROM pinned.${inTwoParts(table)}`,
  }),
  "your own catalog, by tag": ({ table, tag }) => ({
    "Spark SQL": `SELECT * FROM ${quoted(table, "`")} VERSION AS OF '${tag}'`,
    "Trino SQL": `SELECT * FROM ${quoted(table, '"')} FOR VERSION AS OF '${tag}'`,
  }),
};

function conf({ uri, warehouse }: Target): [name: string, value: string][] {
  // a table that Spark caches asks for nothing, and its barrier is held no longer
  const options = { ".type": "rest", ".uri": uri, ".warehouse": warehouse, ".token": TOKEN, ".cache-enabled": "false" };
  const all = Object.entries({ "": "org.apache.iceberg.spark.SparkCatalog", ...options });
  return all.map(([name, value]) => [`spark.sql.catalog.pinned${name}`, value]);
}

/** A namespace of several parts is one schema in DuckDB and Trino. */
function inTwoParts(table: string): string {
  const at = table.lastIndexOf(".");
  return [table.slice(0, at), table.slice(at + 1)].map((part) => quotedPart(part, '"')).join(".");
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
