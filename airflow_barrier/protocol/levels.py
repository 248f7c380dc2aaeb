"""The consistency levels and what an answer at one of them consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.leases import Lease


class Level(str, Enum):
    """A reader's consistency level (FLIP-276, "Data Consistency Type")."""

    #: the newest PROCESSED snapshot of each table, each at a barrier of its own
    READ_UNCOMMITTED = "read_uncommitted"
    #: the newest barrier that is PRECOMMIT or further; may fall back when jobs are staged anew
    READ_COMMITTED = "read_committed"
    #: the newest barrier that is COMMIT; never falls back
    REPEATABLE_READ = "repeatable_read"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Parse a level as people write it; FLIP-276 has `ReadCommitted`. Raises :class:`ConfigurationError`.

        >>> Level.parse("ReadCommitted") is Level.parse("read committed") is Level.READ_COMMITTED
        True
        """
        wanted = "".join(character for character in text.lower() if character not in "_- ")
        for level in cls:
            if level.value.replace("_", "") == wanted:
                return level
        raise ConfigurationError(
            f"consistency level {text!r}: expected one of {', '.join(level.value for level in cls)}; use one of these"
        )


class ResolvedTable(NamedTuple):
    """One table of an answer: ``snapshot_id`` is None for a table that has no rows yet.

    A tuple, because answers of a thousand tables are made of them, and a dataclass takes twice as long to make.
    """

    table: str
    snapshot_id: int | None
    barrier_id: int
    revision: int


@dataclass(frozen=True)
class Resolution:
    """The snapshot of each table to read.

    At read committed and repeatable read, ``barrier_id`` and ``revision`` are those of all tables (invariant 1), and
    ``timestamp`` is the barrier's; at read uncommitted they are None and each table has its own. Before the first
    barrier there is the baseline: ``barrier_id`` 0 without a timestamp. ``resolved_at`` is when this was true, by the
    database's clock (UTC); ``lease`` holds it, if one was asked for.
    """

    topology: str
    level: Level
    barrier_id: int | None
    revision: int | None
    tables: Mapping[str, ResolvedTable]
    timestamp: datetime | None
    resolved_at: datetime
    lease: Lease | None = None

    @property
    def snapshots(self) -> dict[str, int | None]:
        """Table -> snapshot id; None for a table that has no rows yet."""
        return {name: table.snapshot_id for name, table in self.tables.items()}
