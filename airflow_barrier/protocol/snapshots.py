"""The line of an Iceberg table's snapshots, and which files differ between two of them.

The worker reads it from the table's metadata, or the driver by Spark: see :mod:`airflow_barrier.spark.changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. ``delete_files`` is None where the writer did not count them."""

    id: int
    parent: int | None
    operation: str | None
    schema_id: int | None
    delete_files: int | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Snapshot:
        """The snapshot that a metadata document describes so."""
        summary = data.get("summary", {})
        counted = summary.get("total-delete-files")
        return cls(
            id=data["snapshot-id"],
            parent=data.get("parent-snapshot-id"),
            operation=summary.get("operation"),
            schema_id=data.get("schema-id"),
            delete_files=None if counted is None else int(counted),
        )

    @property
    def keeps_rows(self) -> bool:
        """A compaction: other files, the same rows."""
        return self.operation == "replace"

    @property
    def only_appends(self) -> bool:
        return self.operation == "append"


@dataclass(frozen=True)
class Stretch:
    """Two snapshots, and those after the first up to the second, where they are known (else none)."""

    start: Snapshot
    end: Snapshot
    chain: tuple[Snapshot, ...] = ()

    @property
    def only_appends(self) -> bool:
        """Return whether everything between them is known to have only appended."""
        return bool(self.chain) and all(snapshot.only_appends for snapshot in self.chain)

    def runs(self) -> list[Stretch]:
        """The stretch cut where snapshots that append and others take turns."""
        cut: list[Stretch] = []
        at = self.start
        for _, run in groupby(self.chain, lambda snapshot: snapshot.only_appends):
            chain = tuple(run)
            cut.append(Stretch(at, chain[-1], chain))
            at = chain[-1]
        return cut


def chain_of(snapshots: Mapping[int, Snapshot], start: Snapshot | None, end: Snapshot) -> list[Snapshot] | None:
    """The snapshots after ``start`` (None: from the first one) up to and including ``end``, oldest first.

    None if that is not known: ``end`` does not descend from ``start``, or a snapshot between them was expired.
    """
    chain: list[Snapshot] = []
    at: Snapshot | None = end
    while at is not None and at != start:
        chain.append(at)
        if at.parent is not None and at.parent not in snapshots:
            return None
        at = None if at.parent is None else snapshots[at.parent]
    return chain[::-1] if at == start else None


def stretches(chain: Sequence[Snapshot] | None, start: Snapshot, end: Snapshot) -> list[Stretch]:
    """Cut ``chain`` at its compactions, which keep all rows: so what they rewrote need not be read.

    Where the chain is not known, the two snapshots are compared directly.
    """
    if chain is None:
        return [Stretch(start, end)]
    cut: list[Stretch] = []
    first = start
    for compaction, run in groupby(chain, lambda snapshot: snapshot.keeps_rows):
        between = tuple(run)
        if not compaction:
            cut.append(Stretch(first, between[-1], between))
        first = between[-1]
    return cut


def partition_sources(specs: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """The ids of the fields that are themselves values of one of these partition specs."""
    return frozenset(
        field["source-id"] for spec in specs for field in spec["fields"] if field["transform"] == "identity"
    )


@dataclass(frozen=True)
class ChangedFile:
    """A data file. ``weight``: how many times more it is listed at the end than at the start of a stretch; of one that
    is at both, 1.

    ``sure``: its metrics show that it has within it each column that is a partition value.
    """

    file_path: str
    file_format: str
    weight: int
    sure: bool


@dataclass(frozen=True)
class ChangedFiles:
    """The data files that differ between snapshots ``start`` and ``end``: ``moved`` are listed at one of them only,
    ``kept`` have other deletes on them.

    ``added_have_deletes``: at the end deletes may be about files that the start has not.
    """

    start: int
    end: int
    moved: tuple[ChangedFile, ...]
    kept: tuple[ChangedFile, ...]
    added_have_deletes: bool


@dataclass(frozen=True)
class TableDelta:
    """All that is told of a table's changes but their rows: the part of its metadata document that they take, the files
    of each stretch that :func:`stretches` makes of them, and how many ``bytes`` these files have.
    """

    document: Mapping[str, Any]
    stretches: tuple[ChangedFiles, ...]
    bytes: int


@dataclass(frozen=True)
class Told:
    """The part of tables that metadata tell: ``deltas`` of changes, and ``sizes``: bytes of a snapshot's files.

    A table is absent where they do not tell.
    """

    deltas: Mapping[str, TableDelta]
    sizes: Mapping[str, int]
