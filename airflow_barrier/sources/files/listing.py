"""What lies in a landing folder, on any file system that fsspec knows, and which stretch of time a path names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import Any

from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    SourceDataError,
    SourceUnavailableError,
)

# Stores without folders of their own: there an empty one cannot be told from one that is not there.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"})
_MODIFIED_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_PATTERN = str.maketrans({character: f"\\{character}" for character in "{}[]*?\\"})
# As object stores have it; a database's index of long texts ends at 2,700.
_LONGEST_PATH = 1024
_ETAG_KEYS = ("ETag", "etag", "md5Hash")
_NO_DATA = "Spark takes for no data (it begins with '_' or '.', or ends with '._COPYING_')"


def left_out_by_spark(path: str) -> bool:
    """Return whether Spark, told to read a folder with all that is in it, passes over the file of that relative path.

    Its own rule (``HadoopFSUtils``, and ``PartitioningAwareFileIndex`` for files), oddities included: folders of
    Parquet's metadata are looked into.

    >>> [left_out_by_spark(path) for path in ("_SUCCESS", "_temporary/0/a.csv", "_date=2017-01-01/a.csv", "a.csv.crc")]
    [True, True, False, False]
    """
    *folders, name = path.split("/")
    return any(map(_is_hidden, folders)) or _is_no_data(name)


def _is_hidden(name: str) -> bool:
    if name.startswith(("_metadata", "_common_metadata")):
        return False
    return _is_unfinished(name) or name.endswith("._COPYING_")


def _is_no_data(name: str) -> bool:
    return _is_hidden(name) or _is_unfinished(name)


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


@dataclass(frozen=True)
class LandedFile:
    """A file as it was found. ``path`` is relative to the folder; ``etag`` is the store's digest where it has one.

    ``odd``: what it is instead of a file. It is cut like one, so that the check names it and it holds up the jobs that
    read its source, and not the topology.
    """

    path: str
    size: int
    modified: datetime
    etag: str | None = None
    odd: str | None = None

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"path": self.path, "size": self.size, "modified": self.modified.isoformat()}
        more = {"etag": self.etag, "odd": self.odd}
        return {**fields, **{name: value for name, value in more.items() if value is not None}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LandedFile:
        modified = datetime.fromisoformat(data["modified"])
        return cls(data["path"], data["size"], modified, data.get("etag"), data.get("odd"))

    @property
    def fault(self) -> str | None:
        """Return what keeps it from being read, as far as its name and kind tell: "expected …, found …"."""
        if self.odd is not None:
            return f"expected a file, found {self.odd}; land the file itself, by moving it in"
        parts = self.path.split("/")
        if "" in parts[:-1]:
            return "expected a path that Hadoop can read, found one with an empty part ('//'); land it under another"
        if ":" in parts[-1]:
            return "expected a file name that Hadoop can read, found one with ':'"
        if _is_no_data(parts[-1]):  # in a cut of before this was known, and Spark would read nothing without a word
            return f"expected a file name that Spark reads, found one that {_NO_DATA}; land it under another"
        return None

    def __str__(self) -> str:
        return (
            f"{self.size} bytes of {self.modified.isoformat()}"
            + (f", etag {self.etag}" if self.etag else "")
            + (f", {self.odd}" if self.odd else "")
        )


def url_of(folder: str, path: str) -> str:
    """The URL of a file in a folder, made without touching either: a Spark driver may lack fsspec's drivers.

    >>> url_of("/landing/", "a.parquet"), url_of("s3://in/shop", "date=2017-01-01/a b.csv")
    ('file:///landing/a.parquet', 's3://in/shop/date=2017-01-01/a b.csv')
    """
    base = folder if "://" in folder else f"file://{folder}"
    return f"{base.rstrip('/')}/{path}" if path else base


def literally(url: str) -> str:
    """A URL for Spark's ``load()``, which takes special characters for a pattern."""
    return url.translate(_PATTERN)


@dataclass(frozen=True)
class Listing:
    """The files of a folder, and why others are ``left_out``, by path."""

    files: list[LandedFile]
    left_out: Mapping[str, str]


