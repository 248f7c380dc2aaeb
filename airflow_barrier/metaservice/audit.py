"""What happened, and what there is: for people and for engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnClause, Connection, Row, Text, and_, column, func, or_, select, table
from sqlalchemy.types import TypeEngine

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.schema import UtcTime
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.metadata import MetadataColumn, metadata_table
from airflow_barrier.protocol.records import AuditEntry

#: The types of metadata tables.
_TYPES: dict[str, TypeEngine[Any]] = {"string": Text(), "bigint": BigInteger(), "timestamp": UtcTime()}
#: Entries that are read at once, and how far entries of two transactions may be out of the order of their times.
_PAGE = 2000
_OUT_OF_ORDER = timedelta(minutes=1)


class Audit(Group):
    """The history of changes, and the present state, as rows."""

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
    def between(
        self,
        connection: Connection,
        topology: str,
        since: datetime,
        until: datetime,
        events: Collection[tuple[str, str]],
    ) -> list[AuditEntry]:
        """The changes of one of these kinds and events from ``since`` on and before ``until``, in the order they
        happened. Each of ``events`` is (kind, event).

        Read from the newest back, a page at a time, and no farther than to ``since``.
        """
        table, before = schema.audit, None
        found: list[Row[Any]] = []
        while True:
            here = [table.c.topology == topology, *([] if before is None else [table.c.audit_id < before])]
            page = select(table.c.audit_id, table.c.at).where(*here).order_by(table.c.audit_id.desc()).limit(_PAGE)
            rows = page.subquery("page")
            first, oldest = connection.execute(select(func.min(rows.c.audit_id), func.min(rows.c.at))).one()
            if first is None:
                break
            named = [and_(table.c.kind == kind, table.c.event == event) for kind, event in events]
            wanted = select(table).where(*here, table.c.audit_id >= first, or_(*named))
            found += connection.execute(wanted.order_by(table.c.audit_id.desc())).all()
            before = first
            if oldest < since - _OUT_OF_ORDER:
                break
        return [to_record(AuditEntry, row) for row in reversed(found) if since <= row.at < until]

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
