"""Reading what outsiders landed: no more of it at once than a worker has room for, and no word of it in an error.

The limits stand here and nowhere else. What goes beyond them belongs into Parquet, or into several files; who has a
connection's workers to himself may raise some of them there.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError

#: Levels of objects and lists in each other. Python ends near 1,000 and so does Spark; nobody declares 100.
DEEPEST_JSON = 100
#: pyarrow keeps the length of what it parses at once in 32 bits.
_LONGEST_LINE = 2**31 - 1

_ROWS = 64 * 1024
# Hadoop knows no others by these names, or has a framing of its own for them.
_PACKED = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}
_LONGEST_NAME = 60
_LONGEST_TEXT = 200
_MOST_NAMES = 20
# the one part of pyarrow's message that holds counts, and nothing of the row
_COUNTS = re.compile(r"(?:Row #\d+: )?Expected \d+ columns, got \d+")


@dataclass(frozen=True)
class Limits:
    """Limits that a connection may set, each by an extra of the same name.

    ``max_epoch_files``: new files of one epoch of a source. A cut of 100,000 is 9 MB of JSON, which the MetaService,
    the job's spec and the journal keep. ``max_unpacked_bytes``: of one compressed file whose event times are read. 4
    GiB are minutes of a worker's time, and bzip2 makes a terabyte of a megabyte. ``max_line_characters``: of one line
    of a text file. A worker reads 16 files at once, and a parsed line takes up to twenty times its length.

    >>> Limits().max_epoch_files
    100000
    """

    max_epoch_files: int = 100_000
    max_unpacked_bytes: int = 4 * 1024**3
    max_line_characters: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigurationError(f"{name}: expected 1 or more, found {value}")
        if self.max_line_characters > _LONGEST_LINE:
            raise ConfigurationError(
                f"max_line_characters: expected {_LONGEST_LINE:,} at most, found {self.max_line_characters:,}"
            )


class UnfitFileError(ValueError):
    """A landed file that is not read. The text says expected and found, and nothing of what is in the file.

    It never leaves this room: who reads several files puts the file's name before it.
    """


def fault(error: Exception, form: str) -> str:
    """Return what is wrong with a file whose reading ended so, as "expected …, found …"."""
    if isinstance(error, UnfitFileError):
        return str(error)
    return f"expected a readable {form} file, found {_said(error)}"


def _said(error: Exception) -> str:
    """An error of a library without what it quotes of the file."""
    name = type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        return f"{name}: {error.msg} at character {error.pos + 1} of the line"
    if isinstance(error, OSError) and (
        error.errno is not None or isinstance(error, (FileNotFoundError, PermissionError))
    ):
        return f"{name}: {shortened(str(error))}"  # of the storage, about the file
    counts = _COUNTS.search(str(error))
    return f"{name}: {counts[0]}" if counts else name


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def column_names(names: Sequence[str]) -> str:
    """The names of a Parquet file's columns, which its writer has chosen: the first ones, and the beginning of each."""
    named = [name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…" for name in names[:_MOST_NAMES]]
    return ", ".join(named) + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


# --- text -----------------------------------------------------------------------------------------


@contextmanager
def unpacked(fs: Any, path: str, most: int) -> Iterator[Any]:
    """The file's bytes, to be read in pieces; of a compressed file ``most`` of what it unpacks to.

    Raises :class:`UnfitFileError` when more is asked for.
    """
    from fsspec.utils import infer_compression

    packing = infer_compression(path)
    if packing is not None and packing not in _PACKED:
        raise UnfitFileError(
            f"expected a text file as it is or compressed ({', '.join(_PACKED.values())}), found one of {packing}, "
            "which Spark does not read"
        )
    with fs.open(path, "rb", compression=packing) as raw:
        yield raw if packing is None else io.BufferedReader(_Counted(raw, most), 128 * 1024)


class _Counted(io.RawIOBase):
    """A stream that ends with an error, and not with the worker's memory or time."""

    def __init__(self, raw: Any, most: int) -> None:
        super().__init__()
        self._raw, self._left, self._most = raw, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise UnfitFileError(
                f"expected a compressed file that unpacks to {self._most:,} bytes at most, found more; land it in "
                "parts, or raise the connection's extra max_unpacked_bytes"
            )
        buffer[: len(data)] = data
        return len(data)


def lines(fs: Any, path: str, limits: Limits) -> Iterator[tuple[int, str]]:
    """The lines of a text file and their numbers, from 1 on. Raises :class:`UnfitFileError` for one that is too long,
    which is not read to its end.
    """
    number, longest = 0, limits.max_line_characters
    with (
        unpacked(fs, path, limits.max_unpacked_bytes) as raw,
        io.TextIOWrapper(raw, "utf-8-sig", newline="") as text,
    ):
        while line := text.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise UnfitFileError(
                    f"expected lines of {longest:,} characters at most, found that line {number} is longer; land such "
                    "records as Parquet, or raise the connection's extra max_line_characters"
                )
            yield number, line


def json_lines(fs: Any, path: str, limits: Limits) -> Iterator[tuple[int, Any]]:
    """The value on each line that is not blank, and the line's number. Raises :class:`UnfitFileError` for one that is
    no JSON, or nested too deep.
    """
    for number, line in lines(fs, path, limits):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except RecursionError:
            raise _too_deep(number) from None
        except ValueError as error:
            # the error itself holds the line
            raise UnfitFileError(f"expected a readable json file, found {_said(error)} in line {number}") from None
        if line.count("{") + line.count("[") > DEEPEST_JSON and _is_deep(value):
            raise _too_deep(number)
        yield number, value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_JSON + 1):
        nested = [each for each in level if isinstance(each, (dict, list))]
        level = [below for each in nested for below in (each.values() if isinstance(each, dict) else each)]
        if not nested:
            return False
    return True


def _too_deep(number: int) -> UnfitFileError:
    return UnfitFileError(
        f"expected objects and lists up to {DEEPEST_JSON} levels deep, found more in line {number}; Spark would end "
        "at it as well"
    )


# --- Parquet --------------------------------------------------------------------------------------


@contextmanager
def parquet(fs: Any, path: str) -> Iterator[Any]:
    """The file, open; only its footer is read. Raises :class:`UnfitFileError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with fs.open(path, "rb") as raw:
        try:
            file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
        except pa.ArrowException as error:
            # of the footer, which holds sizes and names of columns
            said = f"{type(error).__name__}: {shortened(str(error))}"
            raise UnfitFileError(f"expected a readable parquet file, found {said}") from None
        with file:
            yield file


def parquet_batches(file: Any, group: int, column: str) -> Iterator[Any]:
    """One column of a row group, in pieces: its writer says how many rows a group has, and they may be billions."""
    for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column], use_threads=False):
        yield batch.column(0)


def batches(values: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield as many of ``values`` at a time as are looked at together."""
    while batch := list(islice(values, _ROWS)):
        yield batch