class Folder:
    """A landing folder (or a single file), by its URL.

    Left out is what Spark leaves out (:func:`left_out_by_spark`), and files whose names match one of ``ignore``.
    Nothing else is: what is no file, such as a link, is listed too, and said to be ``odd``. The folder itself may be a
    link.
    """

    def __init__(self, url: str, ignore: Sequence[str] = ()) -> None:
        import fsspec.core

        self.url = url.rstrip("/") or "/"
        self._ignore = tuple(ignore)
        try:
            self.fs, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                f"landing folder {self.url}: expected a storage that the worker can reach, found none for its URL "
                f"({type(error).__name__}: {error}); install its driver for fsspec beside airflow_barrier"
            ) from error
        except Exception as error:
            raise self._unavailable(error) from error
        self._root: str = root.rstrip("/")

    def files(self) -> list[LandedFile]:
        """Every file but those that are left out, in the order of the paths. Raises :class:`SourceUnavailableError`,
        and :class:`SourceDataError` if there is no such folder.
        """
        return self.listing().files

    def listing(self) -> Listing:
        """Return what :meth:`files` has, and what is left out."""
        try:
            # a listing that the client remembers would hide files that have landed since
            self.fs.invalidate_cache()
            found: Mapping[str, Mapping[str, Any]] = self.fs.find(self._root, detail=True)
            if not found and not self._may_be_empty():
                raise SourceDataError(  # safety: folder-is-there
                    f"landing folder {self.url}: expected a folder, found nothing; make the folder (an empty one is "
                    "an empty epoch), mount it, or correct the source's path"
                )
            files = [
                self._landed(self._relative(path), info or self.fs.info(path))
                for path, info in found.items()
                if info.get("type") != "directory"
            ]
        except (BarrierError, MemoryError):
            raise
        except Exception as error:  # each storage's client has errors of its own
            raise self._unavailable(error) from error
        files.sort(key=lambda file: file.path)
        left_out = {file.path: why for file in files if (why := self._why_left_out(file.path))}
        visible = [file for file in files if file.path not in left_out]
        for file in visible:
            if fault := _path_fault(file.path):
                raise SourceDataError(  # safety: paths-a-database-keeps
                    f"landing folder {self.url}: expected paths that a database can keep, found {file.path!a}, which "
                    f"{fault}; rename the file"
                )
        return Listing(visible, left_out)

    def stat(self, path: str) -> LandedFile | None:
        """The file as it is now, None if it is gone. Raises :class:`SourceUnavailableError`."""
        try:
            return self._landed(path, self.fs.info(self.full(path)))
        except FileNotFoundError:
            return None
        except MemoryError:
            raise
        except Exception as error:
            raise self._unavailable(error) from error

    def full(self, path: str) -> str:
        """The path as the file system takes it."""
        return f"{self._root}/{path}" if path else self._root

    def url_of(self, path: str) -> str:
        """The path as a URL."""
        return url_of(self.url, path)

    def _relative(self, path: str) -> str:
        """Return the path without the folder and one slash: what an object store has behind two is another file's
        name.
        """
        return path[len(self._root) :].removeprefix("/")

    def _why_left_out(self, path: str) -> str | None:
        name = path.split("/")[-1] or self._root.split("/")[-1]
        if not path and _is_no_data(name):
            raise SourceDataError(  # safety: spark-reads-the-file
                f"source file {self.url}: expected a file name that Spark reads, found one that {_NO_DATA}; rename it, "
                "and correct the source's path"
            )
        if left_out_by_spark(path):
            return "Spark takes names that begin with '_' or '.', or end with '._COPYING_', for no data"
        return next((f"ignore has {pattern!r}" for pattern in self._ignore if fnmatchcase(name, pattern)), None)

    def _landed(self, path: str, info: Mapping[str, Any]) -> LandedFile:
        modified = next((info[key] for key in _MODIFIED_KEYS if info.get(key) is not None), None)
        if modified is None:
            modified = self.fs.modified(self.full(path))
        etag = next((str(info[key]).strip('"') for key in _ETAG_KEYS if info.get(key)), None)
        return LandedFile(path, int(info["size"] or 0), _utc(modified), etag, _odd(info) if path else None)

    def _may_be_empty(self) -> bool:
        protocols = {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        return bool(protocols & _OBJECT_STORES) or self.fs.exists(self._root)

    def _unavailable(self, error: Exception) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"landing folder {self.url}: expected its files, found {type(error).__name__}: {error}; "
            "it is tried again; if it stays so, see whether the storage is up and may be read from here"
        )


