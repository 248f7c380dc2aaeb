"""From STAGING to COMMIT: the durable decision to publish a revision, and the exchange of the lines.

What stood goes to line -r, what the revision computed becomes line 0, in the transaction that publishes the tables.
Only what the revision computed again moves: the cost follows that, not the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, insert, literal, select, true, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.barriers import abort_one, join_tables
from airflow_barrier.metaservice.leases import roll_back
from airflow_barrier.metaservice.mapping import to_records
from airflow_barrier.metaservice.revision_rows import barriers_of, check_staging, load_revision, move
from airflow_barrier.metaservice.rows import (
    STANDING,
    attempts_of,
    barrier_key,
    epoch_of,
    load_barrier,
    load_topology,
    newest,
    of_barrier,
    of_topology,
    own_progress,
    progress,
    progress_before,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import insert_starts
from airflow_barrier.metaservice.topologies import admit
from airflow_barrier.metaservice.transitions import (
    Event,
    end_attempt,
    move_barrier,
    move_tables,
    precommit_if_complete,
    record,
)
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    HeadMovedError,
    RevisionEndedError,
    RevisionNotStagedError,
)
from airflow_barrier.protocol.records import Barrier, JobStart, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, AttemptState, BarrierState, TableState

_PUBLISHING = frozenset({BarrierState.COMMITTING, BarrierState.BLOCKED})


@dataclass(frozen=True)
class SwapRows:
    """The rows that a revision publishes. ``barriers``: of each readable COMMIT barrier from its first to its head,
    what all its tables are at once the revision stands (table -> snapshot). ``before``: what the revision's tables were
    at just before its first barrier.
    """

    barriers: Mapping[int, Mapping[str, int | None]]
    before: Mapping[str, int | None]


@dataclass(frozen=True)
class Revised:
    """A barrier as it stands once a revision is published, and each of its tables."""

    barrier: Barrier
    rows: tuple[TableProgress, ...]


@dataclass(frozen=True)
class Unstaged:
    """A barrier that keeps a revision from being published: ``tables`` (with who writes them) are not computed again
    yet; of none, ``why`` says what it is instead.
    """

    barrier: Barrier
    tables: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        return f"{self.barrier} {self.why or 'lacks ' + ', '.join(self.tables)}"


def unstaged(connection: Connection, revision: Revision) -> list[Unstaged]:
    """Return the barriers still missing before it can be published, oldest first; empty: none."""
    known = {barrier.barrier_id: barrier for barrier in barriers_of(connection, revision)}
    missing = []
    for barrier in _standing_from(connection, revision):
        if barrier.is_maintenance:
            if barrier.state is not BarrierState.COMMIT:
                missing.append(Unstaged(barrier, why=f"maintains tables and is {barrier.state.value}"))
            continue
        revised = known.get(barrier.barrier_id)
        if revised is None:
            missing.append(Unstaged(barrier, why="was opened since"))
        elif revised.state is BarrierState.OPEN:
            rows = progress(connection, revision.topology, barrier.barrier_id, revision.revision).values()
            tables = tuple(f"{row.table} (job {row.job})" for row in rows if row.state is TableState.PENDING)
            missing.append(Unstaged(revised, tables))
    return missing


def begin_swap(
    connection: Connection, topology: str, number: int, head: int, expected: Mapping[str, int | None], actor: str
) -> Revision:
    """STAGING -> COMMITTING, with the `main` that each table is expected to be at: what ``head``, the newest COMMIT
    barrier, has it at. Again changes nothing.
    """
    revision = load_revision(connection, topology, number)
    if revision.state in (RevisionState.COMMITTING, RevisionState.COMMIT):  # safety: revision-decided-once
        return revision
    check_staging(connection, topology, number)
    missing = unstaged(connection, revision)
    if missing:
        raise RevisionNotStagedError(  # safety: publishes-only-what-is-staged
            f"{revision}: expected every barrier from {revision.first_barrier} to the head computed again, found that "
            f"{'; '.join(map(str, missing[:5]))}{' and more' if len(missing) > 5 else ''}; it is published once that "
            "is done"
        )
    for other in uncommitted(connection, topology):
        if other.state in _PUBLISHING:
            raise RevisionNotStagedError(  # safety: one-publisher
                f"{revision}: expected nothing else to be published in {topology}, found {other}, {other.state.value}; "
                "finish that one first"
            )
    committed = newest(connection, topology, {BarrierState.COMMIT})
    last = newest(connection, topology, [state for state in BarrierState if state is not BarrierState.ABORTED])
    assert committed is not None
    assert last is not None
    if committed.barrier_id != head:
        raise HeadMovedError(  # safety: swaps-at-the-head-that-was-seen
            f"{revision}: expected barrier {head} to be the newest COMMIT, found {committed}; another barrier was "
            "committed meanwhile: look again"
        )
    tables = sorted({*progress(connection, topology, committed.barrier_id), *revision.expected})
    if set(expected) != set(tables):
        raise ConfigurationError(  # safety: expected-main-of-every-table
            f"{revision}: expected the current snapshots of the tables of {committed}, {', '.join(tables)}, found "
            f"those of {', '.join(sorted(expected)) or 'none'}; look at exactly these tables before the publish"
        )
    # the one row that may be COMMITTING in a topology: no barrier is published beside it
    token = load_barrier(connection, topology, epoch_of(connection, committed).barrier_id, number)
    move_barrier(connection, token, BarrierState.COMMITTING, Event("committing", actor), committing_at=DatabaseNow())
    if revision.mode is RevisionMode.FULL:
        _drop_whole_cuts(connection, revision)  # safety: cut-is-of-one-epoch
    event = Event("committing", actor, {"head": committed.barrier_id, "expected": dict(expected)})
    return move(
        connection,
        revision,
        RevisionState.COMMITTING,
        event,
        head=committed.barrier_id,
        last=last.barrier_id,
        expected=dict(expected),
        committing_at=DatabaseNow(),
    )


def _drop_whole_cuts(connection: Connection, revision: Revision) -> None:
    """All epochs up to its first barrier were read as one. That barrier keeps the cut of its own epoch: who computes it
    again, on what is before it, takes no more.
    """
    for table in (schema.cut_item, schema.cut):
        here = of_barrier(table, revision.topology, revision.first_barrier, revision.revision)
        connection.execute(delete(table).where(here))


def swappable(connection: Connection, topology: str, number: int) -> Revision | None:
    """The COMMITTING revision; None if it is COMMIT already."""
    revision = load_revision(connection, topology, number)
    if revision.state is RevisionState.COMMIT:  # safety: revision-published-once
        return None
    if revision.state is not RevisionState.COMMITTING:
        raise RevisionEndedError(  # safety: only-decided-revision-is-published
            f"{revision}: expected COMMITTING to publish it, found {revision.state.value}"
        )
    return revision


def finish_swap(connection: Connection, revision: Revision, actor: str) -> Revision:
    """Let stand what the revision computed, at its committed and at its open barriers."""
    standing = _standing_from(connection, revision)
    event = Event("revised", actor, {"revision": revision.revision, "tables": list(revision.tables)})
    _keep_replaced(connection, revision, standing)
    joins = revision.mode is RevisionMode.HISTORY
    if joins:  # before a barrier that is open has the tables: from then on they could not join
        baseline = {table: revision.expected[table] for table in revision.tables}
        join_tables(connection, revision.topology, baseline, actor)
        starts = _starts(connection, revision, baseline)
        insert_starts(connection, revision.topology, revision.first_barrier, starts, actor)  # safety: joins-with-all
    for barrier in standing:
        if barrier.state is not BarrierState.COMMIT:
            _void_replaced(connection, revision, barrier, event)
        elif not barrier.is_maintenance:
            _write_down(connection, revision, barrier, event)
    _exchange(connection, revision)
    for barrier in standing:
        _let_stand(connection, revision, barrier, event, actor)
    forget_line(connection, revision)
    if joins:
        admit(connection, revision.topology, actor)  # safety: joins-with-its-history
    done = Event("commit", actor, {"head": revision.head, "last": revision.last})
    return move(connection, revision, RevisionState.COMMIT, done, commit_at=DatabaseNow())


def cancel(connection: Connection, topology: str, number: int, reason: str, actor: str) -> Revision:
    """STAGING -> CANCELLED: what it staged does not count. Again changes nothing."""
    revision = load_revision(connection, topology, number)
    if revision.state is RevisionState.CANCELLED:
        return revision
    if revision.state is not RevisionState.STAGING:
        raise RevisionEndedError(  # safety: decided-revision-is-not-cancelled
            f"{revision}: expected STAGING to cancel it, found {revision.state.value}; the decision to publish it is "
            "durable: correct what is wrong in it by another revision"
        )
    for barrier in barriers_of(connection, revision):
        abort_one(connection, barrier, f"{revision} was cancelled: {reason}", actor)
    return move(
        connection,
        revision,
        RevisionState.CANCELLED,
        Event("cancelled", actor, {"reason": reason}),
        cancelled_at=DatabaseNow(),
        gated_at=None,
    )


# --- the parts of the exchange --------------------------------------------------------------------


def _standing_from(connection: Connection, revision: Revision) -> list[Barrier]:
    """The barriers that stand, from the revision's first one on; once it is decided, to the last one of then."""
    table = schema.barrier
    rows = connection.execute(
        select(table)
        .where(
            of_topology(table, revision.topology),
            schema.NOT_ABORTED,
            table.c.barrier_id >= revision.first_barrier,
            *([] if revision.last is None else [table.c.barrier_id <= revision.last]),
        )
        .order_by(table.c.barrier_id)
    )
    return to_records(Barrier, rows)


