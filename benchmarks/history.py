"""Tables with a long history, whose every snapshot has real files: written once, and copied under other names."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import create_engine

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.topology import Job
from airflow_barrier.tables._local_files import local_path
from benchmarks.lake import schema
from tests.metaservice.world import World
from tests.scale.history import multiply

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

#: Each barrier adds a file, and takes away the one that was added so many barriers before.
LIVE = 10
_FIRST_ID = 4_000_000_000_000_000_000
#: Ids of snapshots are a table's own, so all these tables have the same.
_BORN = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)


def make_history(deployment: Deployment, topology: str, tables: Sequence[str], barriers: int) -> None:
    """A topology with so many barriers, all of them COMMIT and tagged.

    ``tables`` are in one namespace, and their names of one length: a table's files are the first one's, which say the
    other name.
    """
    first = tables[0]
    deployment.tables.catalog.create_namespace(first.partition(".")[0])
    for table in tables:
        deployment.tables.catalog.create_table(table, schema())
    files = _History(deployment.tables.load(first), topology).write(barriers)
    for table in tables:
        _adopt(deployment, table, {_renamed(path, first, table): content for path, content in files.items()}, first)
    _record(deployment, topology, tables, barriers)


def _renamed(path: str, first: str, table: str) -> str:
    return path.replace(_folder(first), _folder(table))


def _folder(table: str) -> str:
    return f"/{table.replace('.', '/')}/"


class _History:
    """Writes a table's files into memory: path -> content."""

    def __init__(self, table: Table, topology: str) -> None:
        self.table = table
        self.topology = topology
        self.files: dict[str, bytes] = {}
        self.data = io.BytesIO()
        pq.write_table(pa.table({"n": [1]}, schema=table.schema().as_arrow()), self.data)

    def write(self, barriers: int) -> dict[str, bytes]:
        """With the metadata document, as `metadata.json`."""
        document: dict[str, Any] = json.loads(Path(local_path(self.table.metadata_location)).read_bytes())
        added: dict[int, ManifestFile] = {}
        snapshots, log = [], []
        for number in range(1, barriers + 1):
            snapshot = self._snapshot(number, added)
            snapshots.append(snapshot)
            log.append({"timestamp-ms": snapshot["timestamp-ms"], "snapshot-id": snapshot["snapshot-id"]})
        refs: dict[str, dict[str, Any]] = {"main": {"snapshot-id": _FIRST_ID + barriers, "type": "branch"}}
        for number in range(1, barriers + 1):
            refs[tag_name(self.topology, number, 0)] = {"snapshot-id": _FIRST_ID + number, "type": "tag"}
        document |= {
            "snapshots": snapshots,
            "snapshot-log": log,
            "refs": refs,
            "current-snapshot-id": _FIRST_ID + barriers,
            "last-sequence-number": barriers,
            "last-updated-ms": _BORN + barriers,
        }
        self.files[f"{self._at('metadata')}/metadata.json"] = json.dumps(document).encode()
        return self.files

    def _snapshot(self, number: int, added: dict[int, ManifestFile]) -> dict[str, Any]:
        """One file more, and the oldest of the live ones less. ``added``: the manifests of those that are live."""
        from pyiceberg.manifest import ManifestEntryStatus, write_manifest_list

        self.files[self._data(number)] = self.data.getvalue()
        manifests = [added[one] for one in added if one > number - LIVE]
        if number - LIVE in added:
            manifests.append(self._manifest(number, number - LIVE, ManifestEntryStatus.DELETED))
            del added[number - LIVE]
        manifests.append(self._manifest(number, number, ManifestEntryStatus.ADDED))
        at = f"{self._at('metadata')}/snap-{number:06}.avro"
        parent = _FIRST_ID + number - 1 if number > 1 else None
        with write_manifest_list(2, self._output(at), _FIRST_ID + number, parent, number, "null") as writer:
            writer.add_manifests(manifests)
        added[number] = writer.prepare_manifest(manifests[-1])
        self._take(at)
        summary = {"operation": "overwrite", "added-data-files": "1", "total-data-files": str(min(number, LIVE))}
        return {
            "snapshot-id": _FIRST_ID + number,
            **({"parent-snapshot-id": parent} if parent else {}),
            "sequence-number": number,
            "timestamp-ms": _BORN + number,
            "manifest-list": at,
            "summary": summary,
            "schema-id": 0,
        }

    def _manifest(self, number: int, file: int, status: Any) -> ManifestFile:
        from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry, ManifestEntryStatus, write_manifest
        from pyiceberg.typedef import Record

        data = DataFile.from_args(
            file_path=self._data(file),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=len(self.data.getvalue()),
        )
        is_new = status is ManifestEntryStatus.ADDED
        entry = ManifestEntry.from_args(
            status=status,
            snapshot_id=_FIRST_ID + number,
            sequence_number=None if is_new else file,
            file_sequence_number=None if is_new else file,
            data_file=data,
        )
        at = f"{self._at('metadata')}/{status.name.lower()}-{number:06}.avro"
        output = self._output(at)
        with write_manifest(2, self.table.spec(), self.table.schema(), output, _FIRST_ID + number, "null") as writer:
            writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        self._take(at)
        return manifest

    def _at(self, kind: str) -> str:
        return f"{self.table.location()}/{kind}"

    def _data(self, number: int) -> str:
        return f"{self._at('data')}/{number:06}.parquet"

    def _output(self, at: str) -> Any:
        return self.table.io.new_output(at)

    def _take(self, at: str) -> None:
        """What pyiceberg wrote to disk: it goes there again under each table's name."""
        self.files[at] = Path(local_path(at)).read_bytes()


def _adopt(deployment: Deployment, table: str, files: Mapping[str, bytes], first: str) -> None:
    """Write the files with the table's own name in them, and let the catalog point to their metadata document."""
    live = deployment.tables.load(table)
    Path(local_path(f"{live.location()}/data")).mkdir(parents=True, exist_ok=True)
    old, new = _folder(first).encode(), _folder(table).encode()
    for path, content in files.items():
        if not path.endswith("/metadata.json"):
            Path(local_path(path)).write_bytes(content.replace(old, new))
            continue
        document = json.loads(content.replace(old, new))
        document |= {"table-uuid": str(uuid.uuid4()), "location": live.location()}
        at = path.replace("metadata.json", f"00001-{uuid.uuid4()}.metadata.json")
        Path(local_path(at)).write_text(json.dumps(document))
        pointers = deployment.tables._committer._pointers  # type: ignore[attr-defined]
        with pointers.transaction() as connection:
            pointers.move(connection, {table: (pointers.lock(connection, [table])[table], at)})


def _record(deployment: Deployment, topology: str, tables: Sequence[str], barriers: int) -> None:
    """The same in the MetaService: two barriers step by step, and the others as copies of the second."""
    job = Job("load", "dag", outlets=tuple(tables))
    world = World(deployment.meta, topology, [job])
    for number in (1, 2):
        barrier = world.open(number)
        attempt = world.start(barrier.barrier_id, job.name)
        staged = {table: StagedTable(table, _FIRST_ID + number) for table in tables}
        deployment.meta.attempts.close(attempt.attempt_id, staged, "benchmark")
        deployment.meta.attempts.report(attempt.attempt_id, "benchmark")
        world.commit(barrier.barrier_id)
    engine = create_engine(deployment.meta.url)
    with engine.begin() as connection:
        multiply(connection, template=2, last=barriers)
    engine.dispose()
