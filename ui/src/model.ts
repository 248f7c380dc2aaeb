// What the API answers with: airflow_barrier/api/models.py, as far as the page shows it. Times are ISO 8601 in UTC,
// durations are seconds.

export type Health = "ok" | "empty" | "late" | "retrying" | "failing" | "blocked";

export type CellState =
  | "absent"
  | "pending"
  | "waiting"
  | "running"
  | "failed"
  | "late"
  | "processed"
  | "written"
  | "unchanged"
  | "blocked"
  | "aborted";

export interface Deployments {
  deployments: { deployment: string }[];
  /** Those that cannot be asked just now. */
  failed: string[];
}

/** What who asks may do now, and what will happen then. */
export interface Action {
  action: "abort" | "commit" | "resolve" | "release" | "cancel" | "revise" | "wake";
  label: string;
  says: string;
}

export interface TablesInTheWay {
  tables: {
    table: string;
    finding: string | null;
    choices: { decision: string; label: string; says: string }[];
  }[];
}

/** ``revision``: the number that it gets. */
export interface Plan {
  revision: number;
  lines: string[];
  notes: string[];
  command: string;
  dags: string[];
}

export interface Done {
  summary: string;
}

export interface BarrierSummary {
  barrier_id: number;
  timestamp: string;
  state: string;
  kind: string;
  revision: number;
  opened_at: string;
  precommit_at: string | null;
  commit_at: string | null;
  seconds: number | null;
  reason: string | null;
}

/** An instance of a task in Airflow. */
export interface Task {
  dag_id: string;
  run_id: string;
  task_id: string;
  /** -1: it is not mapped. */
  map_index: number;
}

/** A job that has failed at a barrier that waits for it. */
export interface Failed {
  barrier_id: number;
  job: string;
  tables: string[];
  at: string;
  /** When Airflow tries again; null: it does not. */
  again_at: string | null;
  summary: string;
  reason: string;
  task: Task | null;
}

export interface Late {
  barrier_id: number | null;
  job: string | null;
  dag: string | null;
  tables: string[];
  since: string;
  summary: string;
}

export interface TopologySummary {
  topology: string;
  version: number;
  dags: string[];
  tables: number;
  health: Health;
  readable: BarrierSummary | null;
  objective: number | null;
  /** The one that is under way. */
  revision: number | null;
  open: number;
  recent: BarrierSummary[];
  failed: Failed[];
  late: Late[];
  /** Sinks to which the last delivery failed. */
  failing: string[];
  hidden_dags: number;
}

/** What a run is about. */
export interface Run {
  barriers: RunBarrier[];
  revisions: { deployment: string; topology: string; revision: number; barrier_id: number | null }[];
}

export interface RunBarrier {
  deployment: string;
  topology: string;
  barrier_id: number;
  timestamp: string;
  state: string;
  opened: boolean;
  tasks: { task_id: string; map_index: number; job: string }[];
}

export interface Topologies {
  topologies: TopologySummary[];
  counts: Partial<Record<Health, number>>;
  after: string | null;
}

export interface Sink {
  sink: string;
  dag: string;
  kind: string;
  state: string;
  tables: string[];
  barrier_id: number | null;
  lacks: number;
  since: string | null;
  error: string | null;
  failed_at: string | null;
  failures: number;
}

export interface Job {
  job: string;
  dag: string;
  inlets: string[];
  outlets: string[];
  sources: string[];
}

export interface Topology extends TopologySummary {
  jobs: Job[];
  sources: { source: string; kind: string }[];
  sinks: Sink[];
  read_committed: number | null;
}

export interface GridRow {
  table: string;
  job: string | null;
  dag: string | null;
  cells: CellState[];
}

export interface Note {
  table: string;
  barrier_id: number;
  tries: number;
  since: string | null;
  summary: string;
}

export interface Grid {
  barriers: BarrierSummary[];
  rows: GridRow[];
  notes: Note[];
  repeatable_read: number | null;
  read_committed: number | null;
  before: number | null;
  after: string | null;
  hidden_dags: number;
}

export interface Attempt {
  attempt_id: number;
  job: string;
  dag: string;
  state: string;
  requested_at: string;
  started_at: string | null;
  closed_at: string | null;
  processed_at: string | null;
  ended_at: string | null;
  waits_for: string[];
  reason: string | null;
  task: Task | null;
}

