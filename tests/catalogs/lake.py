"""Tables in any catalog, and hands that stage in them like a Spark driver would, through pyiceberg."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.protocol.names import Stamp, tag_name
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication
from tests.support.rest_catalog import RestServer

TOPOLOGY = "shop"


@dataclass
class Lake:
    tables: IcebergTables
    namespace: str = field(default_factory=lambda: f"n{uuid.uuid4().hex[:8]}")

    def create(self, *names: str) -> list[str]:
        catalog = self.tables.catalog
        catalog.create_namespace_if_not_exists(self.namespace)
        schema = Schema(NestedField(1, "id", LongType()))
        return [".".join(catalog.create_table(f"{self.namespace}.{name}", schema).name()) for name in sorted(names)]

    def stage(
        self, table: str, barrier_id: int, base: int | None, ids: Iterable[int], revision: int = 0
    ) -> Publication:
        """One attempt: prepare, append on the attempt branch, check. Returns what there is to publish."""
        stamp = stamp_of(barrier_id, revision)
        self.tables.prepare(table, stamp, base)
        self.append(table, ids, stamp)
        staged = self.tables.staged(table, stamp, base)
        assert staged is not None
        return Publication(table, TOPOLOGY, barrier_id, base, staged, tag_name(TOPOLOGY, barrier_id, revision))

    def append(self, table: str, ids: Iterable[int], stamp: Stamp | None = None) -> None:
        """With a stamp to its branch, without one (a stranger) to `main`."""
        rows = pa.table({"id": list(ids)})
        if stamp is None:
            self.tables.load(table).append(rows)
        else:
            self.tables.load(table).append(rows, snapshot_properties=stamp.properties(), branch=stamp.branch)

    def rows(self, table: str, snapshot_id: int | None = None) -> list[int]:
        return sorted(self.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow().column("id").to_pylist())

    def refs(self, table: str) -> dict[str, int]:
        return {name: ref.snapshot_id for name, ref in self.tables.load(table).refs().items()}


def stamp_of(barrier_id: int, revision: int = 0) -> Stamp:
    return Stamp(TOPOLOGY, barrier_id, revision, 100 * (1 + revision) + barrier_id, "incarnation-1")


def connect(server: RestServer, folder: str, *, atomic: bool = False) -> IcebergTables:
    """``folder``: for the protocol's own files."""
    return IcebergTables.connect(server.uri, folder, properties=dict(server.properties), atomic=atomic)
