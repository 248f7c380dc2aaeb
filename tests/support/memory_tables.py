"""Iceberg tables in memory: the real `IcebergTables` over a catalog and a storage that are dictionaries.

Everything that decides is the production code (the edits and checks of metadata documents, compare-and-set, drafts);
replaced are only the catalog's rows, the files, the clock and the random ids. What an engine would do to tables, ours
or a stranger's, stands here as methods. A snapshot's rows are kept as what they are made of, so that "exactly once"
can be checked as content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table import snapshots
from sqlalchemy import Connection

from airflow_barrier.protocol.errors import BarrierError, MissingTableError
from airflow_barrier.tables import _drafts, iceberg
from airflow_barrier.tables._metadata import MAIN, Document, Snapshot, lineage, ref_of, refs_of, snapshots_of
from airflow_barrier.tables._sql_catalog import SqlTables
from airflow_barrier.tables.iceberg import IcebergTables

WAREHOUSE = "memory:/warehouse"
Rows = Counter[Any]


class StillNamedError(BarrierError):
    """What Iceberg says to an expiry of a snapshot that a ref names."""


class Ticks:
    """Clock and ids, injected: each question gets the next number. Time also passes when it is told to."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        #: ms, without a tick
        self.clock = 1_700_000_000_000
        self._next_id = count(1_000_000).__next__

    def now_ms(self) -> int:
        self.clock += 1
        return self.clock

    def monotonic(self) -> float:
        return self.now_ms() / 1000

    def pass_by(self, seconds: float) -> None:
        self.clock += round(seconds * 1000)

    def uuid4(self) -> Any:
        number = self._next_id()
        return _Id(int=number << 65, hex=f"{number:032x}")

    def inject(self, patch: pytest.MonkeyPatch) -> None:
        """Let the production code of the tables' room ask here."""
        patch.setattr(_drafts, "now_ms", self.now_ms)
        patch.setattr(iceberg, "now_ms", self.now_ms)
        patch.setattr(iceberg, "uuid", SimpleNamespace(uuid4=self.uuid4))


class _Id(SimpleNamespace):
    def __str__(self) -> str:
        return str(self.hex)


class MemoryDocuments:
    """`Documents` in a dictionary. A document is never changed once it is written, so nothing is copied."""

    def __init__(self, step: Callable[[str], None]) -> None:
        self._step = step
        self.files: dict[str, Any] = {}
        self.rows: dict[int | None, Rows] = {None: Counter()}

    def of_each(self, work: Callable[[str, str], Any], locations: Mapping[str, str]) -> dict[str, Any]:
        return {table: work(table, location) for table, location in locations.items()}

    def read(self, location: str) -> Document:
        if location not in self.files:
            raise FileNotFoundError(location)
        document: Document = self.files[location]
        return document

    def write(self, document: Document, previous: str) -> str:
        folder, _, name = previous.rpartition("/")
        location = f"{folder}/{int(name.partition('-')[0]) + 1:05d}-{len(self.files)}.metadata.json"
        while location in self.files:  # an earlier loser of the same race
            location = location.replace(".metadata", "x.metadata")
        for snapshot in document["snapshots"]:
            if snapshot["snapshot-id"] not in self.rows:  # the protocol's own, which keeps its parent's rows
                parent = snapshots_of(document)[snapshot["parent-snapshot-id"]]
                assert snapshot["manifest-list"] == parent["manifest-list"]
                self.rows[snapshot["snapshot-id"]] = self.rows[parent["snapshot-id"]]
        self.files[location] = document
        return location

    def write_empty_manifest_list(self, snapshot: Snapshot, format_version: int) -> None:
        self.rows[snapshot["snapshot-id"]] = Counter()

    def delete(self, locations: Iterable[str]) -> None:
        for location in locations:
            self.files.pop(location, None)

    def forget(self, location: str) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """Nor has it threads."""

    def delete_if_empty(self, folders: Iterable[str]) -> None:
        """There are none."""

    def clear(self, folder: str) -> None:
        self.delete([location for location in self.files if location.startswith(f"{folder}/")])

    def read_bytes(self, uri: str) -> bytes:
        self._step(f"read {uri}")
        if uri not in self.files:
            raise FileNotFoundError(uri)
        data: bytes = self.files[uri]
        return data

    def write_bytes(self, uri: str, data: bytes) -> None:
        self._step(f"write {uri}")
        self.files[uri] = data

    def exists(self, uri: str) -> bool:
        self._step(f"exists {uri}")
        return uri in self.files

    def names(self, folder: str) -> list[str]:
        return [uri.rpartition("/")[2] for uri in self.files if uri.rpartition("/")[0] == folder]


