"""From PRECOMMIT to COMMIT: the durable decision, the publish that joins our transaction, and being blocked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from sqlalchemy import Connection, bindparam, select, text, update

from airflow_barrier.metaservice import revision_rows, schema
from airflow_barrier.metaservice.expiring import end, thin
from airflow_barrier.metaservice.leases import roll_back
from airflow_barrier.metaservice.restage import replace_table
from airflow_barrier.metaservice.rows import (
    STANDING,
    load_barrier,
    of_barrier,
    progress,
    raise_aborted,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transaction import Group, locked, reads
from airflow_barrier.metaservice.transitions import Event, move_barrier, move_tables, record
from airflow_barrier.protocol.errors import (
    BarrierBlockedError,
    ConfigurationError,
    HeadMovedError,
    IllegalTransitionError,
    NotPrecommitError,
    RehearsalRefusedError,
    UnknownTableError,
)
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.revisions import REHEARSAL, RevisionState
from airflow_barrier.protocol.states import BarrierState, Decision, TableState

_ANNOUNCED, _COMMIT = "announced", "commit"
#: How many barriers back somebody may have been forgotten to be announced; it bounds what one look reads.
_LOOK_BACK = 100
_PUBLISHING = frozenset({BarrierState.COMMITTING, BarrierState.BLOCKED})


@dataclass(frozen=True)
class Settled:
    """A person's decision about one table that is in the way of a BLOCKED barrier.

    ``theirs``: the snapshot (None: none) that the person found `main` at; ``ours``: what the barrier has of it.
    """

    table: str
    decision: Decision
    theirs: int | None
    ours: int | None
    reason: str
    actor: str


class Publishing(Group):
    """The way from PRECOMMIT to COMMIT, and what the world outside was told."""

    @locked
    def begin(
        self,
        connection: Connection,
        topology: str,
        barrier_id: int,
        expected: Mapping[str, int | None],
        actor: str,
        thinned: Sequence[int] = (),
        revision: int | None = None,
    ) -> Barrier:
        """PRECOMMIT -> COMMITTING: from here on only forward. ``expected``: the `main` found in each of its tables,
        and ``revision``: whose work the barrier was at that look (None: it cannot have changed since).

        ``thinned``: the barriers that the tag policy keeps no longer once this one is published. They begin to expire
        in this step, with those that were held up before; what a lease or a sink holds, and the newest COMMIT, waits
        for a later commit.

        COMMITTING or COMMIT already: nothing changes. Raises NotPrecommitError (also while the barrier before is not
        COMMIT), HeadMovedError if a revision was published since the look, BarrierAbortedError, IllegalTransitionError
        when BLOCKED.
        """
        barrier = load_barrier(connection, topology, barrier_id)
        if barrier.state in (BarrierState.COMMITTING, BarrierState.COMMIT):  # safety: decided-once
            return barrier
        if is_rehearsal(topology):
            raise RehearsalRefusedError(  # safety: rehearsed-is-not-published
                f"{barrier}: expected a barrier that is to be published, found a rehearsal; run the DAG by its "
                f"schedule, or as its author does: airflow dags test DAG DATE --conf '{{\"{REHEARSAL}\": false}}'"
            )
        if barrier.state is BarrierState.ABORTED:
            raise_aborted(barrier)  # safety: aborted-is-not-committed
        if barrier.state is BarrierState.BLOCKED:
            raise_blocked(barrier)  # safety: blocked-waits-for-a-person
        tables = progress(connection, topology, barrier_id)
        if barrier.state is BarrierState.OPEN:
            missing = [f"{each.table} (job {each.job})" for each in tables.values() if each.state is TableState.PENDING]
            raise NotPrecommitError(  # safety: only-precommit-is-decided
                f"{barrier}: expected PRECOMMIT, found OPEN; not PROCESSED yet: {', '.join(missing)}; run or repair "
                "these jobs, or abort the barrier"
            )
        _check_turn(connection, barrier)
        if revision not in (None, barrier.computed_in):
            raise HeadMovedError(  # safety: commits-what-was-seen
                f"{barrier}: expected it as in revision {revision}, found that revision {barrier.computed_in} was "
                "published: look again"
            )
        if set(expected) != set(tables):
            raise ConfigurationError(  # safety: expected-main-of-every-table
                f"{barrier}: expected the current snapshots of its tables {', '.join(tables)}, found those of "
                f"{', '.join(sorted(expected)) or 'none'}; look at exactly these tables before the commit"
            )
        table = schema.table_progress
        connection.execute(
            update(table)
            .where(of_barrier(table, topology, barrier_id), table.c.table_name == bindparam("named"))
            .values(expected_snapshot=bindparam("snapshot")),
            [{"named": name, "snapshot": snapshot} for name, snapshot in sorted(expected.items())],
        )
        thin(connection, topology, thinned, barrier.predecessor or 0, actor)
        event = Event("committing", actor, {"expected": dict(expected)})
        return move_barrier(connection, barrier, BarrierState.COMMITTING, event, committing_at=DatabaseNow())

    @contextmanager
    def swapping(
        self,
        topology: str,
        barrier_id: int,
        actor: str,
        expected: Mapping[str, int | None] | None = None,
        expired: Sequence[int] = (),
    ) -> Iterator[Connection | None]:
        """A write transaction for the swap of a COMMITTING barrier's tables: both are committed together, or neither.

        At the end of the block all tables are WRITTEN and the barrier is COMMIT. Yields None, without a transaction,
        if it is COMMIT already. Prepare files before: nobody else can write to the database during the block.
        ``expected``: the `main` that the swap goes by; HeadMovedError if a person has decided otherwise meanwhile.
        ``expired``: the barriers whose tags go along.

            with meta.publishing.swapping("shopping", 3, actor="me") as connection:
                if connection is not None:
                    tables.publish(publications, connection)
        """
        with self._writing_locked(topology) as connection:
            barrier = _publishable(connection, topology, barrier_id)
            if barrier is not None:
                yield connection
                _finish(connection, barrier, actor, expected, expired)
                return
        yield None

    @locked
    def block(self, connection: Connection, topology: str, barrier_id: int, reason: str, actor: str) -> Barrier:
        """COMMITTING -> BLOCKED: a table moved under us, readers stay at the barrier before."""
        barrier = load_barrier(connection, topology, barrier_id)
        if barrier.state in (BarrierState.BLOCKED, BarrierState.COMMIT):  # safety: blocked-again
            return barrier
        return move_barrier(
            connection, barrier, BarrierState.BLOCKED, Event("blocked", actor, {"reason": reason}), reason=reason
        )

    @locked
    def unblock(self, connection: Connection, topology: str, barrier_id: int, reason: str, actor: str) -> Barrier:
        """BLOCKED -> COMMITTING: a person says that nothing is in the way any more."""
        barrier = load_barrier(connection, topology, barrier_id)
        if barrier.state is BarrierState.COMMITTING:  # safety: unblocked-again
            return barrier
        if barrier.state is not BarrierState.BLOCKED:
            raise_not_blocked(barrier)  # safety: only-blocked-is-unblocked
        return move_barrier(
            connection, barrier, BarrierState.COMMITTING, Event("unblocked", actor, {"reason": reason}), reason=None
        )

    @locked
    def settle(
        self, connection: Connection, topology: str, barrier_id: int, settled: Settled
    ) -> tuple[Barrier, tuple[Attempt, ...]]:
        """BLOCKED -> COMMITTING with a person's decision about the table in the way.

        Returns the barrier and the attempts at later barriers that this voids, because they stand on what the person
        decided against. Raises IllegalTransitionError unless BLOCKED, UnknownTableError.
        """
        barrier = load_barrier(connection, topology, barrier_id)
        if barrier.state is not BarrierState.BLOCKED:
            raise_not_blocked(barrier)  # safety: only-blocked-is-unblocked
        before = progress(connection, topology, barrier_id).get(settled.table)
        if before is None:
            raise UnknownTableError(
                f"{barrier}: expected one of its tables, found {settled.table}; `airflow-barrier status {topology}` "
                "says which table is in the way"
            )
        adopt = settled.decision is Decision.ADOPT_THEIRS
        stands, aside = (settled.theirs, settled.ours) if adopt else (settled.ours, settled.theirs)
        values = {"decision": settled.decision.value, "expected_snapshot": settled.theirs, "set_aside": aside}
        # theirs is no attempt's work, nor unchanged since an earlier barrier
        values |= {"snapshot_id": stands, **({"attempt_id": None, "carried_from": None} if adopt else {})}
        table = schema.table_progress
        connection.execute(
            update(table)
            .where(of_barrier(table, topology, barrier_id), table.c.table_name == settled.table)
            .values(**values)
        )
        detail = {"table": settled.table, "reason": settled.reason, "theirs": settled.theirs, "ours": settled.ours}
        event = Event(settled.decision.value, settled.actor, detail)
        record(
            connection, event, topology, barrier_id, "table", [settled.table], before.state.value, before.state.value
        )
        gone: tuple[Attempt, ...] = ()
        if adopt or before.decision is Decision.ADOPT_THEIRS:
            roll_back(connection, barrier)  # safety: another-decision-is-told-readers
            why = (
                f"a person chose {settled.decision.value} for {settled.table} at {barrier}, and this stands on another"
            )
            gone = replace_table(connection, barrier, settled.table, settled.actor, why)
        return move_barrier(connection, barrier, BarrierState.COMMITTING, event, reason=None), gone

    @locked
    def announce(self, connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> None:
        """Write down that the world outside was told of these barriers, by asset events."""
        for barrier_id in barrier_ids:
            state = load_barrier(connection, topology, barrier_id).state.value
            record(
                connection, Event(_ANNOUNCED, actor), topology, barrier_id, "barrier", [str(barrier_id)], state, state
            )

    @reads
    def unannounced(self, connection: Connection, topology: str, barrier_id: int) -> dict[int, str]:
        """Map each barrier committed but not announced, of the hundred before ``barrier_id``, to who committed it."""
        table = schema.audit
        rows = connection.execute(
            select(table.c.barrier_id, table.c.event, table.c.actor).where(
                table.c.topology == topology,
                table.c.revision == STANDING,
                table.c.barrier_id.between(barrier_id - _LOOK_BACK, barrier_id - 1),
                text(schema.OF_BARRIERS),
                table.c.event.in_([_ANNOUNCED, _COMMIT]),
            )
        ).all()
        announced = {row.barrier_id for row in rows if row.event == _ANNOUNCED}
        silent = {row.barrier_id: row.actor for row in rows if row.event == _COMMIT and row.barrier_id not in announced}
        # of maintenance barriers there is nothing to tell: their tables hold the rows that they held before
        return {
            number: who
            for number, who in silent.items()
            if not load_barrier(connection, topology, number).is_maintenance
        }


def _check_turn(connection: Connection, barrier: Barrier) -> None:
    """Barriers commit in order, one at a time."""
    if barrier.predecessor is not None:
        before = load_barrier(connection, barrier.topology, barrier.predecessor)
        if before.state is not BarrierState.COMMIT:
            raise NotPrecommitError(  # safety: barriers-commit-in-order
                f"{barrier}: expected COMMIT of the barrier before it, found {before}, {before.state.value}; commit "
                "that one first"
            )
    revision = revision_rows.under_way(connection, barrier.topology)
    if revision is not None and revision.state is RevisionState.COMMITTING:
        raise NotPrecommitError(  # safety: one-publisher
            f"{barrier}: expected nothing else to be published in {barrier.topology}, found {revision}, COMMITTING; "
            f"finish that one first: airflow-barrier revision run {barrier.topology} {revision.revision}"
        )
    for other in uncommitted(connection, barrier.topology):
        if other.state in _PUBLISHING:
            raise NotPrecommitError(  # safety: one-publisher
                f"{barrier}: expected nothing else to be published in {barrier.topology}, found {other}, "
                f"{other.state.value}; finish that one first"
            )


def _publishable(connection: Connection, topology: str, barrier_id: int) -> Barrier | None:
    """The COMMITTING barrier; None if it is COMMIT already."""
    barrier = load_barrier(connection, topology, barrier_id)
    if barrier.state is BarrierState.COMMIT:  # safety: published-once
        return None
    if barrier.state is BarrierState.ABORTED:
        raise_aborted(barrier)  # safety: aborted-is-not-committed
    if barrier.state is BarrierState.BLOCKED:
        raise_blocked(barrier)  # safety: blocked-waits-for-a-person
    if barrier.state is not BarrierState.COMMITTING:
        raise NotPrecommitError(  # safety: only-decided-is-published
            f"{barrier}: expected COMMITTING to publish it, found {barrier.state.value}; begin its commit first"
        )
    return barrier


def _finish(
    connection: Connection,
    barrier: Barrier,
    actor: str,
    expected: Mapping[str, int | None] | None = None,
    expired: Sequence[int] = (),
) -> Barrier:
    """All tables WRITTEN and the barrier COMMIT; of ``expired`` the publish has dropped the tags."""
    tables = progress(connection, barrier.topology, barrier.barrier_id)
    if expected is not None and expected != {name: each.expected_snapshot for name, each in tables.items()}:
        raise HeadMovedError(  # safety: same-decision-throughout
            f"{barrier}: expected what a person decided about its tables to be the same as at the beginning of the "
            "publish, found another decision: look again"
        )
    move_tables(
        connection,
        barrier,
        list(tables),
        TableState.PROCESSED,
        TableState.WRITTEN,
        Event("written", actor),
        written_at=DatabaseNow(),
    )
    end(connection, barrier.topology, expired, actor)
    return move_barrier(connection, barrier, BarrierState.COMMIT, Event("commit", actor), commit_at=DatabaseNow())


def raise_not_blocked(barrier: Barrier) -> NoReturn:
    raise IllegalTransitionError(
        f"{barrier}: expected BLOCKED, found {barrier.state.value}; there is nothing to unblock"
    )


def raise_blocked(barrier: Barrier) -> NoReturn:
    raise BarrierBlockedError(f"{barrier}: expected COMMITTING, found BLOCKED: {barrier.reason}")
