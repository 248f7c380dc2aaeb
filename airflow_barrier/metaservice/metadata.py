"""What the MetaService knows, as tables for engines. In the database they are views of the same names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnClause, Connection, Text, column, select, table
from sqlalchemy.types import TypeEngine

from airflow_barrier.metaservice.schema import UtcTime
from airflow_barrier.protocol.metadata import MetadataColumn, metadata_table

_TYPES: dict[str, TypeEngine[Any]] = {"string": Text(), "bigint": BigInteger(), "timestamp": UtcTime()}


def metadata(
    connection: Connection, name: str, topology: str | None
) -> tuple[Sequence[MetadataColumn], list[tuple[Any, ...]]]:
    """Columns and rows, in the order of the table's key; ``topology``: those of one only."""
    asked = metadata_table(name)
    columns: list[ColumnClause[Any]] = [column(each.name, _TYPES[each.type]) for each in asked.columns]
    query = select(*columns).select_from(table(asked.name, *columns)).order_by(*columns[: asked.key])
    if topology is not None:
        query = query.where(column("topology") == topology)
    return asked.columns, [tuple(row) for row in connection.execute(query)]
