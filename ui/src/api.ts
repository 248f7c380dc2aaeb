// Questions to the API, which is mounted beside Airflow's own, wherever that is served.

const ROOT = new URL("barrier/v1/", document.baseURI);
const CATALOGS = new URL("barrier/iceberg/", document.baseURI);
const AIRFLOW = new URL("api/v2/", document.baseURI);

/** The address of something: its parts are escaped, parameters that say nothing are left out. */
export function address(
  parts: string[],
  parameters: Record<string, string | number | null> = {},
  root: URL = ROOT,
): string {
  const url = new URL(parts.map(encodeURIComponent).join("/"), root);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== "") {
      url.searchParams.set(name, String(value));
    }
  }
  return url.href;
}

/** Where engines connect; it stands in quotes in what they are given. */
export function catalogAt(deployment: string): string {
  return address([deployment], {}, CATALOGS).replaceAll("'", "%27");
}

/** Where Airflow itself tells what a task links to. */
export function linksOf(dag: string, run: string, task: string, mapIndex: number): string {
  return address(["dags", dag, "dagRuns", run, "taskInstances", task, "links"], { map_index: mapIndex }, AIRFLOW);
}

/** Which of a run's tasks has last said what it links to. */
export function linkedLast(dag: string, run: string): string {
  const which = { xcom_key: "_link_BarrierLink", order_by: "-timestamp", limit: 1 };
  return address(["dags", dag, "dagRuns", run, "taskInstances", "~", "xcomEntries"], which, AIRFLOW);
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** How far the server's clock is ahead of this one, in milliseconds: ages are of the server's times. */
let ahead = 0;

export function serverNow(): number {
  return Date.now() + ahead;
}

const PATIENCE = 30_000;
/** Of what is done: a publish of many tables. */
const LONG_PATIENCE = 300_000;

export async function ask<T>(url: string, stopped: AbortSignal): Promise<T> {
  const answer = await fetched(url, {}, PATIENCE, stopped);
  if (!answer.ok) {
    throw new Refused(answer.status, (answer.status === 409 && (await detail(answer))) || said(answer.status));
  }
  const date = Date.parse(answer.headers.get("Date") ?? "");
  // the header has whole seconds: a smaller difference says nothing
  ahead = Math.abs(date - Date.now()) > 2_000 ? date - Date.now() : 0;
  try {
    return (await answer.json()) as T;
  } catch {
    throw new Refused(0, UNREACHABLE);
  }
}

/** Has something done; what is refused says why. */
export async function act<T>(url: string, body: Record<string, unknown>): Promise<T> {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetched(url, sent, LONG_PATIENCE);
  if (!answer.ok) {
    throw new Refused(answer.status, (await detail(answer)) || said(answer.status));
  }
  return (await answer.json()) as T;
}

async function fetched(url: string, sent: RequestInit, patience: number, stopped?: AbortSignal): Promise<Response> {
  const timeout = AbortSignal.timeout(patience);
  const signal = stopped === undefined ? timeout : AbortSignal.any([stopped, timeout]);
  const headers = { Accept: "application/json", ...sent.headers };
  try {
    return await fetch(url, { ...sent, credentials: "same-origin", headers, signal });
  } catch (error) {
    const slow = error instanceof DOMException && error.name === "TimeoutError";
    throw new Refused(0, slow ? `Airflow has not answered for ${patience / 1000} seconds.` : UNREACHABLE);
  }
}

/** What the API says of a refusal; nothing if somebody else answered, or it is no sentence. */
async function detail(answer: Response): Promise<string> {
  try {
    const { detail: told } = (await answer.json()) as { detail: unknown };
    return typeof told === "string" ? told : "";
  } catch {
    return "";
  }
}

const UNREACHABLE = "Airflow cannot be reached.";

function said(status: number): string {
  switch (status) {
    case 401:
      return "You are not logged in any more: reload the page and log in.";
    case 403:
      return "You have no right to this: ask whoever administers Airflow.";
    case 404:
      return "There is no such thing among what you may read: look at the address, or ask for the right to read its DAGs.";
    case 422:
      return "Something that cannot be was asked for: look at the numbers in the address, and at what you have entered.";
    case 503:
      return "The barrier database does not answer just now; the log of Airflow's API server says why.";
    default:
      return `Airflow answered with status ${status}; the log of its API server says why.`;
  }
}
