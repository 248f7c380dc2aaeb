"""What changed in an Iceberg table between two snapshots, from its document and the manifests that differ.

Spark tells the same by queries over all files of the table, which take longer than the rows of a small epoch. Those
queries are right in every case, so whatever is not told here is left to them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from airflow_barrier.protocol.compaction import (
    TARGET_BYTES,
    TARGET_PROPERTY,
    DataFile,
    Reading,
    reading_at_most,
    reading_of,
)
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.snapshots import (
    ChangedFile,
    ChangedFiles,
    Snapshot,
    Stretch,
    TableDelta,
    chain_of,
    partition_sources,
    stretches,
)
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import Document, snapshots_of

if TYPE_CHECKING:
    from pyiceberg.io import InputFile
    from pyiceberg.manifest import ManifestFile

#: The most that is read of a table's manifests for one epoch, in bytes: a second's work. Spark reads more at once.
_MOST_BYTES = 4 << 20
#: The most files that an epoch spec names of a table, so that it stays a small file.
_MOST_FILES = 2_000
_DATA, _POSITION_DELETES = 0, 1
#: The column `file_path` of files with position deletes.
_FILE_PATH = 2147483546
_READ = (
    *("content", "file_path", "file_format", "column_sizes"),
    *("lower_bounds", "upper_bounds", "referenced_data_file", "content_offset"),
    *("partition", "file_size_in_bytes", "record_count"),
)
_NAME_MAPPING = "schema.name-mapping.default"

log = logging.getLogger(__name__)


class _UntoldError(Exception):
    """Metadata do not tell the changes, or only by more reading than is done here."""


@dataclass(frozen=True)
class _File:
    """A file that a manifest lists. ``about``: the data file of which it deletes positions, if that is one."""

    content: int
    file_path: str
    file_format: str
    content_offset: int | None
    about: str | None
    sure: bool = field(compare=False)
    partition: tuple[Any, ...] = field(compare=False)
    bytes: int = field(compare=False)
    rows: int = field(compare=False)


def table_delta(table: str, document: Document, start: int, end: int, documents: Documents) -> TableDelta | None:
    """Return what metadata tell of the changes between snapshots ``start`` and ``end``; None: ask Spark.

    Not told are changes where ``end`` does not descend from ``start``, equality deletes, deletes of a whole partition's
    files, what this process cannot read, and what is too much to read or to tell.
    """
    snapshots = {number: Snapshot.of(snapshot) for number, snapshot in snapshots_of(document).items()}
    try:
        if start not in snapshots or end not in snapshots:
            raise _UntoldError("they are not both there")
        chain = chain_of(snapshots, snapshots[start], snapshots[end])
        if chain is None:
            raise _UntoldError("one does not descend from the other, or a snapshot between them was expired")
        manifests = _Manifests(document, documents, _MOST_BYTES)
        told = tuple(map(manifests.changed, stretches(chain, snapshots[start], snapshots[end])))
    except _UntoldError as reason:
        log.info("%s: the driver asks Spark what changed between snapshots %d and %d: %s", table, start, end, reason)
        return None
    except Exception as error:  # an epoch does not fail for what only makes it quicker
        # of errors that are not ours only the kind: there is no telling what they quote
        found = str(error) if isinstance(error, BarrierError) else type(error).__name__
        log.warning(
            "%s: expected to read the manifests of snapshots %d and %d, found %s; the driver asks Spark instead",
            *(table, start, end, found),
        )
        return None
    return TableDelta(_part(document, [snapshots[start], *chain]), told, sum(map(manifests.size, told)))


def reading(document: Document, snapshot_id: int, target: int | None, documents: Documents) -> Reading:
    """Return what a read of the snapshot takes, where files are to have ``target`` bytes (None: as the table says).

    Manifests are read only where the summary leaves it open whether compaction pays.
    """
    target = target or int(document.get("properties", {}).get(TARGET_PROPERTY, TARGET_BYTES))
    told = reading_at_most(snapshots_of(document)[snapshot_id].get("summary", {}), target)
    if told is not None and not told.pays:
        return told
    return reading_of(_data_files(_Manifests(document, documents).live(snapshot_id)), target)


def _data_files(live: Collection[_File]) -> list[DataFile]:
    """The data files, with the deletes about each one of them.

    Deletes about several files, or by values, are left out: no rewriting of data files is sure to do away with them.
    """
    deletes: Counter[str | None] = Counter()
    deleted: Counter[str | None] = Counter()
    for file in live:
        if file.content != _DATA:
            deletes[file.about] += 1
            deleted[file.about] += file.rows
    return [
        DataFile(file.partition, file.bytes, file.rows, deletes[file.file_path], deleted[file.file_path])
        for file in live
        if file.content == _DATA
    ]


def _part(document: Document, chain: Iterable[Snapshot]) -> Document:
    """The part of the document that changes along ``chain`` take."""
    described = snapshots_of(document)
    schemas = {document["current-schema-id"], *(snapshot.schema_id for snapshot in chain)}
    properties = document.get("properties", {})
    return {
        "current-schema-id": document["current-schema-id"],
        "schemas": [schema for schema in document["schemas"] if schema["schema-id"] in schemas],
        "partition-specs": document.get("partition-specs", []),
        "properties": {_NAME_MAPPING: properties[_NAME_MAPPING]} if _NAME_MAPPING in properties else {},
        "snapshots": [_short(described[snapshot.id]) for snapshot in chain],
    }


def _short(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    summary = snapshot.get("summary", {})
    return {
        **{name: snapshot[name] for name in ("snapshot-id", "parent-snapshot-id", "schema-id") if name in snapshot},
        "summary": {name: summary[name] for name in ("operation", "total-delete-files") if name in summary},
    }


class _Manifests:
    """The manifests of one table, each read once; no more than ``most_bytes`` of them, if that is said."""

    def __init__(self, document: Document, documents: Documents, most_bytes: int | None = None) -> None:
        self._documents = documents
        self._described = snapshots_of(document)
        self._sources = partition_sources(document.get("partition-specs", ()))
        self._files: dict[str, list[_File]] = {}
        self._bytes = 0
        self._most_bytes = most_bytes

    def live(self, snapshot_id: int) -> list[_File]:
        """The live files of a snapshot."""
        return self._in(self._manifests_of(snapshot_id).values())

    def size(self, changed: ChangedFiles) -> int:
        """The bytes of the data files of a stretch that :meth:`changed` has read."""
        sizes = {file.file_path: file.bytes for files in self._files.values() for file in files}
        return sum(sizes[file.file_path] for file in (*changed.moved, *changed.kept))

    def changed(self, stretch: Stretch) -> ChangedFiles:
        """Raises _UntoldError."""
        at_start, at_end = self._listed(stretch.start), self._listed(stretch.end)
        gone = [at_start[path] for path in at_start.keys() - at_end.keys()]
        new = [at_end[path] for path in at_end.keys() - at_start.keys()]
        weights: Counter[_File] = Counter()
        unsure: set[str] = set()
        for manifests, side in ((gone, -1), (new, 1)):
            for file in self._in(manifests):
                weights[file] += side
                unsure |= set() if file.sure else {file.file_path}
        differing = {file: weight for file, weight in weights.items() if weight}
        deletes = [file for file in differing if file.content != _DATA]
        if any(file.about is None for file in deletes):
            raise _UntoldError(  # safety: told-deletes-name-a-file
                "a delete file is about several data files, or deletes by values"
            )
        moved = [
            ChangedFile(file.file_path, file.file_format, weight, file.file_path not in unsure)
            for file, weight in differing.items()
            if file.content == _DATA
        ]
        paths = {file.file_path for file in moved}
        kept = self._still_there({file.about for file in deletes if file.about is not None} - paths, at_end)
        if len(moved) + len(kept) > _MOST_FILES:
            raise _UntoldError(f"{len(moved) + len(kept)} files are more than the {_MOST_FILES} that a spec names")
        added = {file.file_path for file in moved if file.weight > 0}
        return ChangedFiles(
            stretch.start.id,
            stretch.end.id,
            tuple(sorted(moved, key=lambda file: file.file_path)),
            kept,
            added_have_deletes=any(file.about in added for file in deletes if differing[file] > 0),
        )

    def _listed(self, snapshot: Snapshot) -> dict[str, ManifestFile]:
        """The snapshot's manifests, by path."""
        if self._described[snapshot.id].get("summary", {}).get("total-equality-deletes") != "0":
            raise _UntoldError(  # safety: no-older-equality-deletes
                f"the summary of snapshot {snapshot.id} does not say that there are no equality deletes"
            )
        return self._manifests_of(snapshot.id)

    def _manifests_of(self, snapshot_id: int) -> dict[str, ManifestFile]:
        from pyiceberg.manifest import read_manifest_list

        manifests = read_manifest_list(self._input(self._described[snapshot_id]["manifest-list"]))
        return {manifest.manifest_path: manifest for manifest in manifests}

    def _still_there(self, paths: Collection[str], at_end: Mapping[str, ManifestFile]) -> tuple[ChangedFile, ...]:
        """Return those of the data files that are there at the end: deletes outlive the files that they are about."""
        if not paths:
            return ()
        manifests = [manifest for manifest in at_end.values() if manifest.content == _DATA]
        found = {file.file_path: file for file in self._in(manifests) if file.file_path in paths}
        return tuple(ChangedFile(path, found[path].file_format, 1, found[path].sure) for path in sorted(found))

    def _in(self, manifests: Iterable[ManifestFile]) -> list[_File]:
        """The live files of these manifests."""
        manifests = list(manifests)
        unread = {each.manifest_path: each.manifest_path for each in manifests if each.manifest_path not in self._files}
        self._bytes += sum(each.manifest_length for each in manifests if each.manifest_path in unread)
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise _UntoldError(
                f"its manifests have {self._bytes} bytes, more than the {self._most_bytes} that are read here"
            )
        specs = {each.manifest_path: each.partition_spec_id for each in manifests}
        self._files |= self._documents.of_each(lambda path, _: self._read(path, specs[path]), unread)
        return [file for manifest in manifests for file in self._files[manifest.manifest_path]]

    def _read(self, path: str, spec: int) -> list[_File]:
        from pyiceberg.avro.file import AvroFile
        from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, ManifestEntryStatus
        from pyiceberg.typedef import Record

        schema = MANIFEST_ENTRY_SCHEMAS[3]  # manifests of older versions have no more in them
        status, data_file = map([each.name for each in schema.fields].index, ("status", "data_file"))
        with AvroFile[Record](self._input(path), schema) as entries:
            live = (entry[data_file] for entry in entries if entry[status] != ManifestEntryStatus.DELETED)
            return [self._file(each, spec) for each in live]

    def _file(self, record: Any, spec: int) -> _File:
        found = (record[place] for place in _places())
        content, path, file_format, sizes, lower, upper, about, offset, partition, size, rows = found
        if content != _POSITION_DELETES:
            about = None
        elif about is None and lower and upper:
            # of version 2: it is about one data file if the least path in it is the greatest
            bounds = lower.get(_FILE_PATH), upper.get(_FILE_PATH)
            about = bounds[0].decode() if bounds[0] is not None and bounds[0] == bounds[1] else None
        sure = self._sources <= (sizes or {}).keys()
        where = (spec, *(partition[place] for place in range(len(partition))))
        return _File(int(content), path, file_format, offset, about, sure, where, size, rows)

    def _input(self, location: str) -> InputFile:
        """The file as pyiceberg's readers take it, which only open it."""
        data = self._documents.read_bytes(location)
        return cast("InputFile", _Held(data))


@dataclass(frozen=True)
class _Held:
    data: bytes

    def open(self) -> BytesIO:
        return BytesIO(self.data)


@cache
def _places() -> tuple[int, ...]:
    """Return where a data file's entry has the parts of :class:`_File`, as pyiceberg describes version 3."""
    from pyiceberg.manifest import DATA_FILE_TYPE

    names = [each.name for each in DATA_FILE_TYPE[3].fields]
    return tuple(map(names.index, _READ))
