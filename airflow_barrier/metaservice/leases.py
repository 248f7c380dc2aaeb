"""Leases of readers: granted with an answer, renewed, released; and what they hold, for those who delete.

Two rules keep a leased barrier from being taken. Who grants a lease shares a lock on the barriers, which whoever lets
them expire or rolls work back takes for himself (on SQLite there is one writer anyhow). And a lease holds as long as
its row is there: who wants to take it for dead deletes the row, so that a renewal comes either before that or too late.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, true, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import STANDING, load_barrier, of_topology, topology_version
from airflow_barrier.metaservice.schema import DatabaseLater, DatabaseNow
from airflow_barrier.metaservice.transaction import Group, changes, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import ConfigurationError, LeaseLostError
from airflow_barrier.protocol.leases import Hold, Lease, check_seconds
from airflow_barrier.protocol.records import Barrier

#: How many dead leases a new one cleans up.
_SWEPT = 20

_LEASE, _BARRIER = schema.lease.c, schema.barrier.c
#: FOR KEY SHARE: with other readers and with publishing it goes together, with expiring and rolling back it does not.
_HOLDABLE = (
    select(_BARRIER.expiring_at, _BARRIER.rollbacks)
    .where(
        of_topology(schema.barrier, bindparam("topology")),
        _BARRIER.barrier_id.between(bindparam("first"), bindparam("through")),
    )
    .order_by(_BARRIER.barrier_id)
    .with_for_update(read=True, key_share=True)  # safety: lease-locks-its-barrier
)
_GRANT = (
    insert(schema.lease)
    .values(
        line=STANDING,
        barrier_id=bindparam("first"),
        through_id=bindparam("through"),
        granted_at=DatabaseNow(),
        expires_at=DatabaseLater(bindparam("seconds")),
    )
    .returning(schema.lease)
)
_HELD = and_(
    _BARRIER.topology == _LEASE.topology,
    _BARRIER.line == _LEASE.line,
    _BARRIER.barrier_id.between(_LEASE.barrier_id, _LEASE.through_id),
)
_ROLLBACKS = select(func.sum(_BARRIER.rollbacks)).where(_HELD).correlate(schema.lease).scalar_subquery()
_STANDING = select(schema.lease, _ROLLBACKS.label("rollbacks_now"))
_DEAD = (
    select(_LEASE.lease_id)
    .where(of_topology(schema.lease, bindparam("topology")), _LEASE.expires_at <= DatabaseNow())
    .order_by(_LEASE.expires_at)
    .limit(_SWEPT)
)
_DEAD_LOCKED = _DEAD.with_for_update(skip_locked=True)


class Leases(Group):
    """The leases of readers."""

    @changes
    def renew(self, connection: Connection, lease_id: int, seconds: float, holder: str | None = None) -> Lease:
        """Let a lease live for so many seconds from now; ``rolled_back`` of it says if the answer is out of date.
        ``holder``: whose it has to be.

        Raises LeaseLostError once it has ended: then what it held has to be resolved anew.
        """
        check_seconds(seconds)
        renewed = connection.execute(
            update(schema.lease)
            .where(_LEASE.lease_id == lease_id, _LEASE.expires_at > DatabaseNow())  # safety: dead-leases-stay-dead
            .where(true() if holder is None else _LEASE.holder == holder)  # safety: lease-of-its-holder
            .values(expires_at=DatabaseLater(bindparam("seconds"))),
            {"seconds": float(seconds)},
        ).rowcount
        if not renewed:
            raise LeaseLostError(  # safety: lost-lease-is-told
                f"lease {lease_id}: expected it to live, found that it has ended: it was released, or not renewed in "
                "time; what it held may be deleted by now, so resolve anew and read again"
            )
        row = connection.execute(_STANDING.where(_LEASE.lease_id == lease_id)).one()
        return to_record(Lease, row, rolled_back=row.rollbacks_now != row.rollbacks)

    @changes
    def release(self, connection: Connection, lease_id: int) -> None:
        """The reader is done. Again is fine."""
        connection.execute(delete(schema.lease).where(_LEASE.lease_id == lease_id))

    @changes
    def end(self, connection: Connection, topology: str, lease_id: int, actor: str) -> None:
        """End somebody else's lease before its time; its reader is told.

        Raises ConfigurationError if it holds nothing of ``topology``, or has ended.
        """
        topology_version(connection, topology)
        ended = connection.execute(
            delete(schema.lease)
            .where(of_topology(schema.lease, topology), _LEASE.lease_id == lease_id, _LEASE.expires_at > DatabaseNow())
            .returning(_LEASE.barrier_id, _LEASE.holder)
        ).one_or_none()
        if ended is None:
            raise ConfigurationError(
                f"lease {lease_id}: expected one that lives and holds barriers of {topology}, found none; it has "
                f"ended, or the number is wrong: airflow-barrier lease list {topology} lists those that live"
            )
        event = Event("released", actor, {"holder": ended.holder})
        record(connection, event, topology, ended.barrier_id, "lease", [str(lease_id)])

    @reads
    def of(self, connection: Connection, topology: str, barrier_id: int | None = None) -> list[Lease]:
        """The leases that live, oldest first: all, or those that hold ``barrier_id``."""
        query = _STANDING.where(of_topology(schema.lease, topology), _LEASE.expires_at > DatabaseNow())
        if barrier_id is None:
            topology_version(connection, topology)
        else:
            load_barrier(connection, topology, barrier_id)
            query = query.where(_LEASE.barrier_id <= barrier_id, _LEASE.through_id >= barrier_id)
        return [
            to_record(Lease, row, rolled_back=row.rollbacks_now != row.rollbacks)
            for row in connection.execute(query.order_by(_LEASE.lease_id))
        ]

    @reads
    def holding_up(self, connection: Connection, topology: str) -> dict[int, int]:
        """Map each lease to how many barriers would have expired by now but for it, or for others; none: it is left
        out. One that has ended is there until it is swept.
        """
        held_up = (schema.THINNED, _BARRIER.expiring_at.is_(None))
        rows = connection.execute(
            select(_LEASE.lease_id, func.count().label("barriers"))
            .join(schema.barrier, _HELD)
            .where(of_topology(schema.barrier, topology), *held_up)
            .group_by(_LEASE.lease_id)
        )
        return {row.lease_id: row.barriers for row in rows}

    def held(self, topology: str) -> tuple[tuple[int, int], ...]:
        """The first and the last barrier of each range that readers hold, for who is about to delete.

        What is in none of them no reader gets hold of any more, unless it can still be resolved.
        """
        held = self._read(lambda c: _held_if_none_is_dead(c, topology))
        return held if held is not None else self._write(lambda c: _sweep_and_hold(c, topology))


def grant(connection: Connection, topology: str, first: int, through: int, rollbacks: int, hold: Hold) -> Lease | None:
    """A lease on these barriers, if they are as they were read; None if one is expiring or was rolled back since."""
    barriers = connection.execute(_HOLDABLE, {"topology": topology, "first": first, "through": through}).all()
    if any(row.expiring_at is not None for row in barriers):  # safety: expiring-is-not-leased
        return None
    if sum(row.rollbacks for row in barriers) != rollbacks:  # safety: rolled-back-is-not-leased
        return None
    dead = connection.execute(_DEAD_LOCKED, {"topology": topology}).scalars().all()
    if dead:
        connection.execute(delete(schema.lease).where(_LEASE.lease_id.in_(dead)))
    values = {"first": first, "through": through, "seconds": float(hold.seconds)}
    row = connection.execute(
        _GRANT, {**values, "topology": topology, "rollbacks": rollbacks, "holder": hold.holder}
    ).one()
    return to_record(Lease, row, rolled_back=False)


# --- for those who delete -----------------------------------------------------------------------------


def sweep(connection: Connection, topology: str) -> None:
    """Delete the dead leases of a topology, after which those that are left hold what they hold."""
    connection.execute(
        delete(schema.lease).where(of_topology(schema.lease, topology), _LEASE.expires_at <= DatabaseNow())
    )


def _held_if_none_is_dead(connection: Connection, topology: str) -> tuple[tuple[int, int], ...] | None:
    """The first and the last barrier of each range that is held; None: dead leases have to be swept before."""
    dead = connection.execute(_DEAD, {"topology": topology}).first()
    return _held(connection, topology) if dead is None else None


def _sweep_and_hold(connection: Connection, topology: str) -> tuple[tuple[int, int], ...]:
    """The first and the last barrier of each range that is held."""
    sweep(connection, topology)  # safety: swept-before-held
    return _held(connection, topology)


def _held(connection: Connection, topology: str) -> tuple[tuple[int, int], ...]:
    ranges = select(_LEASE.barrier_id, _LEASE.through_id).where(of_topology(schema.lease, topology)).distinct()
    return tuple(sorted((row.barrier_id, row.through_id) for row in connection.execute(ranges)))


def roll_back(connection: Connection, barrier: Barrier) -> None:
    """Let the readers of a barrier learn that work which counted there was taken back."""
    here = (of_topology(schema.barrier, barrier.topology, barrier.line), _BARRIER.barrier_id == barrier.barrier_id)
    # waits for whoever is being granted a lease on what stood here until now
    connection.execute(select(_BARRIER.barrier_id).where(*here).with_for_update())  # safety: rolling-back-locks
    connection.execute(update(schema.barrier).where(*here).values(rollbacks=_BARRIER.rollbacks + 1))
