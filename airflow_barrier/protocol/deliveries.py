"""What leaves the lake: how a sink is declared, how far it is, and what was delivered to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

#: The column, before those of the table, that says what became of a row where changes are delivered.
CHANGE = "_change"
INSERT, UPDATE, DELETE = "insert", "update", "delete"


class Rows(str, Enum):
    """The rows of its tables that a sink gets with each barrier. CHANGES: what was inserted, updated and deleted.
    APPENDS: what was added, of tables that are only added to. TABLE: all rows.
    """

    CHANGES = "changes"
    APPENDS = "appends"
    TABLE = "table"


@dataclass(frozen=True)
class SinkDeclaration:
    """A sink as a DAG declares it. ``name`` is unique in a topology and ``owner`` is the DAG that delivers to it.

    ``kind`` names the adapter and ``options`` are its JSON settings, without any secret. ``targets``: table of the
    topology (``namespace.table``) -> what it is called in the sink; all of them are delivered in one step.
    """

    name: str
    owner: str
    kind: str
    targets: Mapping[str, str] = field(hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rows: Rows = Rows.CHANGES


@dataclass(frozen=True, order=True)
class Position:
    """The barrier that a sink was delivered last, and the revision that had computed it (0: none).

    >>> str(Position(7, 2)), Position(7, 0) < Position(7, 2) < Position(8, 0)
    ('b7.r2', True)
    """

    barrier_id: int
    revision: int

    def __str__(self) -> str:
        return f"b{self.barrier_id}.r{self.revision}"


@dataclass(frozen=True)
class Counts:
    """The numbers of rows that a delivery changed in one target."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.inserted + other.inserted, self.updated + other.updated, self.deleted + other.deleted)

    def __str__(self) -> str:
        said = [f"{count:,} {name}" for name, count in vars(self).items() if count]
        return ", ".join(said) or "no rows"


class SinkState(str, Enum):
    """ACTIVE: barriers are delivered. PAUSED: a person has stopped that; what is not delivered is held meanwhile."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"


class Remedy(str, Enum):
    """A person's order to the next delivery about a ledger that contradicts what is known. ADOPT: go on from what it
    says, whoever wrote it. REDELIVER: compare the targets with the tables, and change what differs.
    """

    ADOPT = "ADOPT"
    REDELIVER = "REDELIVER"


@dataclass(frozen=True)
class SinkRecord:
    """A sink as the MetaService knows it. What its ledger says counts; this is remembered of it.

    ``barrier_id`` and ``revision`` are what was delivered last (None: nothing yet), at ``delivered_at`` (UTC).
    ``deliverer``: the task that delivers, or was killed while it did (None: none does). ``error``: why the last try
    failed, at ``failed_at`` (None: it did not), and ``failures`` how many in a row. ``hold_seconds``: how long barriers
    that it lacks are kept for it. ``remedy``: what a person has decided on for the next delivery. ``released_at``
    (UTC): when it was let go of, since when it holds no barriers and belongs to no DAG, until one declares it again.
    """

    topology: str
    name: str
    owner: str
    definition: SinkDeclaration
    state: SinkState
    barrier_id: int | None
    revision: int | None
    delivered_at: datetime | None
    deliverer: str | None
    error: str | None
    failed_at: datetime | None
    failures: int
    hold_seconds: int
    remedy: Remedy | None
    created_at: datetime
    released_at: datetime | None = None

    def __str__(self) -> str:
        return f"sink {self.name} of {self.topology}"

    @property
    def position(self) -> Position | None:
        if self.barrier_id is None or self.revision is None:
            return None
        return Position(self.barrier_id, self.revision)


@dataclass(frozen=True)
class DeliveryRecord:
    """One barrier that a sink was delivered. ``inserted``, ``updated`` and ``deleted`` count rows of all its targets.

    ``first_barrier``: delivered along with it, in one step, were the barriers from this one on. ``seconds``: how long
    it took. ``actor``: who delivered it.
    """

    topology: str
    sink: str
    barrier_id: int
    revision: int
    first_barrier: int
    inserted: int
    updated: int
    deleted: int
    seconds: float
    actor: str
    delivered_at: datetime
