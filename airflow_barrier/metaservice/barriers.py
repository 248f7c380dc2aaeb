"""Barriers: opened, aborted, and looked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from airflow_barrier.metaservice import revision_rows, schema
from airflow_barrier.metaservice.cuts import check_begins, insert_cut
from airflow_barrier.metaservice.leases import roll_back
from airflow_barrier.metaservice.mapping import to_columns, to_record, to_records
from airflow_barrier.metaservice.rows import (
    attempts_of,
    barrier_key,
    epoch_of,
    head,
    load_barrier,
    load_topology,
    lock_topology,
    newest,
    of_barrier,
    of_topology,
    own_progress,
    progress,
    read_progress,
    standing,
    topology_version,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import insert_starts
from airflow_barrier.metaservice.topologies import staged_somewhere
from airflow_barrier.metaservice.transaction import Group, changes, locked, reads
from airflow_barrier.metaservice.transitions import Event, end_attempt, move_barrier, record, unstage_tables
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    BarrierOrderError,
    ConfigurationError,
    GatedError,
    HeadMovedError,
    TooManyOpenBarriersError,
    TopologyError,
)
from airflow_barrier.protocol.reaching import Standing
from airflow_barrier.protocol.records import NO_RUN, Barrier, BarrierKind, Cut, JobStart, RunRef, TableProgress
from airflow_barrier.protocol.states import (
    DECIDED_BARRIERS,
    LIVE_ATTEMPTS,
    AttemptState,
    BarrierState,
    TableState,
)
from airflow_barrier.protocol.topology import Topology

#: The baseline is before every barrier.
_BASELINE_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Opening:
    """The input to opening a barrier: all of it was found out before, in a look that may be stale by now.

    ``timestamp`` is aware. ``topology_version`` and ``predecessor``, the head (0 before the first open), are those that
    the rest was found with; ``baseline`` is the `main` snapshot of each of :meth:`Barriers.unjoined`, ``starts`` says
    what the tables of each job hold all of whose tables join.
    """

    topology: str
    timestamp: datetime
    topology_version: int
    cuts: Sequence[Cut]
    predecessor: int
    run: RunRef
    timestamp_from: str
    max_open: int
    baseline: Mapping[str, int | None]
    actor: str
    starts: Sequence[JobStart] = ()
    kind: BarrierKind = BarrierKind.EPOCH


class Barriers(Group):
    """The barriers of each topology, and their tables.

    ``line`` 0 is what stands; another one is the number of a revision, which computes barriers again.
    """

    @changes
    def open(self, connection: Connection, opening: Opening) -> Barrier:
        """Open the next barrier, with the cut of every source and all tables PENDING.

        Raises HeadMovedError (look again) if head or topology changed since the look, BarrierOrderError for a timestamp
        that is not after the head's, TooManyOpenBarriersError when ``max_open`` are uncommitted, GatedError while a
        revision is published first, SourceDataError for an item that was read before.
        """
        version = lock_topology(connection, opening.topology)
        topology = load_topology(connection, opening.topology, version)
        check_gate(connection, opening.topology)
        latest = head(connection, opening.topology)
        _check_head(opening, latest)
        _check_look(opening, topology, version, unjoined(connection, topology, latest))
        if latest is not None and opening.cuts:
            check_begins(connection, epoch_of(connection, latest), opening.cuts)
        check_room(opening, uncommitted(connection, opening.topology))
        if latest is None:
            insert_baseline(connection, opening.topology, version, opening.actor)
        join_tables(connection, opening.topology, opening.baseline, opening.actor)
        barrier = insert_open(connection, opening, topology)
        for cut in opening.cuts:
            insert_cut(connection, barrier, cut)
        insert_starts(connection, opening.topology, barrier.barrier_id, opening.starts, opening.actor)
        return barrier

    @locked
    def abort(self, connection: Connection, topology: str, barrier_id: int, reason: str, actor: str) -> list[Barrier]:
        """Give up a barrier and all later ones, with their attempts; returns them, [] if it was aborted before.

        Raises AlreadyCommittedError from COMMITTING on.
        """
        barrier = load_barrier(connection, topology, barrier_id)
        if barrier.state is BarrierState.ABORTED:  # safety: abort-again
            return []
        if barrier.state in DECIDED_BARRIERS:
            raise AlreadyCommittedError(  # safety: decided-is-not-aborted
                f"{barrier}: expected OPEN or PRECOMMIT, found {barrier.state.value}; the decision to commit is "
                "durable, so it cannot be aborted any more: let it commit, then correct the data at a later barrier"
            )
        aborted = [
            abort_one(
                connection,
                each,
                reason if each.barrier_id == barrier_id else f"with barrier {barrier_id}: {reason}",
                actor,
            )
            for each in uncommitted(connection, topology, first=barrier_id)
        ]
        revision = revision_rows.under_way(connection, topology)
        if revision is not None:
            for each in uncommitted(connection, topology, first=barrier_id, line=revision.revision):
                abort_one(connection, each, f"barrier {barrier_id} was aborted: {reason}", actor)
        return aborted

    @locked
    def checked(
        self,
        connection: Connection,
        topology: str,
        barrier_id: int,
        line: int,
        check: str,
        found: str | None,
        actor: str,
    ) -> None:
        """Write down what a check has ``found`` in a barrier that is PRECOMMIT, as its reason; None: nothing is wrong,
        or not any more.
        """
        barrier = load_barrier(connection, topology, barrier_id, line)
        what = f"check {check!r} found "
        if barrier.state is not BarrierState.PRECOMMIT:
            return  # it was staged anew since, or given up
        if found is None and not (barrier.reason or "").startswith(what):
            return
        table, state = schema.barrier, barrier.state.value
        reason = None if found is None else what + found
        connection.execute(update(table).where(of_barrier(table, topology, barrier_id, line)).values(reason=reason))
        event = Event("check passed" if found is None else "check failed", actor, {"check": check, "found": found})
        record(connection, event, topology, barrier_id, "barrier", [str(barrier_id)], state, state, revision=line)

    @reads
    def get(self, connection: Connection, topology: str, barrier_id: int, line: int = 0) -> Barrier:
        """The barrier of that number, aborted or not; ``line``: as revision ``line`` computes it again."""
        return load_barrier(connection, topology, barrier_id, line)

    @reads
    def epoch_of(self, connection: Connection, barrier: Barrier) -> Barrier:
        """``barrier`` or, if it is a maintenance barrier and so has no epoch, the newest below it that has one."""
        return epoch_of(connection, barrier)

    @reads
    def head(self, connection: Connection, topology: str) -> Barrier | None:
        """The newest barrier that is not aborted, the baseline (0) included; None before the first open."""
        return head(connection, topology)

    @reads
    def at(self, connection: Connection, topology: str, timestamp: datetime) -> Barrier | None:
        """The barrier of that timestamp that is not aborted."""
        table = schema.barrier
        row = connection.execute(
            select(table).where(of_topology(table, topology), table.c.timestamp == timestamp, schema.ONE_A_TIMESTAMP)
        ).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @reads
    def aborted_at(self, connection: Connection, topology: str, timestamp: datetime) -> Barrier | None:
        """The newest barrier that was aborted at that timestamp, also if another one is there: :meth:`at`."""
        table = schema.barrier
        row = connection.execute(
            select(table)
            .where(
                of_topology(table, topology),
                table.c.timestamp == timestamp,
                table.c.state == BarrierState.ABORTED.value,
                table.c.kind != BarrierKind.MAINTENANCE.value,
            )
            .order_by(table.c.barrier_id.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @reads
    def of_run(self, connection: Connection, topology: str, run: RunRef) -> Barrier | None:
        """The newest barrier that this run opened, aborted or not."""
        table = schema.barrier
        row = connection.execute(
            select(table)
            .where(of_topology(table, topology), table.c.run_dag_id == run.dag_id, table.c.run_id == run.run_id)
            .order_by(table.c.barrier_id.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @reads
    def newest_decided(self, connection: Connection, topology: str) -> Barrier | None:
        """The newest barrier that is COMMITTING, BLOCKED or COMMIT, the baseline included; None before it."""
        return newest(connection, topology, DECIDED_BARRIERS)

    @reads
    def uncommitted(self, connection: Connection, topology: str) -> list[Barrier]:
        """All that are neither committed nor aborted, in order."""
        return uncommitted(connection, topology)

    @reads
    def newest(
        self, connection: Connection, topology: str, states: Sequence[BarrierState] = tuple(BarrierState), *, limit: int
    ) -> list[Barrier]:
        """The newest ``limit`` barriers in one of ``states``, the newest first; the baseline is one of them."""
        topology_version(connection, topology)
        query = (
            select(schema.barrier)
            .where(of_topology(schema.barrier, topology), schema.barrier.c.state.in_([state.value for state in states]))
            .order_by(schema.barrier.c.barrier_id.desc())
            .limit(limit)
        )
        return to_records(Barrier, connection.execute(query))

    @reads
    def epochs(
        self,
        connection: Connection,
        topology: str,
        *,
        first: int = 1,
        after: datetime | None = None,
        committed: bool = False,
        limit: int,
    ) -> list[Barrier]:
        """The oldest ``limit`` barriers that have an epoch which counts, oldest first: neither aborted nor maintenance.

        From barrier ``first`` on, of a timestamp later than ``after`` (UTC); ``committed``: those that are COMMIT.
        """
        barrier = schema.barrier.c
        query = select(schema.barrier).where(*_with_epoch(topology, committed, first))
        if after is None:
            query = query.order_by(barrier.barrier_id)
        else:  # timestamps rise with ids; said as text, planners see that there is an index by time
            query = query.where(schema.NOT_ABORTED, barrier.timestamp > after)
            query = query.order_by(barrier.timestamp, barrier.barrier_id)
        return to_records(Barrier, connection.execute(query.limit(limit)))

    @reads
    def newest_epochs(self, connection: Connection, topology: str, limit: int) -> list[Barrier]:
        """The newest ``limit`` barriers that are COMMIT and have an epoch, the newest first."""
        query = select(schema.barrier).where(*_with_epoch(topology, committed=True))
        rows = connection.execute(query.order_by(schema.barrier.c.barrier_id.desc()).limit(limit))
        return to_records(Barrier, rows)

    @reads
    def oldest_readable_epoch(self, connection: Connection, topology: str) -> Barrier | None:
        """The oldest barrier with an epoch that is COMMIT and does not expire."""
        query = select(schema.barrier).where(*_with_epoch(topology, committed=True), schema.READABLE)
        row = connection.execute(query.order_by(schema.barrier.c.barrier_id).limit(1)).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @reads
    def count_epochs(self, connection: Connection, topology: str, first: int) -> int:
        """Return how many barriers from ``first`` on have an epoch that counts. Reads them all, in the database."""
        where = _with_epoch(topology, committed=False, first=first)
        return int(connection.execute(select(func.count()).select_from(schema.barrier).where(*where)).scalar_one())

    @reads
    def unjoined(self, connection: Connection, topology: str) -> tuple[str, ...]:
        """The tables that join with the next barrier, which needs their baseline: the head does not have them."""
        return unjoined(connection, current_topology(connection, topology), head(connection, topology))

    @reads
    def progress(self, connection: Connection, topology: str, barrier_id: int) -> list[TableProgress]:
        """Every table of a barrier, in the order of their names."""
        return list(progress(connection, topology, barrier_id).values())

    @reads
    def progress_at(
        self, connection: Connection, topology: str, barrier_ids: Collection[int]
    ) -> dict[int, list[TableProgress]]:
        """:meth:`progress` of several barriers, by their numbers. One query."""
        read_progress(connection, topology, barrier_ids)
        return {each: list(progress(connection, topology, each).values()) for each in barrier_ids}

    @reads
    def stands(self, connection: Connection, topology: str, barrier_id: int, line: int = 0) -> Standing:
        """Return the state of each table of a barrier; ``line``: in revision ``line``. For those who wait: two
        queries.
        """
        barrier = load_barrier(connection, topology, barrier_id, line)
        if barrier.state in (BarrierState.COMMIT, BarrierState.ABORTED) and barrier_id > 0:
            # the rows of its tables may have been trimmed; which ones it had is known all the same
            members = load_topology(connection, topology, barrier.topology_version).tables
            state = TableState.WRITTEN if barrier.state is BarrierState.COMMIT else TableState.PENDING
            return Standing(barrier, dict.fromkeys(members, state))
        # what a maintenance barrier passes by is there as soon as it was there before
        return Standing(barrier, {name: row.state for name, row in standing(connection, barrier).items()})


def check_gate(connection: Connection, topology: str) -> None:
    """Raise GatedError while no barrier may open, because a revision is about to be published."""
    revision = revision_rows.gatekeeper(connection, topology)
    if revision is not None:
        raise GatedError(  # safety: gate-is-closed
            f"topology {topology}: expected that barriers may open, found {revision} ({revision.state.value}), which "
            "has caught up with the head and is published first; try again then, or cancel it: airflow-barrier "
            f"revision cancel {topology} {revision.revision}"
        )


def insert_open(connection: Connection, opening: Opening, topology: Topology) -> Barrier:
    """A new barrier: OPEN, with all tables of ``topology`` PENDING."""
    barrier_id = _next_id(connection, opening.topology)
    opened = connection.execute(
        insert(schema.barrier)
        .values(
            **barrier_key(opening.topology, barrier_id),
            timestamp=opening.timestamp,
            state=BarrierState.OPEN.value,
            predecessor=opening.predecessor,
            topology_version=opening.topology_version,
            **to_columns(Barrier, kind=opening.kind, run=opening.run, timestamp_from=opening.timestamp_from),
            opened_at=DatabaseNow(),
            max_open=opening.max_open,
        )
        .returning(schema.barrier)
    ).one()
    connection.execute(
        insert(schema.table_progress),
        [
            {
                **barrier_key(opening.topology, barrier_id),
                "table_name": table,
                "job": topology.writer(table).name,
                "state": TableState.PENDING.value,
            }
            for table in topology.tables
        ],
    )
    detail = {
        "timestamp": opening.timestamp.isoformat(),
        "timestamp_from": opening.timestamp_from,
        "kind": opening.kind.value,
        "run": str(opening.run),
        "run_kind": opening.run.kind,
        "predecessor": opening.predecessor,
    }
    put_off = {cut.source: cut.put_off for cut in opening.cuts if cut.put_off is not None}
    event = Event("opened", opening.actor, {**detail, **({"put_off": put_off} if put_off else {})})
    record(connection, event, opening.topology, barrier_id, "barrier", [str(barrier_id)], after=BarrierState.OPEN.value)
    return to_record(Barrier, opened)


def unjoined(connection: Connection, topology: Topology, latest: Barrier | None) -> tuple[str, ...]:
    """Tables that the newest barrier does not have: they join with the next one, and need a baseline for it."""
    # the baseline alone has no member yet: whoever was in an aborted first barrier joins anew
    joined = progress(connection, topology.name, latest.barrier_id) if latest is not None and latest.barrier_id else {}
    return tuple(table for table in topology.tables if table not in joined)


def abort_one(connection: Connection, barrier: Barrier, reason: str, actor: str) -> Barrier:
    """This barrier alone, for callers that see to the later ones."""
    event = Event("aborted", actor, {"reason": reason})
    for attempt in attempts_of(connection, barrier.topology, barrier.barrier_id, barrier.line):
        if attempt.state in LIVE_ATTEMPTS:
            end_attempt(
                connection, attempt, AttemptState.VOIDED, f"its barrier was aborted: {reason}", event
            )  # safety: abort-voids-attempts
    tables = own_progress(connection, barrier).values()
    staged = [each.table for each in tables if each.state is TableState.PROCESSED]
    unstage_tables(connection, barrier, staged, event)  # safety: abort-unstages-tables
    if staged:
        roll_back(connection, barrier)  # safety: abort-is-told-readers
    # Its items are free again: they join the next barrier's cut.
    connection.execute(
        delete(schema.cut_item).where(of_barrier(schema.cut_item, barrier.topology, barrier.barrier_id, barrier.line))
    )  # safety: abort-frees-items
    return move_barrier(
        connection, barrier, BarrierState.ABORTED, event, aborted_at=DatabaseNow(), precommit_at=None, reason=reason
    )


# --- the parts of opening -------------------------------------------------------------------------


def _check_head(opening: Opening, latest: Barrier | None) -> None:
    if opening.timestamp.tzinfo is None:
        raise ConfigurationError(
            f"barrier of {opening.topology}: expected a timestamp with a time zone, found {opening.timestamp}; "
            "pass an aware datetime, best in UTC"
        )
    found = latest.barrier_id if latest is not None else 0
    if found != opening.predecessor:
        raise HeadMovedError(  # safety: opens-on-the-head
            f"topology {opening.topology}: expected barrier {opening.predecessor} to be the newest, found {found}; "
            "another process opened or aborted a barrier meanwhile: look again"
        )
    if latest is not None and opening.timestamp <= latest.timestamp:
        relation = "equals" if opening.timestamp == latest.timestamp else "is before"
        raise BarrierOrderError(  # safety: timestamps-rise
            f"topology {opening.topology}: expected a timestamp after {latest.timestamp.isoformat()} of barrier "
            f"{latest.barrier_id} (opened by {latest.run}), found {opening.timestamp.isoformat()}, which "
            f"{relation} it; open barriers in the order of time: check the clock, and that the start task depends on "
            "past"
        )


def _check_look(opening: Opening, topology: Topology, version: int, joining: Sequence[str]) -> None:
    """Members, cuts, baseline and starts are of one look, and it is not stale. ``joining``: tables."""
    if not topology.jobs:
        raise TopologyError(
            f"topology {topology.name}: expected jobs, found none; every DAG has left it: register one, or stop "
            "opening barriers"
        )
    if version != opening.topology_version:
        raise HeadMovedError(  # safety: opens-with-members-that-were-seen
            f"topology {topology.name}: expected version {opening.topology_version}, found {version}; a job joined or "
            "left meanwhile: look again"
        )
    sources = {source.name for source in topology.externals}
    jobs = {job.name for job in topology.jobs if set(joining).issuperset(job.outlets)}
    for what, expected, found in (
        ("a cut of each source", sources, {cut.source for cut in opening.cuts}),
        ("the baseline of each table that joins", set(joining), set(opening.baseline)),
        ("how each job that joins begins", jobs, {start.job for start in opening.starts}),
    ):
        if expected != found:
            raise HeadMovedError(  # safety: opens-on-what-was-seen
                f"topology {topology.name}: expected {what} ({', '.join(sorted(expected)) or 'none'}), found "
                f"{', '.join(sorted(found)) or 'none'}; the topology changed meanwhile: look again"
            )
    for start in opening.starts:
        for table, main in start.baseline.items():
            if opening.baseline[table] != main:
                raise HeadMovedError(  # safety: opens-on-one-baseline
                    f"topology {topology.name}: expected table {table} at snapshot {main}, as job {start.job} found "
                    f"it, found it at {opening.baseline[table]}; somebody wrote to it meanwhile: look again"
                )


def check_room(opening: Opening, in_flight: Sequence[Barrier]) -> None:
    if len(in_flight) >= opening.max_open:
        oldest = in_flight[0]
        raise TooManyOpenBarriersError(  # safety: max-open-barriers
            f"topology {opening.topology}: expected fewer than {opening.max_open} uncommitted barriers "
            f"(max_open_barriers), found {len(in_flight)}; the oldest is {oldest}, {oldest.state.value}: wait until "
            "it is committed, or abort it"
        )


def insert_baseline(connection: Connection, topology: str, version: int, actor: str) -> None:
    """Barrier 0, which every topology begins with."""
    connection.execute(
        insert(schema.barrier).values(
            **barrier_key(topology, 0),
            timestamp=_BASELINE_TIME,
            state=BarrierState.COMMIT.value,
            topology_version=version,
            **to_columns(Barrier, kind=BarrierKind.BASELINE, run=NO_RUN, timestamp_from="baseline"),
            opened_at=DatabaseNow(),
            commit_at=DatabaseNow(),
        )
    )
    record(
        connection,
        Event("baseline", actor),
        topology,
        0,
        "barrier",
        ["0"],
        after=BarrierState.COMMIT.value,
    )


def join_tables(connection: Connection, topology: str, baseline: Mapping[str, int | None], actor: str) -> None:
    """Write the baseline of the tables that join; one that was here before and comes back gets a new one."""
    if not baseline:
        return
    table = schema.table_progress
    known = progress(connection, topology, 0)
    new = [
        {**barrier_key(topology, 0), "table_name": name, "state": TableState.WRITTEN.value, "snapshot_id": snapshot}
        for name, snapshot in sorted(baseline.items())
        if name not in known
    ]
    if new:
        connection.execute(insert(table).values(written_at=DatabaseNow()), new)
    for name in sorted(set(baseline).intersection(known)):
        if staged_somewhere(connection, topology, name):
            raise TooManyOpenBarriersError(  # safety: comes-back-after-publish
                f"topology {topology}: table {name} left and comes back, while an uncommitted barrier "
                "still has to publish it; wait until that one is committed, or abort it"
            )
        connection.execute(
            update(table)
            .where(of_barrier(table, topology, 0), table.c.table_name == name)
            .values(snapshot_id=baseline[name], written_at=DatabaseNow())
        )
    after = TableState.WRITTEN.value
    for name, snapshot in sorted(baseline.items()):
        event = Event("joined", actor, {"snapshot_id": snapshot})
        before = known[name].state.value if name in known else None
        record(connection, event, topology, 0, "table", [name], before, after)


def _next_id(connection: Connection, topology: str) -> int:
    # After aborted ones too: an id is never used again, since branches and stamps of the old one may still be about.
    last = newest(connection, topology, BarrierState)
    return 1 if last is None else last.barrier_id + 1


def current_topology(connection: Connection, name: str) -> Topology:
    return load_topology(connection, name, topology_version(connection, name))


def _with_epoch(topology: str, committed: bool, first: int = 1) -> list[ColumnElement[bool]]:
    """The condition: neither aborted nor the baseline, nor maintenance, which has none of its own."""
    barrier, states = schema.barrier.c, BarrierState
    return [
        of_topology(schema.barrier, topology),
        barrier.state == states.COMMIT.value if committed else barrier.state != states.ABORTED.value,
        barrier.barrier_id >= max(first, 1),
        barrier.kind != BarrierKind.MAINTENANCE.value,
    ]