def _starts(connection: Connection, revision: Revision, baseline: Mapping[str, int | None]) -> list[JobStart]:
    """Return starts by which the first epoch of these jobs, computed once more, takes all that their inlets hold."""
    first = load_barrier(connection, revision.topology, revision.first_barrier, revision.revision)
    topology = load_topology(connection, revision.topology, first.topology_version)
    return [
        JobStart(
            job=job.name,
            start_from=job.start_from,
            baseline={outlet: baseline[outlet] for outlet in job.outlets},
            previous=dict.fromkeys(job.inlets),
            externals={},
        )
        for job in (topology.job(name) for name in revision.jobs)
    ]


def _keep_replaced(connection: Connection, revision: Revision, standing: Sequence[Barrier]) -> None:
    """The barriers as they were, in line -r, for who asks for the old revision by its number."""
    table = schema.barrier
    columns = [column for column in table.columns if column.name not in ("line", "state")]
    for barrier in standing:
        kept = barrier.state is BarrierState.COMMIT
        # what was never committed is nothing to be read, nor does anybody commit it any more
        state = (BarrierState.COMMIT if kept else BarrierState.ABORTED).value
        chosen = select(literal(-revision.revision), literal(state), *columns).where(
            of_barrier(table, barrier.topology, barrier.barrier_id)
        )
        connection.execute(insert(table).from_select(["line", "state", *(c.name for c in columns)], chosen))


