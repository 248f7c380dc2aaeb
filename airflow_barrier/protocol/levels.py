"""The consistency levels and what an answer at one of them consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """What a reader asks for (FLIP-276, "Data Consistency Type")."""

    #: the newest PROCESSED snapshot of each table, each at a barrier of its own
    READ_UNCOMMITTED = "read_uncommitted"
    #: the newest barrier that is PRECOMMIT or further; may fall back when jobs are staged anew
    READ_COMMITTED = "read_committed"
    #: the newest barrier that is COMMIT; never falls back
    REPEATABLE_READ = "repeatable_read"


@dataclass(frozen=True)
class ResolvedTable:
    """One table of an answer: ``snapshot_id`` is None for a table that has no rows yet."""

    table: str
    snapshot_id: int | None
    barrier_id: int
    revision: int


@dataclass(frozen=True)
class Resolution:
    """Which snapshot of each table to read.

    At read committed and repeatable read, ``barrier_id`` and ``revision`` are those of all tables
    (invariant 1); at read uncommitted they are None and each table has its own.
    """

    topology: str
    level: Level
    barrier_id: int | None
    revision: int | None
    tables: Mapping[str, ResolvedTable]
