"""When the compaction of a table pays: by what each read of the table reads in vain.

That is files beyond those that its bytes need, and rows that are deleted. Every MERGE into the table reads all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil

#: What opening a file costs, in bytes that are read meanwhile: Iceberg's own figure, `read.split.open-file-cost`.
_OPENING = 4 << 20
#: What a statement costs, in the same bytes, however little it reads: as much as opening so many files. Measured, see
#: decision 0076.
_STATEMENT = 64 * _OPENING
#: Compaction pays where more than this share of the useful work is done in vain.
_SHARE = 0.25
#: A data file is rewritten, whatever its size, where this share of its rows is deleted. Then what deleted rows leave
#: in a table stays below :data:`_SHARE`: a fifth of all is a quarter of the rest.
DELETED_SHARE = 0.2
#: A data file below this share of the target size is rewritten together with others. Iceberg's figure.
_SMALL = 0.75
#: Options of `rewrite_data_files` by which it rewrites what is counted here. By its own it leaves fewer than five small
#: files of a partition as they are.
OPTIONS = {"min-input-files": "2", "delete-ratio-threshold": str(DELETED_SHARE)}
#: ... and the table's property and the option which say how large files are to be, with Iceberg's default.
TARGET_PROPERTY, TARGET_OPTION, TARGET_BYTES = "write.target-file-size-bytes", "target-file-size-bytes", 512 << 20


@dataclass(frozen=True)
class DataFile:
    """A data file: its ``partition``, and how many files of ``deletes`` are about it, of so many ``deleted`` rows."""

    partition: Hashable
    bytes: int
    rows: int
    deletes: int = 0
    deleted: int = 0

    @property
    def deleted_share(self) -> float:
        return min(self.deleted / self.rows, 1) if self.rows else 0


@dataclass(frozen=True)
class Reading:
    """The cost of a read of a table: ``files`` of data, of so many ``bytes``, where ``needed`` would do, and files of
    ``deletes``; ``dead`` bytes are those of deleted rows.

    >>> str(Reading(files=21, needed=1, deletes=9, bytes=200_000, dead=50_000))
    '21 data files where 1 would do, 9 files of deletes, 25% of the bytes deleted'
    """

    files: int
    needed: int
    deletes: int
    bytes: int
    dead: int

    @property
    def pays(self) -> bool:
        """Return whether compaction pays."""
        in_vain = (self.files - self.needed + self.deletes) * _OPENING + self.dead
        useful = _STATEMENT + self.needed * _OPENING + self.bytes - self.dead
        return in_vain > _SHARE * useful

    def __str__(self) -> str:
        share = self.dead / self.bytes if self.bytes else 0
        return (
            f"{self.files} data files where {self.needed} would do, {self.deletes} files of deletes, "
            f"{share:.0%} of the bytes deleted"
        )


def reading_at_most(summary: Mapping[str, str], target: int) -> Reading | None:
    """Return what a snapshot's summary tells, where ``target`` is the size of files: at least what is read in vain,
    since it tells neither partitions nor deletes about files that are gone. None: its writer did not count.
    """
    names = ("data-files", "delete-files", "files-size", "records", "position-deletes")
    try:
        files, deletes, size, rows, deleted = (int(summary[f"total-{name}"]) for name in names)
    except KeyError:
        return None
    dead = size * min(deleted, rows) // rows if rows else 0
    return Reading(files, min(files, ceil(size / target)), deletes, size, dead)


def reading_of(files: Iterable[DataFile], target: int) -> Reading:
    """Return what these files tell. In vain is only what a rewriting by :data:`OPTIONS` does away with: so it does not
    pay again right after it.
    """
    partitions: defaultdict[Hashable, list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    needed = deletes = dead = 0
    for every in partitions.values():
        taken = [file for file in every if file.bytes < _SMALL * target or file.deleted_share >= DELETED_SHARE]
        if len(taken) < 2 and all(file.deleted_share < DELETED_SHARE for file in taken):
            taken = []
        gone = sum(int(file.bytes * file.deleted_share) for file in taken)
        needed += len(every) - len(taken) + min(len(taken), ceil((sum(file.bytes for file in taken) - gone) / target))
        deletes += sum(file.deletes for file in taken)
        dead += gone
    every_file = [file for part in partitions.values() for file in part]
    return Reading(len(every_file), needed, deletes, sum(file.bytes for file in every_file), dead)
