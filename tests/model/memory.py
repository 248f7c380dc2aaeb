"""What the oracle remembers: the stored state, and what each barrier was opened with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_barrier.protocol.records import BarrierKind
from airflow_barrier.protocol.states import Decision
from tests.model.inputs import Landing
from tests.model.topology import JOBS, LATE, NAME
from tests.model.world import MAX_OPEN, World, table_time_of
from tests.support.memory_tables import Rows

_OURS = f"topology = '{NAME}'"
COUNTING = (
    "SELECT barrier_id, state, predecessor, timestamp, topology_version, kind, computed_in "
    f"FROM barrier_barrier WHERE {_OURS} AND line = 0 ORDER BY 1"
)
PROGRESS = (
    "SELECT barrier_id, table_name, state, snapshot_id, attempt_id, carried_from, decision, expected_snapshot "
    f"FROM barrier_table_progress WHERE {_OURS} AND line = 0 ORDER BY 1, 2"
)
_UNDER_WAY = f"(SELECT revision FROM barrier_revision WHERE {_OURS} AND state IN ('STAGING', 'COMMITTING'))"
LINE = PROGRESS.replace("= 0", f"= {_UNDER_WAY}")
ENDS = (
    "SELECT barrier_id, thinned_at, expiring_at, expired_at, trimmed_at FROM barrier_barrier "
    f"WHERE {_OURS} AND line = 0 ORDER BY 1"
)
ATTEMPTS = (
    "SELECT attempt_id, barrier_id, job, state, generation, inputs, bases, line, computed_in FROM barrier_attempt "
    f"WHERE {_OURS} ORDER BY attempt_id"
)
REVISIONS = (
    "SELECT revision, state, mode, first_barrier, predecessor, tables, jobs, head, last FROM barrier_revision "
    f"WHERE {_OURS} ORDER BY 1"
)
LINE_STATES = (
    f"SELECT barrier_id, state FROM barrier_barrier WHERE {_OURS} AND line = {_UNDER_WAY} AND state <> 'ABORTED' "
    "ORDER BY 1"
)
_QUERIES = (COUNTING, PROGRESS, ATTEMPTS, ENDS, REVISIONS, LINE, LINE_STATES)
_ATTEMPTS_AT = 2
COUNTING_BESIDE = f"SELECT count(*) FROM barrier_barrier WHERE {_OURS} AND line > 0 AND state <> 'ABORTED'"
UNCOMMITTED = ("OPEN", "PRECOMMIT", "COMMITTING", "BLOCKED")
DECIDED = ("COMMITTING", "BLOCKED", "COMMIT")
ENDED = {"FENCED", "VOIDED", "ABORTED"}
STAGED = ("PROCESSED", "WRITTEN")
KEEP, ADOPT = (decision.value for decision in (Decision.KEEP_OURS, Decision.ADOPT_THEIRS))


class Barrier(NamedTuple):
    barrier_id: int
    state: str
    predecessor: int | None
    timestamp: str
    version: int
    kind: str
    #: by which revision it stands as it does
    revision: int

    @property
    def is_maintenance(self) -> bool:
        return self.kind == BarrierKind.MAINTENANCE


class Revision(NamedTuple):
    number: int
    state: str
    mode: str
    first: int
    predecessor: int
    tables: tuple[str, ...]
    jobs: tuple[str, ...]
    head: int | None
    last: int | None


class End(NamedTuple):
    """When a barrier's life as something to read came to which of its ends; None: not yet."""

    barrier_id: int
    thinned_at: str | None
    expiring_at: str | None
    expired_at: str | None
    trimmed_at: str | None


class Progress(NamedTuple):
    barrier_id: int
    table: str
    state: str
    snapshot_id: int | None
    attempt_id: int | None
    carried_from: int | None
    decision: str | None
    expected: int | None


class Attempt(NamedTuple):
    attempt_id: int
    barrier_id: int
    job: str
    state: str
    generation: str
    inputs: str
    bases: str
    line: int
    computed_in: int