def _void_replaced(connection: Connection, revision: Revision, barrier: Barrier, event: Event) -> None:
    """Attempts at an open barrier that work on what the revision has computed again."""
    reason = f"{revision} has computed this barrier again"
    for attempt in attempts_of(connection, barrier.topology, barrier.barrier_id):
        if attempt.job in revision.jobs and attempt.state in LIVE_ATTEMPTS:
            end_attempt(connection, attempt, AttemptState.VOIDED, reason, event)  # safety: swap-voids-attempts


def _write_down(connection: Connection, revision: Revision, barrier: Barrier, event: Event) -> None:
    """Move what the revision computed at a COMMIT barrier to WRITTEN."""
    revised = load_barrier(connection, barrier.topology, barrier.barrier_id, revision.revision)
    move_tables(
        connection,
        revised,
        list(own_progress(connection, revised)),
        TableState.PROCESSED,
        TableState.WRITTEN,
        event,
        written_at=DatabaseNow(),
    )


def _exchange(connection: Connection, revision: Revision) -> None:
    """Move what stood to line -r, and line r to where it stood. What was aborted has no part in it."""
    progress_row, attempt, cut = schema.table_progress, schema.attempt, schema.cut
    topology, number = revision.topology, revision.revision
    replaced = {
        progress_row: progress_row.c.table_name.in_(revision.tables),
        attempt: attempt.c.job.in_(revision.jobs),
    }
    kept = select(schema.barrier.c.barrier_id).where(of_topology(schema.barrier, topology, -number))
    for table, which in replaced.items():
        for line, other, rows in ((STANDING, -number, which), (number, STANDING, true())):
            connection.execute(
                update(table)
                .where(of_topology(table, topology, line), table.c.barrier_id.in_(kept), rows)
                .values(line=other)
            )
    for barrier_id, source in connection.execute(
        select(cut.c.barrier_id, cut.c.source).where(of_topology(cut, topology, number), cut.c.barrier_id.in_(kept))
    ).all():
        for table in (cut, schema.cut_item):
            here = of_barrier(table, topology, barrier_id)
            connection.execute(update(table).where(here, table.c.source == source).values(line=-number))
            there = of_barrier(table, topology, barrier_id, number)
            connection.execute(update(table).where(there, table.c.source == source).values(line=STANDING))


