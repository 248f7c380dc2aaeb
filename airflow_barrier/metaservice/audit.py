"""What happened, and what there is: for people and for engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnClause, Connection, Text, column, select, table
from sqlalchemy.types import TypeEngine

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.schema import UtcTime
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.metadata import MetadataColumn, metadata_table
from airflow_barrier.protocol.records import AuditEntry

#: The types of metadata tables.
_TYPES: dict[str, TypeEngine[Any]] = {"string": Text(), "bigint": BigInteger(), "timestamp": UtcTime()}


class Audit(Group):
    """What happened, and what there is, as rows."""

    @reads
    def newest(
        self, connection: Connection, topology: str, barrier_id: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """The newest ``limit`` changes of a topology or of one barrier, in the order they happened."""
        table = schema.audit
        query = select(table).where(table.c.topology == topology)
        if barrier_id is not None:
            query = query.where(table.c.barrier_id == barrier_id)
        rows = connection.execute(query.order_by(table.c.audit_id.desc()).limit(limit)).all()
        return [to_record(AuditEntry, row) for row in reversed(rows)]

    @reads
    def metadata(
        self, connection: Connection, name: str, topology: str | None = None
    ) -> tuple[Sequence[MetadataColumn], list[tuple[Any, ...]]]:
        """Columns and rows of a metadata table, such as `__META_TABLE_VERSION`; ``topology``: of this one only.

        Times are aware, in UTC. In the database itself it is a view of the same name. Raises ConfigurationError for a
        name that is none.
        """
        asked = metadata_table(name)
        columns: list[ColumnClause[Any]] = [column(each.name, _TYPES[each.type]) for each in asked.columns]
        query = select(*columns).select_from(table(asked.name, *columns)).order_by(*columns[: asked.key])
        if topology is not None:
            query = query.where(column("topology") == topology)
        return asked.columns, [tuple(row) for row in connection.execute(query)]
