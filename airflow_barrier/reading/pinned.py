"""Which snapshots a consistent answer reads, and queries rewritten to read just these."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import BarrierAbortedError, NotReadableYetError, UnpinnableError
from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.reading.metadata import MetadataRows

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_barrier.reading.rewriting import Pin, Rewritten

log = logging.getLogger(__name__)


class Pinned(ABC):
    """A topology's tables at snapshots, and SQL with these tables pinned. ``at`` is what was asked for."""

    def __init__(self, deployment: Deployment, at: int | datetime | None) -> None:
        self._deployment = deployment
        self._at = at
        self._outside: set[str] = set()
        self._read: set[str] = set()

    @property
    @abstractmethod
    def resolution(self) -> Resolution:
        """Return which snapshot of each table is read. Raises LeaseLostError if that is no longer held."""

    @property
    def catalog(self) -> str:
        """Return what engines call the catalog that the tables are in."""
        return self._deployment.spark_catalog

    @property
    def unresolved(self) -> tuple[str, ...]:
        """The tables of the topology that the answer does not have: a query over it may not read them."""
        found = self.resolution
        tables = self._deployment.meta.topologies.get(found.topology).tables
        return tuple(table for table in tables if table not in found.tables)

    @property
    def outside(self) -> tuple[str, ...]:
        """Return what queries over the answer have read so far as it is now: tables and views that are not the
        topology's, and metadata of its tables such as ``shop.price.snapshots``.
        """
        return tuple(sorted(self._outside))

    @property
    def read(self) -> tuple[str, ...]:
        """The tables of the topology that queries over the answer have read so far."""
        return tuple(sorted(self._read))

    @property
    def snapshots(self) -> dict[str, int | None]:
        """Table -> snapshot id; None for a table that has no rows yet."""
        return self.resolution.snapshots

    @property
    def tags(self) -> dict[str, str]:
        """Table -> the tag by which any engine that knows Iceberg's tags reads it.

        Without tables that are staged only, or that have no rows yet: these have none. What has been staged anew or
        aborted since has none either.
        """
        found = self.resolution
        published = self._published()
        return {
            table: tag_name(found.topology, one.barrier_id, one.revision)
            for table, one in found.tables.items()
            if one.snapshot_id is not None and one in published
        }

    def _published(self) -> set[ResolvedTable]:
        """Return what barriers that are COMMIT by now consist of: those of the answer, without the baseline."""
        found, consists = self.resolution, set[ResolvedTable]()
        if found.level is Level.REPEATABLE_READ:
            return set(found.tables.values()) if found.barrier_id else consists
        for barrier_id in {one.barrier_id for one in found.tables.values()} - {0}:
            with suppress(NotReadableYetError, BarrierAbortedError):
                there = self._deployment.meta.answers.resolve(found.topology, Level.REPEATABLE_READ, at=barrier_id)
                consists.update(there.tables.values())
        return consists

    def metadata(self, name: str) -> pa.Table:
        """The rows of a metadata table, such as `__META_TABLE_VERSION`, as they are now: they are not the barrier's.

        Raises ConfigurationError for a name that is none.
        """
        return MetadataRows(self._deployment.meta, name).read()

    def rewritten(
        self, query: str, dialect: str, pins: Mapping[str, Pin], *, catalog: str | None = None, **where: Any
    ) -> Rewritten:
        """See :func:`~airflow_barrier.reading.rewriting.rewrite`, which ``where`` goes to, and :meth:`sql`.

        Raises what that does, UnpinnableError for a table of the same name in another catalog, and UnknownTableError
        for a table that joined after the barrier, naming its first one.
        """
        from airflow_barrier.reading.rewriting import rewrite

        found = rewrite(
            query,
            dialect,
            pins,
            catalog=catalog or self.catalog,
            unresolved=self.unresolved,
            refuse=self.require_table,
            **where,
        )
        if catalog is None and found.elsewhere:
            raise UnpinnableError(  # safety: no-table-by-another-catalog
                f"SQL: expected tables of topology {self.resolution.topology} in catalog {self.catalog}, found "
                f"{', '.join(found.elsewhere)}, called as one of them; if the engine calls their catalog so, say that "
                f"(catalog=...), and catalog={self.catalog!r} if these are other tables, to be read as they are now"
            )
        return found

    def tell(self, found: Rewritten) -> None:
        """Keep which tables a query reads, and warn of what it reads as it is now; once of each."""
        said = {name for name in (*found.outside, *found.about) if not name.endswith("()")} - self._outside
        if said:
            log.warning(
                "read as they are now, and not as of a barrier, since they are not tables of topology %s: %s",
                self.resolution.topology,
                ", ".join(sorted(said)),
            )
        self._outside |= said
        self._read |= set(found.pinned)

    def require_table(self, table: str) -> None:
        """Raises UnknownTableError if the answer's barrier does not have ``table``, naming the first that has it."""
        found = self.resolution
        at = self._at if found.barrier_id is None else found.barrier_id
        self._deployment.meta.answers.resolve(found.topology, found.level, [table], at=at or None)