class MemoryPointers:
    """`SqlPointers` without SQL.

    Moves in a transaction of the MetaService are undone when that rolls back, if its end is told to :meth:`committed`
    and :meth:`rolled_back`.
    """

    def __init__(self, database_url: str, step: Callable[[str], None], moved: Callable[[str, str, str], None]) -> None:
        self.database_url = database_url
        self.catalog_name = "lake"
        self.at: dict[str, str] = {}
        #: how often any pointer moved
        self.moves = 0
        self._undo: list[tuple[str, str]] = []
        self._step, self._moved = step, moved

    def read(self, tables: Iterable[str]) -> dict[str, str]:
        self._step("read pointers")
        return self.where(tables)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._step("lock pointers")
        try:
            yield
        except BaseException:
            self.rolled_back()
            raise
        self.committed()

    def lock(self, connection: Connection | None, tables: Iterable[str]) -> dict[str, str]:
        return self.where(tables)

    def move(self, connection: Connection | None, moves: Mapping[str, tuple[str, str]]) -> None:
        for table, (old, new) in sorted(moves.items()):
            assert self.at[table] == old, "under the lock nobody can have moved it"
            self._undo.append((table, old))
            self.at[table] = new

    def close(self) -> None:
        """Nothing to close."""

    def where(self, tables: Iterable[str]) -> dict[str, str]:
        wanted = sorted(set(tables))
        if missing := [table for table in wanted if table not in self.at]:
            raise MissingTableError(f"expected table {', '.join(missing)}, found none; create it")
        return {table: self.at[table] for table in wanted}

    def committed(self) -> None:
        moved, self._undo = self._undo, []
        for table, old in moved:
            self.moves += 1
            self._moved(table, old, self.at[table])

    def rolled_back(self) -> None:
        for table, old in reversed(self._undo):
            self.at[table] = old
        self._undo = []


class _Committer(SqlTables):
    """Without the retries of a real network, which wait by the clock."""

    def read(self, tables: Iterable[str]) -> dict[str, Document]:
        tables = tuple(tables)
        return self._read(tables) if tables else {}

    def commit(self, edits: Mapping[str, Any]) -> dict[str, str]:
        return self._commit_once(edits) if edits else {}