def _let_stand(connection: Connection, revision: Revision, barrier: Barrier, event: Event, actor: str) -> None:
    table = schema.barrier
    here = of_barrier(table, barrier.topology, barrier.barrier_id)
    values = {"computed_in": revision.revision}
    if not barrier.is_maintenance:
        revised = load_barrier(connection, barrier.topology, barrier.barrier_id, revision.revision)
        values["topology_version"] = revised.topology_version
    connection.execute(update(table).where(here).values(**values))
    record(
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "barrier",
        [str(barrier.barrier_id)],
        barrier.state.value,
        barrier.state.value,
    )
    if barrier.is_maintenance:
        _carry(connection, revision, barrier, event)
    if barrier.state is BarrierState.COMMIT:
        return
    roll_back(connection, barrier)  # safety: swap-is-told-readers
    now = load_barrier(connection, barrier.topology, barrier.barrier_id)
    if now.state is BarrierState.OPEN:
        precommit_if_complete(connection, now, actor)


def _carry(connection: Connection, revision: Revision, barrier: Barrier, event: Event) -> None:
    """A maintenance barrier has the rows of the one before it, which are others now; its own files are not needed."""
    before = progress(connection, barrier.topology, barrier.predecessor or 0)
    if revision.mode is RevisionMode.HISTORY:  # it had none of the tables
        had = {name: row for name, row in before.items() if name in revision.tables}
    else:
        had = progress(connection, barrier.topology, barrier.barrier_id, -revision.revision)
    carried = [before[name] for name in had if name in before]
    if carried:
        connection.execute(
            insert(schema.table_progress),
            [
                {
                    **barrier_key(barrier.topology, barrier.barrier_id),
                    "table_name": row.table,
                    "job": had[row.table].job,
                    "state": TableState.WRITTEN.value,
                    "snapshot_id": row.snapshot_id,
                    "attempt_id": row.attempt_id,
                    "carried_from": row.origin,
                    "expected_snapshot": row.snapshot_id,
                    "written_at": row.written_at,
                }
                for row in carried
            ],
        )
    tables = [row.table for row in carried]
    record(
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "table",
        tables,
        after=TableState.WRITTEN.value,
    )


def forget_line(connection: Connection, revision: Revision) -> None:
    """Nothing is left in line r but what was aborted with its barrier; the barriers that stand say the rest."""
    for table in (schema.attempt, schema.table_progress, schema.cut_item, schema.cut, schema.barrier):
        connection.execute(delete(table).where(of_topology(table, revision.topology, revision.revision)))


def as_revised(connection: Connection, barrier: Barrier, number: int) -> Revised:
    """A COMMIT barrier and its tables as they are once revision ``number`` stands; before that, or after."""
    barrier = load_barrier(connection, barrier.topology, barrier.barrier_id)  # it may stand since the caller looked
    rows = progress(connection, barrier.topology, barrier.barrier_id)
    if barrier.computed_in == number:
        return Revised(barrier, tuple(rows.values()))
    epoch = epoch_of(connection, barrier)
    joins = load_revision(connection, barrier.topology, number).mode is RevisionMode.HISTORY
    for name, row in progress(connection, barrier.topology, epoch.barrier_id, number).items():
        if name in rows or joins or not barrier.is_maintenance:
            carried = row.origin if barrier.is_maintenance or row.carried_from is not None else None
            rows[name] = replace(row, barrier_id=barrier.barrier_id, carried_from=carried)
    again = load_barrier(connection, barrier.topology, epoch.barrier_id, number)
    version = barrier.topology_version if barrier.is_maintenance else again.topology_version
    barrier = replace(barrier, computed_in=number, topology_version=version)
    return Revised(barrier, tuple(rows[name] for name in sorted(rows)))


def swap_rows(connection: Connection, revision: Revision) -> SwapRows:
    """Return the rows that a publish of it consists of, or would consist of now."""
    found = {
        barrier.barrier_id: {
            row.table: row.snapshot_id for row in as_revised(connection, barrier, revision.revision).rows
        }
        for barrier in _standing_from(connection, revision)
        if barrier.state is BarrierState.COMMIT and barrier.expiring_at is None
    }
    before = progress_before(
        connection, load_barrier(connection, revision.topology, revision.first_barrier, revision.revision)
    )
    return SwapRows(found, {name: before[name].snapshot_id for name in revision.tables if name in before})
