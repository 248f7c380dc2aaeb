"""A table that pyiceberg writes by hand: quick, for what a publish insists on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._metadata import Changes, refs_of
from airflow_barrier.tables.iceberg import IcebergTables
from tests.tables.lake import path_of

TABLE = "shop.shopping"


class Written:
    """One table, written by hand."""

    def __init__(self, tables: IcebergTables) -> None:
        self.tables = tables
        tables.catalog.create_namespace_if_not_exists("shop")
        tables.catalog.create_table(TABLE, Schema(NestedField(1, "id", LongType(), required=False)))

    def append(self, branch: str = "main", stamp: Mapping[str, str] | None = None, row: int = 1) -> int:
        table = self.tables.load(TABLE)
        table.append(pa.table({"id": [row]}), snapshot_properties=dict(stamp or {}), branch=branch)
        return self.at(branch)

    def delete(self, branch: str, stamp: Mapping[str, str] | None = None) -> int:
        self.tables.load(TABLE).delete(snapshot_properties=dict(stamp or {}), branch=branch)
        return self.at(branch)

    def stage(self, stamp: Stamp, base: int | None, row: int = 1) -> int:
        self.tables.prepare({TABLE: base}, stamp)
        return self.append(stamp.branch, stamp.properties(), row)

    def edit(self, **changes: Any) -> None:
        """What somebody else does to the table's refs."""
        self.tables._committer.commit({TABLE: lambda document, _: Changes(**changes)})

    def at(self, ref: str) -> int:
        return self.refs()[ref]

    def refs(self) -> dict[str, int]:
        return {name: ref["snapshot-id"] for name, ref in refs_of(self.document()).items()}

    def rows(self, ref: str = "main") -> list[int]:
        """What pyiceberg reads by the name of a branch or tag."""
        table = self.tables.load(TABLE)
        return sorted(table.scan(snapshot_id=table.refs()[ref].snapshot_id).to_arrow().column("id").to_pylist())

    def document(self) -> dict[str, Any]:
        return self.tables._read(TABLE)

    def rewrite(self, document: dict[str, Any]) -> None:
        """Another history, as an engine or an expiry may have left it."""
        path_of(self.tables.load(TABLE).metadata_location).write_text(json.dumps(document))
