"""Real tables that Spark makes, writes and reads, and that the adapter under test prepares and publishes."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql.connect.session import SparkSession

from airflow_barrier.protocol.names import Stamp, tag_name
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication

Rows = Sequence[tuple[int, str]]

_numbers = itertools.count(1)


@dataclass
class Lake:
    """``version``: Iceberg format version of the tables it makes."""

    spark: SparkSession
    tables: IcebergTables
    version: int
    server_url: str

    def create(self, properties: Mapping[str, str] | None = None, rows: Rows = ()) -> str:
        """A table of (id, v), partitioned by v; with ``rows`` on `main`."""
        table = f"tables_v{self.version}.t{next(_numbers)}"
        properties = {"format-version": str(self.version), **(properties or {})}
        said = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.tables_v{self.version}")
        self.spark.sql(
            f"CREATE TABLE lake.{table} (id BIGINT, v STRING) USING iceberg PARTITIONED BY (v) TBLPROPERTIES ({said})"
        )
        if rows:
            self.append(table, rows)
        return table

    def append(self, table: str, rows: Rows, branch: str | None = None, stamp: Stamp | None = None) -> None:
        """Append by Spark, stamped if there is a ``stamp``."""
        where = f"lake.{table}.branch_{branch}" if branch else f"lake.{table}"
        writer = self.spark.createDataFrame(list(rows), "id BIGINT, v STRING").writeTo(where)
        for key, value in (stamp.properties() if stamp else {}).items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()

    def stage(self, table: str, stamp: Stamp, base: int | None, rows: Rows) -> int:
        """One attempt: prepare, append on the attempt branch, check. Returns the staged snapshot."""
        self.tables.prepare({table: base}, stamp)
        self.append(table, rows, stamp.branch, stamp)
        staged = self.tables.staged(table, stamp, base)
        assert staged is not None
        return staged

    @contextmanager
    def session_of(self, stamp: Stamp) -> Iterator[SparkSession]:
        """A session whose every snapshot is stamped, as far as the engine does so."""
        session = connect_session(self.server_url)
        try:
            for key, value in stamp.properties().items():
                session.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
            yield session
        finally:
            stop_session(session)

    @contextmanager
    def catalog(self) -> Iterator[sqlite3.Connection]:
        """The catalog's database, and a change of it by hand."""
        with closing(sqlite3.connect(str(self.tables.database_url).removeprefix("sqlite:///"), timeout=30)) as database:
            yield database
            database.commit()

    def main(self, table: str) -> int | None:
        return self.tables.mains([table])[table]

    def rows(self, table: str, ref: str | int | None = None) -> list[tuple[int, str]]:
        """What Spark reads on `main`, by the name of a branch or tag, or at a snapshot."""
        version = "" if ref is None else f" VERSION AS OF {ref!r}"
        return sorted(tuple(row) for row in self.spark.sql(f"SELECT id, v FROM lake.{table}{version}").collect())

    def refs(self, table: str) -> dict[str, int]:
        """The refs as Spark sees them."""
        found = self.spark.sql(f"SELECT name, snapshot_id FROM lake.{table}.refs").collect()
        return {row.name: row.snapshot_id for row in found}

    def location(self, table: str) -> str:
        return self.tables.load(table).metadata_location

    def document(self, table: str) -> dict[str, Any]:
        """The metadata document, as it stands in its (uncompressed) file."""
        return json.loads(path_of(self.location(table)).read_text())


def path_of(location: str) -> Path:
    return Path(urlparse(location).path)


def stamp_of(barrier_id: int, attempt_id: int | None = None, topology: str = "shop", revision: int = 0) -> Stamp:
    return Stamp(topology, barrier_id, revision, attempt_id or 100 * (1 + revision) + barrier_id, "incarnation-1")


def publication(
    table: str,
    expected: int | None,
    new: int | None,
    barrier_id: int = 1,
    topology: str = "shop",
    drop_tags: tuple[str, ...] = (),
) -> Publication:
    return Publication(table, topology, barrier_id, expected, new, tag_name(topology, barrier_id, 0), drop_tags)
