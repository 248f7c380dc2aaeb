"""Who makes tables and writes to them, beside the protocol: a driver on its attempt branch, a stranger on `main`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._metadata import MAIN, Document, refs_of
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.memory_tables import MemoryTables, Ticks
from tests.tables.lake import path_of

#: What the tests' tables are in, besides the model's memory. `rest transactions`: a REST catalog whose
#: `transactions/commit` is used, whatever becomes of a crash within it. Spark writes to an SQL catalog.
REAL = ("in sqlite", "in postgresql", "rest roll-forward", "rest transactions", "spark v2", "spark v3")


class Engine(ABC):
    """Tables with one column, `id`."""

    tables: IcebergTables

    @abstractmethod
    def create(self, table: str) -> None: ...

    @abstractmethod
    def append(self, table: str, ids: Iterable[int], branch: str = MAIN, stamp: Stamp | None = None) -> None: ...

    @abstractmethod
    def rows(self, table: str, snapshot_id: int | None) -> list[int]: ...

    @abstractmethod
    def set_main(self, table: str, snapshot_id: int) -> None: ...

    @abstractmethod
    def drop_ref(self, table: str, name: str) -> None: ...

    @abstractmethod
    def take_out(self, table: str, snapshot_ids: Sequence[int]) -> None:
        """Expire these, which no ref names."""

    def document(self, table: str) -> Document:
        """The table's metadata document, as it stands in its file."""
        return self.tables._read(table)

    def refs(self, table: str) -> dict[str, int]:
        return {name: ref["snapshot-id"] for name, ref in refs_of(self.document(table)).items()}


class InMemory(Engine):
    def __init__(self, tables: MemoryTables) -> None:
        self.tables = self._memory = tables

    def create(self, table: str) -> None:
        self._memory.create(table)

    def append(self, table: str, ids: Iterable[int], branch: str = MAIN, stamp: Stamp | None = None) -> None:
        new = Counter(ids)
        self._memory.write(table, branch, lambda rows: rows + new, properties=stamp.properties() if stamp else {})

    def rows(self, table: str, snapshot_id: int | None) -> list[int]:
        return sorted(self._memory.rows(snapshot_id).elements())

    def set_main(self, table: str, snapshot_id: int) -> None:
        self._memory.set_main(table, snapshot_id)

    def drop_ref(self, table: str, name: str) -> None:
        self._memory.drop_ref(table, name)

    def take_out(self, table: str, snapshot_ids: Sequence[int]) -> None:
        self._memory.take_out(table, snapshot_ids)


def in_memory() -> InMemory:
    return InMemory(MemoryTables("memory://catalog/tables", Ticks()))


class Pyiceberg(Engine):
    """Behind a REST catalog, Iceberg's own code makes the metadata of it. It cannot write format 3."""

    def __init__(self, tables: IcebergTables) -> None:
        self.tables = tables

    def create(self, table: str) -> None:
        self.tables.catalog.create_namespace_if_not_exists(table.partition(".")[0])
        self.tables.catalog.create_table(table, Schema(NestedField(1, "id", LongType())))

    def append(self, table: str, ids: Iterable[int], branch: str = MAIN, stamp: Stamp | None = None) -> None:
        properties = stamp.properties() if stamp else {}
        self.tables.load(table).append(pa.table({"id": list(ids)}), snapshot_properties=properties, branch=branch)

    def rows(self, table: str, snapshot_id: int | None) -> list[int]:
        found = self.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow()
        return sorted(found.column("id").to_pylist())

    def set_main(self, table: str, snapshot_id: int) -> None:
        self.tables.load(table).manage_snapshots().set_current_snapshot(snapshot_id).commit()

    def drop_ref(self, table: str, name: str) -> None:
        changes = self.tables.load(table).manage_snapshots()
        drop = changes.remove_tag if refs_of(self.document(table))[name]["type"] == "tag" else changes.remove_branch
        drop(name).commit()

    def take_out(self, table: str, snapshot_ids: Sequence[int]) -> None:
        """As Spark leaves it, which runs expiries: its history begins after what is gone; pyiceberg's goes across."""
        before = self.document(table)["snapshot-log"]
        self.tables.load(table).maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
        if self.tables.database_url is None:
            return
        gaps = [place for place, entry in enumerate(before, start=1) if entry["snapshot-id"] in snapshot_ids]
        document = {**self.document(table), "snapshot-log": before[max(gaps, default=0) :]}
        path_of(self.tables.load(table).metadata_location).write_text(json.dumps(document))


class Spark(Engine):
    """``version``: Iceberg format version of the tables it makes."""

    def __init__(self, tables: IcebergTables, session: SparkSession, version: int) -> None:
        self.tables, self._session, self._version = tables, session, version

    def create(self, table: str) -> None:
        self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{table.partition('.')[0]}")
        version = f"TBLPROPERTIES ('format-version'='{self._version}')"
        self._session.sql(f"CREATE TABLE lake.{table} (id BIGINT) USING iceberg {version}")

    def append(self, table: str, ids: Iterable[int], branch: str = MAIN, stamp: Stamp | None = None) -> None:
        """In one file: Spark's range of one partition."""
        rows = self._session.createDataFrame([(each,) for each in ids], "id BIGINT").coalesce(1)
        writer = rows.writeTo(f"lake.{table}" if branch == MAIN else f"lake.{table}.branch_{branch}")
        for key, value in (stamp.properties() if stamp else {}).items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()

    def rows(self, table: str, snapshot_id: int | None) -> list[int]:
        version = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return sorted(row.id for row in self._session.sql(f"SELECT id FROM lake.{table}{version}").collect())

    def set_main(self, table: str, snapshot_id: int) -> None:
        self._session.sql(f"CALL lake.system.set_current_snapshot('{table}', {snapshot_id})")

    def drop_ref(self, table: str, name: str) -> None:
        kind = refs_of(self.document(table))[name]["type"]
        self._session.sql(f"ALTER TABLE lake.{table} DROP {kind} `{name}`")

    def take_out(self, table: str, snapshot_ids: Sequence[int]) -> None:
        if snapshot_ids:
            ids = ", ".join(map(str, snapshot_ids))
            self._session.sql(f"CALL lake.system.expire_snapshots(table => '{table}', snapshot_ids => ARRAY({ids}))")
