"""The pin of an engine's catalog: the barrier that its ``warehouse`` asks for, held as long as it is used.

A pin's text is all that is kept of it beside the lease, so that any process that reaches the MetaService can go on
with it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    ConfigurationError,
    LeaseLostError,
    NotReadableYetError,
    UnknownRevisionError,
)
from airflow_barrier.protocol.leases import LONGEST_HOLD_SECONDS, Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import is_topology_name

log = logging.getLogger(__name__)

#: Seconds that a catalog which asks nothing is held, unless it wants to be held for longer.
IDLE_SECONDS = 900

_ROLLED_BACK = "was staged anew or aborted"
_HOLD = re.compile(r"hold=(\d{1,9})\Z")
_BARRIER = re.compile(r"b(\d{1,18})(?:\.r(\d{1,9}))?\Z")
_PIN = re.compile(
    r"(?P<topology>[^.]+)\.(?P<level>[a-z_]+)(?:\.b(?P<barrier>\d{1,18})\.r(?P<revision>\d{1,9}))?"
    r"\.(?P<hold>\d{1,9})s\.(?P<lease>\d{1,18})\Z"
)


@dataclass(frozen=True)
class Warehouse:
    """A wish for one barrier of a topology, as a catalog says it. ``level`` None: the deployment's. ``at``: a barrier's
    id, or a time (aware): the newest barrier at or before it. ``hold``: for how many seconds it is held while the
    catalog asks nothing, a week at most.
    """

    topology: str
    level: Level | None = None
    at: int | datetime | None = None
    revision: int | None = None
    hold: int = IDLE_SECONDS

    @classmethod
    def parse(cls, text: str) -> Warehouse:
        """Parse a warehouse as people write it. Raises :class:`ConfigurationError`.

        >>> Warehouse.parse("shopping@ReadCommitted").level
        <Level.READ_COMMITTED: 'read_committed'>
        >>> Warehouse.parse("shopping@b12.r2")
        Warehouse(topology='shopping', level=<Level.REPEATABLE_READ: 'repeatable_read'>, at=12, revision=2, hold=900)
        >>> Warehouse.parse("shopping?hold=28800").hold
        28800
        """
        wanted, asked, option = text.partition("?")
        hold = _hold(text, option) if asked else IDLE_SECONDS
        topology, at, which = wanted.partition("@")
        if not is_topology_name(topology):
            raise _not_understood(text)
        if not at:
            return cls(topology, hold=hold)
        if found := _BARRIER.match(which):
            revision = None if found[2] is None else int(found[2])
            return cls(topology, Level.REPEATABLE_READ, int(found[1]), revision, hold)
        if which[:1].isdecimal():
            return cls(topology, Level.REPEATABLE_READ, _moment(text, which), hold=hold)
        try:
            return cls(topology, Level.parse(which), hold=hold)
        except ConfigurationError:
            raise _not_understood(text) from None


def _hold(text: str, option: str) -> int:
    found = _HOLD.match(option)
    if found is None or not 0 < int(found[1]) <= LONGEST_HOLD_SECONDS:
        raise _not_understood(text)
    return int(found[1])


def _moment(text: str, which: str) -> datetime:
    try:
        moment = datetime.fromisoformat(which.replace("Z", "+00:00"))  # Python 3.10 does not know Z
    except ValueError:
        raise _not_understood(text) from None
    if moment.tzinfo is None:
        raise _not_understood(text)
    return moment


def _not_understood(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"warehouse {text[:200]!a}: expected TOPOLOGY, or TOPOLOGY@ and one of "
        f"{', '.join(level.value for level in Level)}, b12, b12.r2 (as revision 2 computed it), or a time with its "
        "zone such as 2026-11-01T00:00:00Z, and perhaps ?hold=SECONDS, a week at most, found something else; name one "
        "of these"
    )


@dataclass(frozen=True)
class Pin:
    """The barrier that one catalog reads until it is made anew. ``barrier_id`` and ``revision`` None: at read
    uncommitted, where each table is at its own barrier, and is looked up anew each time. ``hold``: as in its warehouse.

    >>> str(Pin("shopping", Level.REPEATABLE_READ, 12, 0, 900, 4711))
    'shopping.repeatable_read.b12.r0.900s.4711'
    """

    topology: str
    level: Level
    barrier_id: int | None
    revision: int | None
    hold: int
    lease_id: int

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Parse a pin's text. Raises :class:`ConfigurationError` for what no catalog was given."""
        found = _PIN.match(text)
        try:
            if found is None:
                raise ValueError
            level = Level(found["level"])
            barrier, revision = (None if found[name] is None else int(found[name]) for name in ("barrier", "revision"))
            if (barrier is None) != (level is Level.READ_UNCOMMITTED):
                raise ValueError
            if not 0 < (hold := int(found["hold"])) <= LONGEST_HOLD_SECONDS:
                raise ValueError
        except ValueError:
            raise ConfigurationError(
                f"prefix {text[:200]!a}: expected one that the catalog was given when it connected, found another one; "
                "connect by a warehouse"
            ) from None
        return cls(found["topology"], level, barrier, revision, hold, int(found["lease"]))

    def __str__(self) -> str:
        at = "" if self.barrier_id is None else f".b{self.barrier_id}.r{self.revision}"
        return f"{self.topology}.{self.level.value}{at}.{self.hold}s.{self.lease_id}"