def _odd(info: Mapping[str, Any]) -> str | None:
    if info.get("islink") or info["type"] == "link":  # arrow's file systems follow links, and say nothing of them
        return "a link, whose target can change without a trace"
    return None if info["type"] == "file" else "neither a file nor a folder (a pipe, a socket, a device)"


def _path_fault(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"is {size} bytes long (up to {_LONGEST_PATH} are possible)" if size > _LONGEST_PATH else None


def _utc(moment: Any) -> datetime:
    if isinstance(moment, (int, float)):
        return datetime.fromtimestamp(moment, timezone.utc)
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        return moment.replace(tzinfo=timezone.utc)  # type: ignore[no-any-return]
    return moment.astimezone(timezone.utc)  # type: ignore[no-any-return]


# --- dates in paths -------------------------------------------------------------------------------

_DIGITS = {"Y": 4, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}
_FIXED_PERIODS = (
    ("S", timedelta(seconds=1)),
    ("M", timedelta(minutes=1)),
    ("H", timedelta(hours=1)),
    ("d", timedelta(days=1)),
    ("j", timedelta(days=1)),
)


@dataclass(frozen=True)
class PathDate:
    """A pattern such as ``date=%Y-%m-%d`` or ``%Y/%m/%d/%H``: literal text and the directives %Y %m %d %j %H %M %S.

    A path is about the whole period that it names: ``date=2017-01-01`` about that day, up to the next midnight, UTC.
    """

    pattern: str
    regex: re.Pattern[str]
    directives: str

    @classmethod
    def of(cls, pattern: str) -> PathDate:
        """Raises :class:`ConfigurationError` for a pattern that names no period."""
        directives = ""
        regex = ""
        pieces = re.split(r"%(.)", pattern)
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                regex += re.escape(piece)
                continue
            if piece not in _DIGITS or piece in directives:
                raise _not_a_pattern(pattern)
            directives += piece
            regex += rf"(?P<{piece}>\d{{{_DIGITS[piece]}}})"
        if not _names_a_period(directives):
            raise _not_a_pattern(pattern)
        # a date is not to be found in the middle of a longer number
        return cls(pattern, re.compile(rf"(?<!\d){regex}(?!\d)" if pieces[0] == "" else rf"{regex}(?!\d)"), directives)

    def end_of(self, path: str) -> datetime | None:
        """The end of the period that ``path`` names where the pattern first fits; None if it fits nowhere.

        >>> PathDate.of("date=%Y-%m-%d").end_of("shop/date=2017-01-31/part-0.parquet").isoformat()
        '2017-02-01T00:00:00+00:00'
        """
        match = self.regex.search(path)
        if match is None:
            return None
        found = {directive: int(match[directive]) for directive in self.directives}
        try:
            start = datetime(found["Y"], found.get("m", 1), found.get("d", 1), tzinfo=timezone.utc) + timedelta(
                days=found.get("j", 1) - 1,
                hours=found.get("H", 0),
                minutes=found.get("M", 0),
                seconds=found.get("S", 0),
            )
        except ValueError:  # a thirteenth month
            return None
        for directive, period in _FIXED_PERIODS:
            if directive in found:
                return start + period
        if "m" in found:
            return (start + timedelta(days=32)).replace(day=1)
        return start.replace(year=start.year + 1)


def _names_a_period(directives: str) -> bool:
    """Return True if the directives go from the year down to something, without a gap."""
    return sorted(directives) in [sorted(chain) for chain in ("Y", "Ym", "Ymd", "YmdH", "YmdHM", "YmdHMS")] or sorted(
        directives
    ) in [sorted(chain) for chain in ("Yj", "YjH", "YjHM", "YjHMS")]


def _not_a_pattern(pattern: str) -> ConfigurationError:
    return ConfigurationError(
        f"path_date {pattern!r}: expected text with %Y and, from there down without a gap, %m %d (or %j) %H %M %S, "
        "each once, such as 'date=%Y-%m-%d' or '%Y/%m/%d/%H'"
    )
