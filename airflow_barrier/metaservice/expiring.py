"""The end of a barrier's life as something to read: visibility goes first, by compare-and-set against leases.

COMMIT stays its state. ``thinned_at``: retention keeps it no longer, and it expires once nobody holds it;
``expiring_at``: no lease is granted any more; ``expired_at``: its tags are gone.

At last what there is per table, attempt and delivery is forgotten (``trimmed_at``). The barriers themselves stay, with
their cuts and the items that these used up: ids are not used again, predecessors lead back, and each input record is in
one epoch. So do the newest row of each table that has left, by which a job that comes back goes on, and the audit of
barriers as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, TextClause, and_, delete, exists, func, or_, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.deliveries import first_held
from airflow_barrier.metaservice.leases import sweep
from airflow_barrier.metaservice.mapping import to_records
from airflow_barrier.metaservice.resolving import readable
from airflow_barrier.metaservice.rows import chunks, epoch_of, newest, of_barrier, of_topology, progress
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transaction import Group, locked, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState

#: How many barriers one step lets expire: what was held up is caught up by the next one.
_MOST = 100
#: How many barriers one transaction trims: others wait for it.
_AT_ONCE = 20

_BARRIER, _LEASE = schema.barrier.c, schema.lease.c
_LEASED = exists().where(
    _LEASE.topology == _BARRIER.topology,
    _LEASE.line == _BARRIER.line,
    _LEASE.barrier_id <= _BARRIER.barrier_id,
    _LEASE.through_id >= _BARRIER.barrier_id,
)
#: A revision builds on the barrier before its first one, and reads at all the later ones.
_REVISED = exists().where(
    schema.revision.c.topology == _BARRIER.topology,
    schema.REVISION_UNDER_WAY_OF,
    schema.revision.c.predecessor <= _BARRIER.barrier_id,
)


class Expiry(Group):
    """The end of barriers as something to read, and of what is known about them in detail."""

    @locked
    def expire(self, connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
        """Let those of ``barrier_ids`` expire that can be read, are not the newest, and neither a lease nor a sink
        holds; returns these.

        From here on nobody resolves them, so their tags and data may go; then call :meth:`expired`.
        """
        last = newest(connection, topology, {BarrierState.COMMIT})
        if last is None:
            return []
        return [
            moved
            for some in chunks(sorted(set(barrier_ids)))
            for moved in _move(connection, topology, _BARRIER.barrier_id.in_(some), last.barrier_id, actor, len(some))
        ]

    @locked
    def expired(self, connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
        """Write down that the tags of these are gone; returns those that this is new of. Again is fine.

        Raises IllegalTransitionError for one that can still be read.
        """
        return end(connection, topology, barrier_ids, actor)

    @reads
    def pending(self, connection: Connection, topology: str) -> list[Barrier]:
        """The barriers between :meth:`expire` and :meth:`expired`, oldest first: somebody may have died there."""
        rows = connection.execute(
            select(schema.barrier)
            .where(of_topology(schema.barrier, topology), schema.THINNED, _BARRIER.expiring_at.is_not(None))
            .order_by(_BARRIER.barrier_id)
        )
        return to_records(Barrier, rows)

    @locked
    def trim(self, connection: Connection, topology: str, before: datetime, actor: str) -> list[int]:
        """Forget what there is per table, attempt and delivery of some barriers that expired, or were aborted, before a
        time.

        The oldest first, some twenty in a transaction; returns them, so call it until it returns none. Barriers, cuts,
        used items and the audit of barriers stay, and so does the newest row of each table.
        """
        newest_commit = newest(connection, topology, {BarrierState.COMMIT})
        if newest_commit is None or newest_commit.barrier_id == 0:
            return []
        last = epoch_of(connection, newest_commit)
        barriers = _candidates(connection, topology, before, last.barrier_id)
        tables = {each.barrier_id: set(progress(connection, topology, each.barrier_id)) for each in barriers}
        kept = _newest_rows(barriers, tables, progress(connection, topology, last.barrier_id))
        for barrier in barriers:
            _trim_one(connection, barrier, kept[barrier.barrier_id])
        ids = [barrier.barrier_id for barrier in barriers]
        if ids:
            _trim_aside(connection, topology, ids)
            connection.execute(
                update(schema.barrier)
                .where(of_topology(schema.barrier, topology), schema.barrier.c.barrier_id.in_(ids))
                .values(trimmed_at=DatabaseNow())
            )
            record(connection, Event("trimmed", actor, {"barriers": ids}), topology, None, "topology", [topology])
        return ids

    @reads
    def trimmed(self, connection: Connection, topology: str, first: int, last: int) -> list[Barrier]:
        """The barriers from ``first`` to ``last`` that were committed, oldest first, once all that are between are
        trimmed; until then none.
        """
        barrier = schema.barrier.c
        here = and_(of_topology(schema.barrier, topology), barrier.barrier_id.between(max(first, 1), last))
        newer = (
            select(barrier.barrier_id).where(of_topology(schema.barrier, topology), barrier.barrier_id > last).limit(1)
        )
        left = select(barrier.barrier_id).where(here, barrier.trimmed_at.is_(None)).limit(1)
        if connection.scalar(newer) is None or connection.scalar(left) is not None:
            return []
        rows = connection.execute(
            select(schema.barrier).where(here, barrier.state == BarrierState.COMMIT.value).order_by(barrier.barrier_id)
        )
        return to_records(Barrier, rows)


def thin(connection: Connection, topology: str, thinned: Sequence[int], before: int, actor: str) -> None:
    """The tag policy keeps ``thinned`` no longer: they expire, and so do those that a reader held up until now.

    ``before``: the newest barrier that is COMMIT, which stays readable whatever the policy says.
    """
    if thinned:
        connection.execute(
            update(schema.barrier)
            .where(
                of_topology(schema.barrier, topology),
                _BARRIER.barrier_id.in_(thinned),
                schema.READABLE,
                _BARRIER.thinned_at.is_(None),
            )
            .values(thinned_at=DatabaseNow())
        )
    _move(connection, topology, schema.THINNED, before, actor, _MOST)


def _move(
    connection: Connection, topology: str, which: ColumnElement[bool] | TextClause, last: int, actor: str, most: int
) -> list[int]:
    held = func.coalesce(first_held(topology), _BARRIER.barrier_id + 1)
    candidates = (
        select(_BARRIER.barrier_id)
        .where(
            of_topology(schema.barrier, topology),
            which,
            schema.READABLE,
            _BARRIER.barrier_id > 0,
            _BARRIER.barrier_id < last,  # safety: newest-stays-readable
            ~_LEASED.where(_LEASE.expires_at > DatabaseNow()),  # or what is held for days would keep others back
            ~_REVISED,  # safety: revised-is-not-expired
            _BARRIER.barrier_id < held,  # safety: undelivered-is-not-expired
        )
        .order_by(_BARRIER.barrier_id)
        .limit(most)
        # who is just being granted a lease holds this lock together with others: that barrier counts as held
        .with_for_update(skip_locked=True)  # safety: expiry-locks-its-barriers
    )
    ids = connection.execute(candidates).scalars().all()
    if not ids:
        return []
    sweep(connection, topology)
    moved = connection.execute(
        update(schema.barrier)
        .where(
            of_topology(schema.barrier, topology),
            _BARRIER.barrier_id.in_(ids),
            # a lease may have been granted between choosing and locking
            ~_LEASED,  # safety: held-is-not-expired
        )
        .values(expiring_at=DatabaseNow(), thinned_at=func.coalesce(_BARRIER.thinned_at, DatabaseNow()))
        .returning(_BARRIER.barrier_id)
    )
    return _record(connection, topology, moved.scalars(), Event("expiring", actor))


def end(connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
    """Do as :func:`expired`, for a caller that has locked the topology."""
    ended: list[int] = []
    for some in chunks(sorted(set(barrier_ids))):
        here = (of_topology(schema.barrier, topology), _BARRIER.barrier_id.in_(some))
        visible = (
            connection.execute(select(_BARRIER.barrier_id).where(*here, _BARRIER.expiring_at.is_(None))).scalars().all()
        )
        if visible:
            raise IllegalTransitionError(  # safety: visibility-goes-first
                f"topology {topology}: expected barriers that are expiring, found that "
                f"{', '.join(map(str, sorted(visible)))} can still be read; let them expire before their tags go"
            )
        moved = connection.execute(
            update(schema.barrier)
            .where(*here, _BARRIER.expired_at.is_(None))
            .values(expired_at=DatabaseNow())
            .returning(_BARRIER.barrier_id)
        )
        ended += _record(connection, topology, moved.scalars(), Event("expired", actor))
    return ended


def _record(connection: Connection, topology: str, barrier_ids: Iterable[int], event: Event) -> list[int]:
    done = sorted(barrier_ids)
    state = BarrierState.COMMIT.value
    for barrier_id in done:
        record(connection, event, topology, barrier_id, "barrier", [str(barrier_id)], state, state)
    return done


# --- forgetting ---------------------------------------------------------------------------------------


def _candidates(connection: Connection, topology: str, before: datetime, last: int) -> list[Barrier]:
    barrier = schema.barrier.c
    (oldest,) = readable(connection, topology, limit=1)  # the newest COMMIT does not expire
    rows = connection.execute(
        select(schema.barrier)
        .where(
            of_topology(schema.barrier, topology),
            schema.UNTRIMMED,
            or_(
                barrier.expired_at < before,
                and_(barrier.aborted_at < before, barrier.barrier_id < oldest.barrier_id),
            ),
            # of what was aborted since, attempts may still have branches, and readers hold them
            barrier.barrier_id < last,  # safety: trims-the-past-only
        )
        .order_by(barrier.barrier_id)
        .limit(_AT_ONCE)
    )
    return to_records(Barrier, rows)


def _newest_rows(
    barriers: Sequence[Barrier], tables: dict[int, set[str]], members: Collection[str]
) -> dict[int, set[str]]:
    """Map ``barriers`` to the tables with their newest row there, or maybe: ``members`` have a newer one."""
    kept: dict[int, set[str]] = {}
    newer = set(members)
    for barrier in reversed(barriers):
        # a maintenance barrier is nobody's last epoch
        counts = barrier.state is BarrierState.COMMIT and not barrier.is_maintenance
        here = tables[barrier.barrier_id] if counts else set()
        kept[barrier.barrier_id] = here - newer
        newer |= here
    return kept


def _trim_one(connection: Connection, barrier: Barrier, kept: set[str]) -> None:
    topology, number = barrier.topology, barrier.barrier_id
    audit, row = schema.audit.c, schema.table_progress.c
    connection.execute(
        delete(schema.table_progress).where(
            of_barrier(schema.table_progress, topology, number),
            row.table_name.not_in(kept),  # safety: newest-row-stays
        )
    )
    connection.execute(delete(schema.attempt).where(of_barrier(schema.attempt, topology, number)))
    delivery = schema.delivery.c
    connection.execute(delete(schema.delivery).where(delivery.topology == topology, delivery.barrier_id == number))
    of_tables = and_(audit.kind == "table", audit.subject.not_in(kept))
    connection.execute(
        delete(schema.audit).where(
            audit.topology == topology,
            audit.barrier_id == number,
            or_(audit.kind.in_(("attempt", "sink")), of_tables),
        )
    )


def _trim_aside(connection: Connection, topology: str, ids: Sequence[int]) -> None:
    """Delete the rows that revisions of these barriers replaced, or staged and were cancelled."""
    revision = schema.revision.c
    numbers = connection.scalars(
        select(revision.revision).where(revision.topology == topology, revision.first_barrier <= max(ids))
    ).all()
    for table in (schema.table_progress, schema.attempt) if numbers else ():
        lines = [line for number in numbers for line in (number, -number)]
        connection.execute(
            delete(table).where(table.c.topology == topology, table.c.line.in_(lines), table.c.barrier_id.in_(ids))
        )
