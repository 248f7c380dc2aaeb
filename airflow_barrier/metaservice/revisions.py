"""Revisions: begun, extended to the head, bound to runs, gated, published or cancelled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.cuts import begin_recut, recut
from airflow_barrier.metaservice.mapping import to_columns, to_record, to_records
from airflow_barrier.metaservice.revision_rows import (
    barriers_of,
    check_staging,
    gatekeeper,
    load_revision,
    of_revision,
    record_revision,
    under_way,
)
from airflow_barrier.metaservice.rows import (
    barrier_key,
    load_topology,
    of_topology,
    progress,
    row_at,
    topology_version,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import starts_at
from airflow_barrier.metaservice.swapping import (
    Revised,
    SwapRows,
    Unstaged,
    as_revised,
    begin_swap,
    cancel,
    finish_swap,
    swap_rows,
    swappable,
    unstaged,
)
from airflow_barrier.metaservice.topologies import version_of, waiting
from airflow_barrier.metaservice.transaction import Group, locked, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import (
    RehearsalRefusedError,
    RevisionRefusedError,
)
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Barrier, Cut, TableProgress
from airflow_barrier.protocol.revisions import (
    Revision,
    RevisionMode,
    RevisionRun,
    RevisionState,
    TableCorrection,
)
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Topology

_TABLE, _RUNS = schema.revision, schema.revision_run
_BINDING = (
    select(_RUNS)
    .where(
        _RUNS.c.dag_id == bindparam("dag_id"),
        _RUNS.c.run_id == bindparam("run_id"),
        _RUNS.c.topology == bindparam("topology"),
    )
    .order_by(_RUNS.c.revision.desc())
    .limit(1)
)


@dataclass(frozen=True)
class NewRevision:
    """The start of a revision; as :class:`~airflow_barrier.protocol.revisions.Revision` has it.

    ``topology_version``: the current one. ``joining``: the tables that join by it, and what `main` of each is at.
    ``cuts``: those that were made anew, by barrier.
    """

    topology: str
    mode: RevisionMode
    first_barrier: int
    predecessor: int
    window_end: int
    tables: Sequence[str]
    jobs: Sequence[str]
    changed: Sequence[str]
    topology_version: int
    reason: str
    actor: str
    corrections: Sequence[TableCorrection] = ()
    reused: Sequence[str] = ()
    recut: Sequence[str] = ()
    joining: Mapping[str, int | None] = field(default_factory=dict)
    cuts: Mapping[int, Sequence[Cut]] = field(default_factory=dict)


class Revisions(Group):
    """Barriers computed again."""

    @reads
    def get(self, connection: Connection, topology: str, number: int) -> Revision:
        """Raises UnknownRevisionError."""
        return load_revision(connection, topology, number)

    @reads
    def under_way(self, connection: Connection, topology: str) -> Revision | None:
        """The one that is STAGING or COMMITTING; a topology has one at a time."""
        return under_way(connection, topology)

    @reads
    def begun_by(self, connection: Connection, topology: str, actor: str) -> Revision | None:
        """The newest one that ``actor`` began; None: none."""
        mine = select(func.max(_TABLE.c.revision)).where(_TABLE.c.topology == topology, _TABLE.c.actor == actor)
        number = connection.execute(mine).scalar_one()
        return None if number is None else load_revision(connection, topology, number)

    @reads
    def newest(self, connection: Connection, topology: str, limit: int, before: int | None = None) -> list[Revision]:
        """The newest ``limit``, the newest first; ``before``: of those with lower numbers."""
        below = [] if before is None else [_TABLE.c.revision < before]
        rows = connection.execute(
            select(_TABLE).where(_TABLE.c.topology == topology, *below).order_by(_TABLE.c.revision.desc()).limit(limit)
        )
        return [to_record(Revision, row, gated=row.gated_at is not None) for row in rows]

    @reads
    def barriers(self, connection: Connection, topology: str, number: int) -> list[Barrier]:
        """Return its barriers that count, in order, while it is under way."""
        return barriers_of(connection, load_revision(connection, topology, number))

    @reads
    def progress(self, connection: Connection, topology: str, number: int, barrier_id: int) -> list[TableProgress]:
        """The tables that it computes again at a barrier, in the order of their names."""
        return list(progress(connection, topology, barrier_id, number).values())

    @reads
    def unstaged(self, connection: Connection, topology: str, number: int) -> list[str]:
        """Name what is missing before it can be published, a phrase each; nothing once it can."""
        return [str(each) for each in unstaged(connection, load_revision(connection, topology, number))]

    @reads
    def unstaged_barriers(self, connection: Connection, topology: str, number: int) -> list[Unstaged]:
        """The same by barrier."""
        return unstaged(connection, load_revision(connection, topology, number))

    @reads
    def newest_decided(self, connection: Connection, topology: str) -> int:
        """The number of the newest revision that is COMMITTING or COMMIT; 0: none."""
        decided = [RevisionState.COMMITTING.value, RevisionState.COMMIT.value]
        newest = select(func.coalesce(func.max(_TABLE.c.revision), 0))
        return int(
            connection.execute(newest.where(_TABLE.c.topology == topology, _TABLE.c.state.in_(decided))).scalar_one()
        )

    @reads
    def as_revised(self, connection: Connection, barrier: Barrier, number: int) -> Revised:
        """A COMMIT barrier that stands, as revision ``number`` leaves it. Maintenance then carries what is revised."""
        return as_revised(connection, barrier, number)

    @reads
    def swap_rows(self, connection: Connection, topology: str, number: int) -> SwapRows:
        """Return the rows that a publish of it consists of, or would consist of now."""
        return swap_rows(connection, load_revision(connection, topology, number))

    @locked
    def begin(self, connection: Connection, new: NewRevision) -> Revision:
        """A new one, STAGING, with the barriers from its first one to the head, and the cuts that were made anew.

        Raises RevisionRefusedError while another one is under way, and if somebody took what joins by a cut;
        RehearsalRefusedError for a rehearsal.
        """
        if is_rehearsal(new.topology):
            raise RehearsalRefusedError(  # safety: rehearsed-is-not-published
                f"revision of {new.topology}: expected a topology whose barriers are published, found a rehearsal; "
                "name the topology that it rehearses"
            )
        version = topology_version(connection, new.topology)
        if version != new.topology_version:
            raise RevisionRefusedError(  # safety: revises-what-was-planned
                f"topology {new.topology}: expected it to be as it was planned with (version {new.topology_version}), "
                f"found version {version}; plan the revision again"
            )
        other = under_way(connection, new.topology)
        if other is not None:
            raise RevisionRefusedError(  # safety: one-revision-under-way
                f"topology {new.topology}: expected no revision under way, found {other} ({other.state.value}, "
                f"barriers from {other.first_barrier} on, tables {', '.join(other.tables)}: {other.reason}); wait "
                f"until it is published, or cancel it: airflow-barrier revision cancel {new.topology} "
                f"{other.revision}"
            )
        _check_readable(connection, new)
        number = (
            1
            + connection.execute(
                select(func.coalesce(func.max(_TABLE.c.revision), 0)).where(_TABLE.c.topology == new.topology)
            ).scalar_one()
        )
        connection.execute(
            insert(_TABLE).values(
                topology_version=_with_joining(connection, new) if new.joining else version,
                **to_columns(
                    Revision,
                    topology=new.topology,
                    revision=number,
                    state=RevisionState.STAGING,
                    mode=new.mode,
                    first_barrier=new.first_barrier,
                    predecessor=new.predecessor,
                    window_end=new.window_end,
                    tables=new.tables,
                    jobs=new.jobs,
                    changed=new.changed,
                    corrections=new.corrections,
                    reused=new.reused,
                    recut=new.recut,
                    expected=new.joining,
                    actor=new.actor,
                    reason=new.reason,
                    created_at=DatabaseNow(),
                ),
            )
        )
        detail = {
            "mode": new.mode.value,
            "first": new.first_barrier,
            "window_end": new.window_end,
            "tables": list(new.tables),
            "reason": new.reason,
        }
        record_revision(
            connection, new.topology, number, None, RevisionState.STAGING, Event("revision begun", new.actor, detail)
        )
        revision = load_revision(connection, new.topology, number)
        extend(connection, revision, new.actor)
        begin_recut(connection, revision, new.cuts, new.actor)
        return revision

    @locked
    def extend(self, connection: Connection, topology: str, number: int, actor: str) -> list[Barrier]:
        """Add the barriers that were opened since; returns these. Raises RevisionEndedError."""
        return extend(connection, load_revision(connection, topology, number), actor)

    @locked
    def recut(self, connection: Connection, topology: str, number: int, barrier_id: int, cut: Cut, actor: str) -> None:
        """Another cut of a source for a barrier of the revision. Raises RevisionEndedError, SourceDataError."""
        recut(connection, topology, number, barrier_id, cut, actor)

    @locked
    def bind_run(
        self,
        connection: Connection,
        topology: str,
        number: int,
        barrier_id: int,
        dag_id: str,
        run_id: str,
        clear_number: int | None,
    ) -> bool:
        """A DAG's run computes a barrier of the revision. ``clear_number`` None: it was woken, and has yet to come.

        Returns whether nobody had bound it before.
        """
        revision = load_revision(connection, topology, number)
        key = {"topology": revision.topology, "revision": revision.revision, "dag_id": dag_id, "run_id": run_id}
        values: dict[str, Any] = {"barrier_id": barrier_id}
        if clear_number is not None:
            values |= {"clear_number": clear_number, "arrived_at": DatabaseNow()}
        known = connection.execute(
            update(_RUNS).where(*(_RUNS.c[name] == value for name, value in key.items())).values(**values)
        ).rowcount
        if not known:
            connection.execute(insert(_RUNS).values(**key, **values))
        return not known

    @locked
    def unbind_run(self, connection: Connection, topology: str, number: int, dag_id: str, run_id: str) -> None:
        """A run that was bound, and could not be woken. Again is fine."""
        revision = load_revision(connection, topology, number)
        connection.execute(
            delete(_RUNS).where(
                _RUNS.c.topology == revision.topology,
                _RUNS.c.revision == revision.revision,
                _RUNS.c.dag_id == dag_id,
                _RUNS.c.run_id == run_id,
                _RUNS.c.arrived_at.is_(None),
            )
        )

    @reads
    def runs(self, connection: Connection, topology: str, number: int) -> list[RevisionRun]:
        """The runs that compute its barriers, by barrier."""
        revision = load_revision(connection, topology, number)
        rows = connection.execute(
            select(_RUNS)
            .where(_RUNS.c.topology == revision.topology, _RUNS.c.revision == revision.revision)
            .order_by(_RUNS.c.barrier_id, _RUNS.c.dag_id, _RUNS.c.run_id)
        )
        return to_records(RevisionRun, rows)

    @reads
    def run_binding(self, connection: Connection, topology: str, dag_id: str, run_id: str) -> RevisionRun | None:
        """The newest revision that a run was bound to; None: none."""
        row = row_at(connection, _BINDING, dag_id=dag_id, run_id=run_id, topology=topology)
        return None if row is None else to_record(RevisionRun, row)

    @locked
    def gate(self, connection: Connection, topology: str, number: int, *, closed: bool, actor: str) -> Revision:
        """Let no barrier open until it is published, or let them open again. Raises RevisionEndedError."""
        check_staging(connection, topology, number)
        before = load_revision(connection, topology, number)
        if before.gated is not closed:
            at = DatabaseNow() if closed else None
            connection.execute(update(_TABLE).where(*of_revision(topology, number)).values(gated_at=at))
            event = Event("gate closed" if closed else "gate opened", actor)
            record_revision(connection, topology, number, before.state, before.state, event)
        return load_revision(connection, topology, number)

    @reads
    def gatekeeper(self, connection: Connection, topology: str) -> Revision | None:
        """The revision for which no barrier opens now."""
        return gatekeeper(connection, topology)

    @locked
    def cancel(self, connection: Connection, topology: str, number: int, reason: str, actor: str) -> Revision:
        """STAGING -> CANCELLED. Again changes nothing. Raises RevisionEndedError once it is decided."""
        return cancel(connection, topology, number, reason, actor)

    @locked
    def begin_swap(
        self,
        connection: Connection,
        topology: str,
        number: int,
        head: int,
        expected: Mapping[str, int | None],
        actor: str,
    ) -> Revision:
        """STAGING -> COMMITTING: from here on only forward. ``expected``: the `main` found of each table of barrier
        ``head``, the newest COMMIT.

        Again changes nothing. Raises RevisionNotStagedError (retryable), HeadMovedError if a barrier was committed
        since the look, RevisionEndedError.
        """
        return begin_swap(connection, topology, number, head, expected, actor)

    @contextmanager
    def swapping(self, topology: str, number: int, actor: str) -> Iterator[Connection | None]:
        """A write transaction for the publish of a COMMITTING revision's tables: both are committed, or neither.

        At the end of the block what it computed stands, and it is COMMIT. Yields None if it is COMMIT already.
        """
        with self._writing_locked(topology) as connection:
            revision = swappable(connection, topology, number)
            if revision is not None:
                yield connection
                finish_swap(connection, revision, actor)
                return
        yield None


# --- beginning ------------------------------------------------------------------------------------


def _with_joining(connection: Connection, new: NewRevision) -> int:
    """The number of the topology as it will be with the jobs that join. Raises RevisionRefusedError."""
    jobs = [job for job in waiting(connection, new.topology) if job.name in new.jobs]
    found = {outlet for job in jobs for outlet in job.outlets}
    if len(jobs) != len(new.jobs) or found != set(new.joining):
        raise RevisionRefusedError(  # safety: revises-what-was-planned
            f"topology {new.topology}: expected jobs {', '.join(new.jobs)} to wait for the history of "
            f"{', '.join(sorted(new.joining))}, found that of {', '.join(sorted(found)) or 'none'}; plan it again"
        )
    members = load_topology(connection, new.topology, new.topology_version).jobs
    return version_of(connection, Topology.of(new.topology, [*members, *jobs]))


def _check_readable(connection: Connection, new: NewRevision) -> None:
    """Refuse it if what it builds on has begun to expire since it was planned; from here on it does not."""
    table = schema.barrier
    first = new.predecessor if new.mode is RevisionMode.INCREMENTAL else new.first_barrier
    gone = connection.execute(
        select(table.c.barrier_id)
        .where(
            of_topology(table, new.topology),
            table.c.barrier_id >= first,
            table.c.expiring_at.is_not(None),
            # maintenance on the way is carried, and need not be there
            or_(table.c.barrier_id == new.predecessor, schema.ONE_A_TIMESTAMP),
        )
        .order_by(table.c.barrier_id.desc())
        .limit(1)
    ).scalar_one_or_none()
    if gone is not None:
        raise RevisionRefusedError(  # safety: expired-is-not-revised
            f"revision of {new.topology} from barrier {new.first_barrier}: expected every barrier that it builds on "
            f"within retention, found that barrier {gone} has expired since it was planned; plan it again"
        )


def extend(connection: Connection, revision: Revision, actor: str) -> list[Barrier]:
    """Add the barriers that were opened since, so that it reaches the head; returns these.

    A barrier that was aborted meanwhile is aborted in the revision too, with the one that stands. Raises
    RevisionRefusedError where a job has come to read what the revision computes again, and is not part of it.
    """
    check_staging(connection, revision.topology, revision.revision)
    known = barriers_of(connection, revision)
    before = known[-1].barrier_id if known else revision.predecessor
    current = load_topology(connection, revision.topology, _version(connection, revision))
    added = []
    for barrier in _epochs_after(connection, revision, known):
        _insert(connection, revision, barrier, before, current, actor)
        before = barrier.barrier_id
        added.append(barrier)
    return added


def _epochs_after(connection: Connection, revision: Revision, known: Sequence[Barrier]) -> list[Barrier]:
    """The barriers with an epoch that stand and that the revision lacks. Maintenance has none."""
    table = schema.barrier
    first = known[-1].barrier_id + 1 if known else revision.first_barrier
    rows = connection.execute(
        select(table)
        .where(of_topology(table, revision.topology), schema.ONE_A_TIMESTAMP, table.c.barrier_id >= first)
        .order_by(table.c.barrier_id)
    )
    return to_records(Barrier, rows)


def _insert(
    connection: Connection, revision: Revision, barrier: Barrier, before: int, current: Topology, actor: str
) -> None:
    version = _version_at(connection, revision, barrier, current)
    again = _tables_at(connection, revision, barrier, version)
    _check_stay(connection, revision, barrier, before, again)
    _check_starts(connection, revision, barrier)
    state = BarrierState.OPEN if again else BarrierState.PRECOMMIT
    key = barrier_key(barrier.topology, barrier.barrier_id, revision.revision)
    connection.execute(
        insert(schema.barrier).values(
            **key,
            timestamp=barrier.timestamp,
            state=state.value,
            predecessor=before,
            topology_version=version,
            **to_columns(Barrier, kind=barrier.kind, run=barrier.run, timestamp_from=barrier.timestamp_from),
            opened_at=DatabaseNow(),
            computed_in=revision.revision,
        )
    )
    if again:
        connection.execute(
            insert(schema.table_progress),
            [
                {**key, "table_name": table, "job": job, "state": TableState.PENDING.value}
                for table, job in again.items()
            ],
        )
    event = Event("opened", actor, {"timestamp": barrier.timestamp.isoformat(), "predecessor": before})
    record(
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "barrier",
        [str(barrier.barrier_id)],
        after=state.value,
        revision=revision.revision,
    )


def _tables_at(connection: Connection, revision: Revision, barrier: Barrier, version: int) -> dict[str, str | None]:
    """Map the tables that the revision computes at a barrier to jobs. Where tables join, the barrier has them only in
    it.
    """
    if revision.mode is RevisionMode.HISTORY:
        topology = load_topology(connection, barrier.topology, version)
        return {table: topology.writer(table).name for table in revision.tables}
    rows = progress(connection, barrier.topology, barrier.barrier_id)
    return {name: row.job for name, row in rows.items() if name in revision.tables}


def _check_stay(
    connection: Connection, revision: Revision, barrier: Barrier, before: int, tables: Collection[str]
) -> None:
    """Raise RevisionRefusedError for a table that has left since ``before``, or will be back only later: of the epochs
    up to there it would stay as it was, since nobody publishes it.
    """
    had = progress(connection, barrier.topology, before, revision.revision)
    gone = sorted(set(had) - set(tables))
    if gone:
        raise RevisionRefusedError(  # safety: revised-tables-stay
            f"{revision}: expected {', '.join(gone)} at each barrier from where it joins to the head, found that "
            f"{barrier} does not have it: its job left. Begin with {barrier} or later"
        )


def _check_starts(connection: Connection, revision: Revision, barrier: Barrier) -> None:
    """Raise RevisionRefusedError if a job joins with a later barrier than the first, and goes on from snapshots of
    tables that the revision clears. The tables as they are computed anew do not descend from these snapshots.
    """
    if revision.mode is not RevisionMode.FULL or barrier.barrier_id == revision.first_barrier:
        return
    for start in starts_at(connection, barrier.topology, barrier.barrier_id):
        had = {table for table, snapshot in start.previous.items() if snapshot is not None}
        cleared = sorted(had & set(revision.tables))
        if start.job in revision.jobs and cleared:
            raise RevisionRefusedError(  # safety: cleared-is-not-gone-on-from
                f"{revision}: expected every job to begin with the first barrier where tables are computed from the "
                f"beginning, found that job {start.job} joins with {barrier}, and goes on from what "
                f"{', '.join(cleared)} held before it. Begin with {barrier} or later, or leave out --full"
            )


def _version_at(connection: Connection, revision: Revision, barrier: Barrier, current: Topology) -> int:
    """The topology of the barrier with the revision's jobs as they are declared now, and with those that join.

    Raises RevisionRefusedError for a job that reads by now what was not there at that barrier, and for one that reads
    there what the revision computes again and is not part of it.
    """
    then = load_topology(connection, barrier.topology, barrier.topology_version)
    for job in then.jobs:
        revised = sorted(set(job.inlets) & set(revision.tables))
        if revised and not set(job.outlets) <= set(revision.tables):
            raise RevisionRefusedError(  # safety: revises-all-that-stands-on-it
                f"{revision}: expected to compute again all that stands on {', '.join(revised)}, found at {barrier} "
                f"job {job.name}, which reads that and is not part of it; cancel it and plan it again: "
                f"airflow-barrier revision cancel {barrier.topology} {revision.revision}"
            )
    now = {job.name: job for job in current.jobs if job.name in revision.jobs}
    jobs = [now.get(job.name, job) for job in then.jobs]
    if revision.mode is RevisionMode.HISTORY:
        jobs += now.values()
    if jobs == list(then.jobs):
        return barrier.topology_version
    written = {outlet for job in jobs for outlet in job.outlets}
    for job in jobs:
        missing = sorted(set(job.inlets) - written)
        if missing:
            raise RevisionRefusedError(  # safety: replays-on-what-was-there
                f"{revision}: job {job.name} reads {', '.join(missing)} by now, which {barrier} does not have; begin "
                "at the first barrier that has it, or compute that table over history first"
            )
    return version_of(connection, Topology.of(barrier.topology, jobs))


def _version(connection: Connection, revision: Revision) -> int:
    return int(
        connection.execute(
            select(_TABLE.c.topology_version).where(*of_revision(revision.topology, revision.revision))
        ).scalar_one()
    )