@dataclass
class Opened:
    """What a barrier was opened with. A job that joins with its history adds its tables; nothing else changes."""

    barrier_id: int
    before: Opened | None
    timestamp: str
    version: int
    tables: frozenset[str]
    #: it has no epoch
    is_maintenance: bool
    #: rows of the tables that join here
    baseline: dict[str, Rows]
    #: the records of each source that are in the epoch
    epoch: dict[str, list[str]]
    #: how often input had been corrected then
    edition: int = 0
    #: job that joins here -> table that it reads -> the snapshot up to where that is in its tables; where a table is
    #: not named: as far as the barrier before has it
    starts: dict[str, dict[str, int | None]] = field(default_factory=dict)
    #: the records of each source that are in this epoch or one before
    read: dict[str, frozenset[str]] = field(default_factory=dict)


class Memory:
    """The stored state as it was last seen, and what each barrier was opened with."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.raw = world.bench.raw
        self.opened: dict[int, Opened] = {}
        self.barriers: dict[int, Barrier] = {}
        self.ends: dict[int, End] = {}
        self.progress: dict[int, dict[str, Progress]] = {}
        self.attempts: dict[int, Attempt] = {}
        #: which attempt made a table, and what, before a person may have decided against it
        self.made: dict[tuple[int, str], tuple[int, int | None]] = {}
        self.revisions: dict[int, Revision] = {}
        #: what the revision under way has staged, and its barriers
        self.line: dict[int, dict[str, Progress]] = {}
        self.line_states: dict[int, str] = {}
        #: how often input had been corrected when each revision began
        self.editions: dict[int, int] = {}
        #: (barrier, table) -> what stands there was computed anew, on no rows
        self.cleared: set[tuple[int, str]] = set()
        #: (barrier, table) -> the table's history begins there, on no rows, whoever computes it
        self.begun: set[tuple[int, str]] = set()
        #: tables whose rows a stranger changed, ever
        self.meddled: set[str] = set()
        self._rows: list[Any] = []

    def look(self) -> bool:
        """Read what is stored; False if it is as before. What was trimmed is remembered as it was."""
        rows = [self.raw.execute(query).fetchall() for query in _QUERIES]
        if rows == self._rows:
            return False
        self._rows = rows
        swapped = self._look_at_revisions(rows[4])
        self.line = {}
        for row in rows[5]:
            self.line.setdefault(row[0], {})[row[1]] = Progress(*row)
        self.line_states = dict(rows[6])
        self.barriers = {row[0]: Barrier(*row) for row in rows[0]}
        self.ends = {row[0]: End(*row) for row in rows[3]}
        self.attempts = {
            **{number: each for number, each in self.attempts.items() if self.trimmed(each.barrier_id)},
            **{row[0]: Attempt(*row) for row in rows[2]},
        }
        self.progress = {number: dict(each) for number, each in self.progress.items() if self.trimmed(number)}
        for row in rows[1]:
            progress = self.progress.setdefault(row[0], {})[row[1]] = Progress(*row)
            if progress.attempt_id is not None and progress.decision is None:
                self.made[row[0], row[1]] = (progress.attempt_id, progress.snapshot_id)
        for revision in swapped:
            if revision.mode == "history":
                self._join(revision)
        for barrier in self.barriers.values():
            if barrier.barrier_id and barrier.barrier_id not in self.opened:
                self.opened[barrier.barrier_id] = self._open(barrier)
        return True

    def _look_at_revisions(self, rows: list[Any]) -> list[Revision]:
        """Returns those that have been published since the last look."""
        before = self.revisions
        self.revisions = {
            row[0]: Revision(*row[:5], tuple(json.loads(row[5])), tuple(json.loads(row[6])), *row[7:]) for row in rows
        }
        swapped = []
        for number, revision in self.revisions.items():
            self.editions.setdefault(number, self.world.input.edition)
            if revision.state == "COMMIT" and (number not in before or before[number].state != "COMMIT"):
                self._swap(revision)
                swapped.append(revision)
        return swapped

    def _swap(self, revision: Revision) -> None:
        """What a revision computed stands from here on."""
        self.cleared = {
            (barrier_id, table)
            for barrier_id, table in self.cleared
            if barrier_id < revision.first or table not in revision.tables
        }
        if revision.mode != "incremental":
            self.cleared |= {(revision.first, table) for table in revision.tables}

    def _join(self, revision: Revision) -> None:
        """Its tables are in all barriers that count from its first one on, those that are open among them."""
        self.begun |= {(revision.first, table) for table in revision.tables}
        for barrier in self.chain:
            if barrier.barrier_id >= revision.first and barrier.barrier_id in self.opened:
                opened = self.opened[barrier.barrier_id]
                opened.tables |= set(revision.tables)
                opened.version = barrier.version

    def standing(self) -> list[Any]:
        """All that is stored, but for attempts: a task that fails again and again leaves these and moves nothing."""
        self.look()
        return [rows for number, rows in enumerate(self._rows) if number != _ATTEMPTS_AT]

    @property
    def under_way(self) -> Revision | None:
        return next((r for r in self.revisions.values() if r.state in ("STAGING", "COMMITTING")), None)

    @property
    def chain(self) -> list[Barrier]:
        """The barriers that count, in order, without the baseline."""
        return [b for b in self.barriers.values() if b.barrier_id and b.state != "ABORTED"]

    def trimmed(self, barrier_id: int) -> bool:
        """Whether the details of a barrier may be forgotten."""
        return barrier_id in self.ends and self.ends[barrier_id].trimmed_at is not None

    @property
    def readable(self) -> list[Barrier]:
        """The barriers that a reader may ask for by their ids, oldest first."""
        return [b for b in self.chain if b.state == "COMMIT" and self.ends[b.barrier_id].expiring_at is None]

    @property
    def in_flight(self) -> list[Barrier]:
        return [b for b in self.chain if b.state != "COMMIT"]

    # --- opening ----------------------------------------------------------------------------------

    def _open(self, barrier: Barrier) -> Opened:
        """A barrier is seen for the first time: order, membership, and which records are its epoch's."""
        number = barrier.barrier_id
        assert number == max(self.opened, default=0) + 1, "ids count up"
        earlier = [b for b in self.chain if b.barrier_id < number]
        assert barrier.predecessor == (earlier[-1].barrier_id if earlier else 0), "it builds on the newest that counts"
        before = self.opened.get(barrier.predecessor or 0)
        if barrier.is_maintenance:
            return self._maintain(barrier, before)
        assert not earlier or barrier.timestamp > earlier[-1].timestamp, "timestamps rise"
        assert sum(b.state in UNCOMMITTED for b in earlier) < MAX_OPEN, "no more open than allowed"
        jobs = self.members(barrier.version)
        self._check_members(jobs)
        tables = frozenset(outlet for job in jobs for outlet in JOBS[job].outlets)
        assert set(self.progress[number]) == tables, "it needs the tables of its topology"
        assert {p.state for p in self.progress[number].values()} == {"PENDING"}
        joining = tables - (before.tables if before else frozenset())
        baseline = {table: self._baseline(table) for table in joining}
        for table in joining:
            behind = [
                b.barrier_id for b in earlier if b.state != "COMMIT" and table in self.opened[b.barrier_id].tables
            ]
            assert not behind, f"{table} comes back while barriers {behind} still have to publish it"
        epoch: dict[str, list[str]] = {}
        read = dict(before.read) if before else {}
        kinds = {source.name: source.kind for job in jobs for source in JOBS[job].externals}
        for source, kind in kinds.items():
            epoch[source] = self._epoch(number, source, kind, read.get(source, frozenset()))
            read[source] = read.get(source, frozenset()) | set(epoch[source])
        opened = Opened(number, before, barrier.timestamp, barrier.version, tables, False, baseline, epoch)
        opened.edition, opened.read = self.world.input.edition, read
        opened.starts = {job: self._start(number, job) for job in jobs if joining.issuperset(JOBS[job].outlets)}
        return opened

    def _start(self, number: int, job: str) -> dict[str, int | None]:
        """Where the epoch of a job that joins begins: where it left off, if its tables are as it left them, or else as
        it is declared.
        """
        query = "SELECT previous FROM barrier_job_start WHERE topology = ? AND barrier_id = ? AND job = ?"
        row = self.raw.execute(query, (NAME, number, job)).fetchone()
        assert row is not None, f"{job} joins with barrier {number}, and nobody found out where it begins"
        found: dict[str, int | None] = json.loads(row[0])
        possible = [self._declared_start(job)]
        if (left_off := self._left_off(number, job)) is not None:
            # what a stranger wrote to its tables may have been taken back
            possible = [left_off, *(possible if self.meddled.intersection(JOBS[job].outlets) else [])]
        assert found in possible, f"{job} joins with barrier {number} from {found}, not from {possible}"
        return found

    def _left_off(self, number: int, job: str) -> dict[str, int | None] | None:
        outlets = set(JOBS[job].outlets)
        had = [b for b in self.chain if b.barrier_id < number and not b.is_maintenance]
        last = next((b for b in reversed(had) if outlets <= self.opened[b.barrier_id].tables), None)
        if last is None:
            return None
        there = self.progress[last.barrier_id]
        return {table: there[table].snapshot_id if table in there else None for table in JOBS[job].inlets}

    def _declared_start(self, job: str) -> dict[str, int | None]:
        start = "undeclared" if JOBS[job].owner == LATE else self.world.starts.get(job, "latest")
        if start == "latest":
            return {}
        return {table: self._main_then(table) if start == "moment" else None for table in JOBS[job].inlets}

    def _main_then(self, table: str) -> int | None:
        """Where `main` was at the moment of the declarations."""
        log = self.world.tables.document(table)["snapshot-log"]
        past = [entry["snapshot-id"] for entry in log if table_time_of(entry["timestamp-ms"]) <= self.world.moment]
        return past[-1] if past else None

    def _maintain(self, barrier: Barrier, before: Opened | None) -> Opened:
        """The same rows in other files."""
        assert before is not None, "there is something to maintain"
        assert barrier.timestamp == before.timestamp, "its timestamp is inherited"
        tables = frozenset(self.progress[barrier.barrier_id])
        assert tables <= before.tables
        return Opened(
            barrier.barrier_id, before, barrier.timestamp, barrier.version, tables, True, {}, {}, read=dict(before.read)
        )

    def _check_members(self, jobs: Sequence[str]) -> None:
        """Whoever is declared is a member, but for jobs that wait: nobody has their tables before their history."""
        declared = self.declared()
        waiting = self.waiting(declared)
        assert not waiting & set(jobs), f"{waiting} wait for their history, and {jobs} are members"
        first = not self.chain[1:]  # who waited for a barrier that was given up may be noticed with the one after
        members = {job for job in declared if not first or JOBS[job].owner != LATE} - waiting
        assert members <= set(jobs) <= set(declared), f"{declared} are declared and {waiting} wait, but it has {jobs}"

    def declared(self) -> list[str]:
        """The jobs that somebody has registered."""
        rows = self.raw.execute("SELECT jobs FROM barrier_fragment WHERE topology = ?", (NAME,))
        return [job["name"] for row in rows for job in json.loads(row[0])]

    def waiting(self, declared: Sequence[str]) -> set[str]:
        """The jobs that join only with a history: there is one, and no barrier of it has their tables."""
        there = [self.opened[barrier.barrier_id].tables for barrier in self.chain if barrier.barrier_id in self.opened]
        had = {table for tables in there for table in tables}
        late = {job for job in declared if JOBS[job].owner == LATE}
        return {job for job in late if there and not had & set(JOBS[job].outlets)}

    def members(self, version: int) -> list[str]:
        query = "SELECT definition FROM barrier_topology_version WHERE topology = ? AND version = ?"
        return [job["name"] for job in json.loads(self.raw.execute(query, (NAME, version)).fetchone()[0])["jobs"]]

    def _baseline(self, table: str) -> Rows:
        snapshot = self.progress[0][table].snapshot_id
        return self.world.tables.rows(snapshot)

    def _epoch(self, barrier_id: int, source: str, kind: str, read: frozenset[str]) -> list[str]:
        """Exactly what had arrived when the cut was made and is in no epoch before."""
        key = (NAME, barrier_id, source)
        query = "FROM barrier_cut WHERE line = 0 AND topology = ? AND barrier_id = ? AND source = ?"
        start, end = self.raw.execute(f"SELECT start_position, end_position {query}", key).fetchone()
        arrived = self.world.input.of(source)
        upto = json.loads(end)["seen" if kind == Landing.kind else "position"]
        assert len(read) <= upto <= len(arrived)
        epoch = [record for record in arrived[:upto] if record not in read]
        if kind == Landing.kind:
            items = self.raw.execute(f"SELECT item {query.replace('barrier_cut', 'barrier_cut_item')}", key)
            assert sorted(row[0] for row in items) == sorted(epoch), "an item is in exactly one epoch"
        else:
            begins = 0 if start is None else json.loads(start)["position"]
            assert begins == len(read), "an epoch begins where the last one that read the source ended"
        return epoch