def pin(deployment: Deployment, warehouse: Warehouse, holder: str) -> Pin:
    """Resolve what ``warehouse`` asks for, and hold it for ``holder``. Raises what :meth:`Answers.resolve
    <airflow_barrier.metaservice.resolving.Answers.resolve>` does.
    """
    found = deployment.meta.answers.resolve(
        warehouse.topology,
        warehouse.level or deployment.level,
        at=warehouse.at,
        revision=warehouse.revision,
        hold=Hold(holder, warehouse.hold),
    )
    assert found.lease is not None  # it was asked for
    given = Pin(found.topology, found.level, found.barrier_id, found.revision, warehouse.hold, found.lease.lease_id)
    log.info("%s has connected, and reads %s", holder, given)
    return given


def resolved(deployment: Deployment, found: Pin, holder: str, tables: Sequence[str] | None = None) -> Resolution:
    """Return the pin's snapshots of ``tables`` (None: of all), held for as long again. ``holder``: who was given it.

    Raises LeaseLostError once the lease has ended, and if work that the pin consists of was rolled back;
    UnknownTableError for a table that the barrier does not have, naming the first that has it.
    """
    _renew(deployment, found, holder)  # safety: catalog-ends-with-its-lease
    if found.level is Level.READ_UNCOMMITTED:
        # Nothing says that the next look finds the same: what is found is held by itself.
        return deployment.meta.answers.resolve(found.topology, found.level, tables, hold=Hold(holder, IDLE_SECONDS))
    try:
        answer = _as_computed(deployment, found, tables)
    # it could be read when the pin was given; a revision replaces the work of open barriers, and keeps none of it
    except (BarrierAbortedError, NotReadableYetError, UnknownRevisionError):
        _raise_ended(found, _ROLLED_BACK)
    # Asked after the look: what was staged anew before it is known by now.
    if found.level is Level.READ_COMMITTED and _renew(deployment, found, holder):
        _raise_ended(found, _ROLLED_BACK)  # safety: catalog-ends-with-what-it-read
    return answer


def _as_computed(deployment: Deployment, found: Pin, tables: Sequence[str] | None) -> Resolution:
    """The barrier as the pin's revision computed it, though another one stands since."""
    resolve, at = deployment.meta.answers.resolve, found.barrier_id
    if at == 0:
        answer = resolve(found.topology, found.level, tables)
        if answer.barrier_id != 0:
            _raise_ended(found, "was before the first barrier")  # safety: catalog-stays-at-its-barrier
        return answer
    answer = resolve(found.topology, found.level, tables, at=at)
    if answer.revision != found.revision:
        answer = resolve(found.topology, Level.REPEATABLE_READ, tables, at=at, revision=found.revision)
    return answer


def _renew(deployment: Deployment, found: Pin, holder: str) -> bool:
    """Hold the pin's lease for as long again. Returns whether work of its barriers was rolled back since."""
    try:
        lease = deployment.meta.leases.renew(found.lease_id, found.hold, holder=holder)
    except LeaseLostError:
        _raise_ended(found, f"was not asked for anything for {found.hold} seconds, or was released")
    if lease.topology != found.topology or found.barrier_id not in (None, lease.through_id):
        _raise_ended(found, "holds something else")  # safety: catalog-is-held-by-its-lease
    return lease.rolled_back


def _raise_ended(found: Pin, why: str) -> NoReturn:
    raise LeaseLostError(
        f"catalog at {found}: expected to read what it was given when it connected, found that it {why}; connect "
        "again, for what is newest by then (a new Spark session, a new ATTACH, a new catalog)"
    )