class MemoryTables(IcebergTables):
    """``step`` is called before each operation on the catalog or a file, ``moved`` after a table has moved by the
    protocol's hand (table, location before, location after); what an engine does calls neither.
    """

    def __init__(
        self,
        database_url: str,
        ticks: Ticks,
        step: Callable[[str], None] = lambda what: None,
        moved: Callable[[str, str, str], None] = lambda table, before, after: None,
    ) -> None:
        self.pointers = MemoryPointers(database_url, step, moved)
        self.documents = MemoryDocuments(step)
        committer = _Committer(self.pointers, self.documents, {})  # type: ignore[arg-type]
        super().__init__(committer, self.documents, WAREHOUSE)  # type: ignore[arg-type]
        self.ticks = ticks
        self._snapshot_ids = count(1001)

    # --- looking ----------------------------------------------------------------------------------

    def document(self, table: str) -> Document:
        return self.documents.read(self.pointers.where([table])[table])

    def main(self, table: str) -> int | None:
        return ref_of(self.document(table), MAIN)

    def load(self, table: str) -> Any:
        """As much of pyiceberg's table as says what its snapshots are, and when `main` was at which."""
        document = self.document(table)
        there, entries = snapshots_of(document), document["snapshot-log"]

        def snapshot_by_id(snapshot_id: int) -> snapshots.Snapshot | None:
            return snapshots.Snapshot(**there[snapshot_id]) if snapshot_id in there else None

        log = [SimpleNamespace(timestamp_ms=e["timestamp-ms"], snapshot_id=e["snapshot-id"]) for e in entries]
        return SimpleNamespace(snapshot_by_id=snapshot_by_id, history=lambda: log)

    def rows(self, snapshot_id: int | None) -> Rows:
        return self.documents.rows[snapshot_id]

    def readable(self, table: str, snapshot_id: int | None) -> bool:
        return snapshot_id is None or snapshot_id in snapshots_of(self.document(table))

    def steps(self, table: str, snapshot_id: int | None) -> list[int]:
        """A snapshot and its ancestors as far as they are there, newest first."""
        if snapshot_id is None:
            return []
        return [snapshot["snapshot-id"] for snapshot in lineage(self.document(table), snapshot_id)]

    # --- what engines do --------------------------------------------------------------------------

    def create(self, table: str) -> None:
        location = f"{WAREHOUSE}/{table}/metadata/00000-{len(self.documents.files)}.metadata.json"
        self.documents.files[location] = {
            "format-version": 2,
            "table-uuid": str(self.ticks.uuid4()),
            "location": f"{WAREHOUSE}/{table}",
            "last-sequence-number": 0,
            "last-updated-ms": self.ticks.now_ms(),
            "current-schema-id": 0,
            "schemas": [{"schema-id": 0, "type": "struct", "fields": []}],
            "properties": {},
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
        }
        self.pointers.at[table] = location

    def write(
        self,
        table: str,
        branch: str,
        change: Callable[[Rows], Rows],
        *,
        operation: str = "append",
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """A new snapshot on a branch: its rows are ``change`` of what the branch held.

        A branch that is not there begins at `main`, as Spark does it. That is how a zombie's late write comes about.
        """
        document = self.document(table)
        head = ref_of(document, branch)
        head = ref_of(document, MAIN) if head is None else head
        snapshot_id = next(self._snapshot_ids)
        self.documents.rows[snapshot_id] = change(self.rows(head))
        now = self.ticks.now_ms()
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": document["last-sequence-number"] + 1,
            "timestamp-ms": now,
            "summary": {
                "operation": operation,
                "total-records": str(self.documents.rows[snapshot_id].total()),
                "added-records": str((self.documents.rows[snapshot_id] - self.rows(head)).total()),
                **(properties or {}),
            },
            "manifest-list": f"{document['location']}/snap-{snapshot_id}.avro",
            "schema-id": 0,
        }
        if head is not None:
            snapshot["parent-snapshot-id"] = head
        after = {
            **document,
            "snapshots": [*document["snapshots"], snapshot],
            "last-sequence-number": snapshot["sequence-number"],
        }
        self._commit(table, _pointed(after, branch, snapshot_id, now))
        return snapshot_id

    def set_main(self, table: str, snapshot_id: int) -> None:
        """`rollback_to_snapshot`, `set_current_snapshot`; where `main` is there already, nothing is committed."""
        if snapshot_id == self.main(table):
            return
        self._commit(table, _pointed(self.document(table), MAIN, snapshot_id, self.ticks.now_ms()))

    def drop_ref(self, table: str, name: str) -> None:
        document = self.document(table)
        self._commit(table, {**document, "refs": {k: v for k, v in refs_of(document).items() if k != name}})

    def expire(self, table: str) -> None:
        """`expire_snapshots` of everything that no ref holds, with the history before what is gone."""
        document = self.document(table)
        kept: set[int] = set()
        for ref in refs_of(document).values():
            ancestors = islice(lineage(document, ref["snapshot-id"]), ref.get("min-snapshots-to-keep", 1))
            kept.update(snapshot["snapshot-id"] for snapshot in ancestors)
        self._keep(table, kept)

    def take_out(self, table: str, snapshot_ids: Iterable[int]) -> str:
        """`expire_snapshots` of exactly these; refused, with nothing changed, if a ref names one of them."""
        document, going = self.document(table), set(snapshot_ids)
        if named := {ref["snapshot-id"] for ref in refs_of(document).values()} & going:
            raise StillNamedError(f"table {table}: expected snapshots that no ref names, found {sorted(named)}")
        self._keep(table, set(snapshots_of(document)) - going)
        return "no files"

    def _keep(self, table: str, kept: set[int]) -> None:
        document = self.document(table)
        log: list[dict[str, Any]] = []
        for entry in document["snapshot-log"]:
            log = [*log, entry] if entry["snapshot-id"] in kept else []
        snapshots = [snapshot for snapshot in document["snapshots"] if snapshot["snapshot-id"] in kept]
        self._commit(table, {**document, "snapshots": snapshots, "snapshot-log": log})

    def _commit(self, table: str, after: Document) -> None:
        before = self.pointers.at[table]
        now = self.ticks.now_ms()
        self.pointers.at[table] = self.documents.write({**after, "last-updated-ms": now}, before)
        self.pointers.moves += 1


def _pointed(document: Document, branch: str, snapshot_id: int, now_ms: int) -> Document:
    """The document with a branch at a snapshot."""
    refs = dict(refs_of(document))
    refs[branch] = {**refs.get(branch, {"type": "branch"}), "snapshot-id": snapshot_id}
    after = {**document, "refs": refs}
    if branch == MAIN:
        after["current-snapshot-id"] = snapshot_id
        entry = {"timestamp-ms": now_ms, "snapshot-id": snapshot_id}
        after["snapshot-log"] = [*document["snapshot-log"], entry]
    return after
