"""Iceberg tables without Spark, many of them at once: made as copies of one, and written to without a row."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._drafts import now_ms
from airflow_barrier.tables._metadata import Changes, Document, edited, empty_root, ref_of, snapshots_of
from airflow_barrier.tables._sql_catalog import SqlTables
from airflow_barrier.tables.iceberg import IcebergTables, new_snapshot_id

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


@dataclass(frozen=True)
class Grown:
    """A snapshot that every table gets: its id, its summary, and the refs at it."""

    head: int
    summary: Mapping[str, str]
    branches: Sequence[str] = ()
    tags: Mapping[str, int] = field(default_factory=dict)


def schema() -> Schema:
    """Of all these tables."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    return Schema(NestedField(1, "n", LongType()))


def make_tables(tables: IcebergTables, names: Sequence[str]) -> None:
    """Empty tables of format version 2 in one new namespace."""
    namespace = names[0].partition(".")[0]
    tables.catalog.create_namespace(namespace)
    first = tables.catalog.create_table(names[0], schema())
    original: Document = json.loads(tables._documents.read_bytes(first.metadata_location))
    folder = original["location"].rpartition("/")[0]
    rows = []
    for name in names[1:]:
        table = name.partition(".")[2]
        at = f"{folder}/{table}/metadata/00000-{uuid.uuid4()}.metadata.json"
        document = {**original, "table-uuid": str(uuid.uuid4()), "location": f"{folder}/{table}"}
        tables._documents.write_bytes(at, json.dumps(document).encode())
        rows.append({"namespace": namespace, "name": table, "at": at})
    if rows:
        with _committer(tables)._pointers.transaction() as connection:
            copy = (
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                "iceberg_type) VALUES ('lake', :namespace, :name, :at, 'TABLE')"
            )
            connection.execute(text(copy), rows)


def branch(tables: IcebergTables, stamps: Mapping[str, Stamp], bases: Mapping[str, int | None]) -> None:
    """What `tables.prepare` does, for all tables in one commit."""

    def edit(table: str, document: Document, location: str) -> Changes:
        base = bases[table]
        if base is not None:
            return Changes(branches={stamps[table].branch: base})
        number = new_snapshot_id()
        manifests = f"{location.rpartition('/')[0]}/snap-{number}-1-{uuid.uuid4()}.avro"
        root = empty_root(document, number, manifests, stamps[table].properties(), now_ms())
        return Changes(branches={stamps[table].branch: number}, snapshot=root, writes_list=True)

    _committer(tables).commit(
        {table: lambda document, location, table=table: edit(table, document, location) for table in stamps}
    )


def stage(tables: IcebergTables, stamps: Mapping[str, Stamp]) -> dict[str, int]:
    """A snapshot without rows on the attempt branch of each table, all in one commit; their ids."""
    heads: dict[str, int] = {}

    def edit(table: str, document: Document) -> Changes:
        stamp = stamps[table]
        base = snapshots_of(document)[ref_of(document, stamp.branch)]
        heads[table] = new_snapshot_id()
        snapshot = {
            **base,
            "snapshot-id": heads[table],
            "parent-snapshot-id": base["snapshot-id"],
            "sequence-number": document["last-sequence-number"] + 1,
            "timestamp-ms": document["last-updated-ms"] + 1,
            "summary": {"operation": "append", **stamp.properties()},
        }
        return Changes(branches={stamp.branch: heads[table]}, snapshot=snapshot)

    _committer(tables).commit({table: lambda document, _, table=table: edit(table, document) for table in stamps})
    return heads


def grow(tables: IcebergTables, names: Sequence[str], line: Sequence[Grown], bases: Mapping[str, int | None]) -> None:
    """Snapshots without rows on top of each other and of a table's base, or of nothing; one document a table."""
    committer = _committer(tables)
    with committer._pointers.transaction() as connection:
        for table, location in committer._pointers.lock(connection, names).items():
            document, base = committer._documents.read(location), bases[table]
            for one in line:
                snapshot = _child(document, base, one, location)
                if base is None:
                    committer._documents.write_empty_manifest_list(snapshot, document["format-version"])
                changes = Changes(branches=dict.fromkeys(one.branches, one.head), tags=one.tags, snapshot=snapshot)
                after = edited(document, changes, location=location, now_ms=now_ms(), trim=True)
                assert after is not None
                document, base = after, one.head
            committer._pointers.move(connection, {table: (location, committer._documents.write(document, location))})


def _child(document: Document, base: int | None, one: Grown, location: str) -> dict[str, Any]:
    if base is None:
        manifests = f"{location.rpartition('/')[0]}/snap-{one.head}-1-{uuid.uuid4()}.avro"
        return empty_root(document, one.head, manifests, one.summary, now_ms())
    return {
        **snapshots_of(document)[base],
        "snapshot-id": one.head,
        "parent-snapshot-id": base,
        "sequence-number": document["last-sequence-number"] + 1,
        "timestamp-ms": document["last-updated-ms"] + 1,
        "summary": {"operation": "append", **one.summary},
    }


def _committer(tables: IcebergTables) -> SqlTables:
    assert isinstance(tables._committer, SqlTables)
    return tables._committer