export interface TableAtBarrier {
  table: string;
  job: string | null;
  dag: string | null;
  state: CellState;
  /** Only whether there is one: it may be larger than JavaScript's numbers are exact. */
  snapshot_id: string | null;
  unchanged_since: number | null;
  processed_at: string | null;
  written_at: string | null;
  /** Why its job does not begin, as far as Airflow knows. */
  waits: string | null;
}

export interface Cut {
  source: string;
  summary: string;
  put_off: string | null;
}

export interface Delivery {
  sink: string;
  revision: number;
  inserted: number;
  updated: number;
  deleted: number;
  seconds: number;
  delivered_at: string;
}

export interface BarrierDetail extends BarrierSummary {
  topology: string;
  tag: string;
  opening: string;
  expiring_at: string | null;
  dag_id: string | null;
  run_id: string | null;
  health: Health;
  failed: Failed[];
  late: Late[];
  tables: TableAtBarrier[];
  attempts: Attempt[];
  cuts: Cut[];
  deliveries: Delivery[];
  actions: Action[];
  hidden_dags: number;
}

/** What time was spent on: airflow_barrier/protocol/delay.py. */
export type Part =
  | "schedule"
  | "inputs"
  | "not asked for"
  | "source away"
  | "waking"
  | "between tries"
  | "failed, not repeated"
  | "failed tries"
  | "spark"
  | "siblings"
  | "earlier barriers"
  | "decision"
  | "commit"
  | "blocked"
  | "not known any more";

export interface Segment {
  part: Part;
  job: string | null;
  barrier_id: number;
  begin: string;
  end: string;
}

export interface TableDelay {
  table: string;
  job: string;
  own: number;
  inherited: number;
  parts: Record<Part, number>;
}

export interface Delivered {
  sink: string;
  dag: string;
  at: string;
  seconds: number;
}

export interface BarrierDelay {
  barrier_id: number;
  timestamp: string;
  since: string;
  until: string;
  seconds: number;
  critical_path: Segment[];
  jobs: Record<string, Segment[]>;
  tables: TableDelay[];
  deliveries: Delivered[];
}

export interface Blame {
  part: Part;
  job: string | null;
  dag: string | null;
  seconds: number;
  share: number;
}

export interface DelayPoint {
  barrier_id: number;
  timestamp: string;
  readable_at: string;
  seconds: number;
  stale: number | null;
}

export type Percentiles = Partial<Record<"p50" | "p90" | "p95" | "p99" | "max", number>>;

export interface Present {
  at: string;
  barrier_id: number | null;
  seconds: number | null;
  stale: number | null;
}

export interface SinkDelay {
  sink: string;
  dag: string;
  percentiles: Percentiles;
  lacks: number;
  since: string | null;
}

export interface Delay {
  topology: string;
  table: string | null;
  window: number;
  objective: number | null;
  barriers: number;
  missed: number | null;
  percentiles: Percentiles;
  scheduled: Percentiles;
  present: Present;
  points: DelayPoint[];
  blame: Blame[];
  looked_into: number;
  deliveries: SinkDelay[];
}

export interface Lag {
  source: string;
  kind: string;
  barrier_id: number | null;
  behind: number | null;
  unit: string | null;
  urgent: boolean;
  note: string | null;
  unknown: string | null;
}

export interface Lease {
  lease_id: number;
  barrier_id: number;
  through_id: number;
  holder: string | null;
  granted_at: string;
  expires_at: string;
  rolled_back: boolean;
  holds_up: number;
  actions: Action[];
}

export interface Revision {
  revision: number;
  state: "STAGING" | "COMMITTING" | "COMMIT" | "CANCELLED";
  mode: string;
  first_barrier: number;
  window_end: number;
  gated: boolean;
  tables: string[];
  jobs: string[];
  actor: string | null;
  reason: string | null;
  created_at: string;
  commit_at: string | null;
  cancelled_at: string | null;
}

export interface Revisions {
  revisions: Revision[];
  before: number | null;
}

/** A barrier that a revision waits for: ``tables`` are not computed again, or ``why``. */
export interface RevisionMissing {
  barrier_id: number;
  timestamp: string;
  tables: string[];
  why: string;
}

export interface RevisionDetail extends Revision {
  runs: { dag_id: string; run_id: string; barrier_id: number | null; arrived_at: string | null }[];
  barriers: { barrier_id: number; timestamp: string; state: string; jobs: Record<string, string> }[];
  missing: RevisionMissing[];
  actions: Action[];
  hidden_dags: number;
}

export interface Change {
  topology: string;
  changes: number;
}
