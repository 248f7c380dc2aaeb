// Questions to the API, which is mounted beside Airflow's own, wherever that is served.

const ROOT = new URL("barrier/v1/", document.baseURI);
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

/** Where Airflow itself tells what a task links to. */
export function linksOf(dag: string, run: string, task: string, mapIndex: number): string {
  return address(["dags", dag, "dagRuns", run, "taskInstances", task, "links"], { map_index: mapIndex }, AIRFLOW);
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

export async function ask<T>(url: string, stopped: AbortSignal): Promise<T> {
  const signal = AbortSignal.any([stopped, AbortSignal.timeout(PATIENCE)]);
  let answer: Response;
  try {
    answer = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" }, signal });
  } catch (error) {
    throw new Refused(0, error instanceof DOMException && error.name === "TimeoutError" ? SLOW : UNREACHABLE);
  }
  if (!answer.ok) {
    throw new Refused(answer.status, said(answer.status));
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

const SLOW = `Airflow has not answered for ${PATIENCE / 1000} seconds.`;
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
      return "The address of this page asks for something that cannot be: look at its numbers.";
    case 503:
      return "The barrier database does not answer just now; the log of Airflow's API server says why.";
    default:
      return `Airflow answered with status ${status}; the log of its API server says why.`;
  }
}
