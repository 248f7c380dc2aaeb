"""The end of a barrier's life as something to read: visibility goes first, by compare-and-set against leases.

COMMIT stays its state. ``thinned_at``: retention keeps it no longer, and it expires once nobody holds it;
``expiring_at``: no lease is granted any more; ``expired_at``: its tags are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, TextClause, exists, func, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.leases import sweep
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import chunks, lock_topology, newest, of_topology
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState

#: How many barriers one step lets expire: what was held up is caught up by the next one.
_MOST = 100

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


def expire(connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
    """Those of ``barrier_ids`` that begin to expire here: COMMIT, not the newest, and held by nobody."""
    lock_topology(connection, topology)  # safety: topology-lock
    last = newest(connection, topology, {BarrierState.COMMIT})
    if last is None:
        return []
    return [
        moved
        for some in chunks(sorted(set(barrier_ids)))
        for moved in _move(connection, topology, _BARRIER.barrier_id.in_(some), last.barrier_id, actor, len(some))
    ]


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


def expired(connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
    """Their tags are gone. Those that this was written of before stay as they are."""
    lock_topology(connection, topology)  # safety: topology-lock
    return end(connection, topology, barrier_ids, actor)


def end(connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
    """As :func:`expired`, for a caller that has locked the topology."""
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


def being_expired(connection: Connection, topology: str) -> list[Barrier]:
    """The barriers that are expiring and not expired: whose tags are to be dropped, oldest first."""
    rows = connection.execute(
        select(schema.barrier)
        .where(of_topology(schema.barrier, topology), schema.THINNED, _BARRIER.expiring_at.is_not(None))
        .order_by(_BARRIER.barrier_id)
    )
    return [to_record(Barrier, row) for row in rows]
