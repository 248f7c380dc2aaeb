"""Tables in any catalog, and an engine that stages in them like a driver would."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_barrier.protocol.names import Stamp, tag_name
from airflow_barrier.tables._metadata import MAIN
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication
from tests.catalogs.engines import Engine
from tests.support.metastores import Metastore
from tests.support.rest_catalog import RestServer

TOPOLOGY = "shop"


@dataclass
class Lake:
    engine: Engine
    namespace: str = field(default_factory=lambda: f"n{uuid.uuid4().hex[:8]}")

    @property
    def tables(self) -> IcebergTables:
        return self.engine.tables

    def create(self, *names: str) -> list[str]:
        tables = [f"{self.namespace}.{name}" for name in sorted(names)]
        for table in tables:
            self.engine.create(table)
        return tables

    def stage(
        self, table: str, barrier_id: int, base: int | None, ids: Iterable[int], revision: int = 0
    ) -> Publication:
        """One attempt: prepare, append on the attempt branch, check. Returns what there is to publish."""
        stamp = stamp_of(barrier_id, revision)
        self.tables.prepare({table: base}, stamp)
        self.append(table, ids, stamp)
        staged = self.tables.staged(table, stamp, base)
        assert staged is not None
        return Publication(table, TOPOLOGY, barrier_id, base, staged, tag_name(TOPOLOGY, barrier_id, revision))

    def append(self, table: str, ids: Iterable[int], stamp: Stamp | None = None) -> None:
        """With a stamp to its branch, without one (a stranger) to `main`."""
        self.engine.append(table, ids, stamp.branch if stamp else MAIN, stamp)

    def rows(self, table: str, snapshot_id: int | None = None) -> list[int]:
        """At a snapshot, or on `main`."""
        return self.engine.rows(table, snapshot_id or self.tables.mains([table])[table])

    def refs(self, table: str) -> dict[str, int]:
        return self.engine.refs(table)

    def seen(self, table: str) -> str | None:
        """The property that tests of commits set."""
        return self.engine.document(table)["properties"].get("seen")


def stamp_of(barrier_id: int, revision: int = 0) -> Stamp:
    return Stamp(TOPOLOGY, barrier_id, revision, 100 * (1 + revision) + barrier_id, "incarnation-1")


def connect(server: RestServer | Metastore, folder: str, *, atomic: bool = False) -> IcebergTables:
    """``folder``: for the protocol's own files."""
    return IcebergTables.connect(server.uri, folder, properties=dict(server.properties), atomic=atomic)
