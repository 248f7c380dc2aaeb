"""Files that others read: a folder or a manifest a barrier, in Parquet, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_barrier.protocol import datasets
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import is_topology_name
from airflow_barrier.sinks.port import Channel
from airflow_barrier.systems.roots import location_fault

if TYPE_CHECKING:
    from typing_extensions import Self

Format = Literal["parquet", "csv", "jsonl"]
Readers = Literal["pattern", "manifest"]

# What one of Hadoop, a shell's patterns and the URLs of WebHDFS takes for something else.
_NOT_IN_NAMES = frozenset('/\\?#:*[]{}%"')
_LONGEST_NAME = 200
#: What one request puts into an object store, less what a file may have beyond ``roll_bytes``.
_LARGEST_OBJECT = 4 * 1024**3


@dataclass(frozen=True)
class FileSink:
    """Files in a folder that others read.

    Under ``url`` each table has a folder, its *target*, and in there each barrier one:
    ``prices/b00000007.r00000/part-00000.parquet`` (barrier 7, revision 0). Barriers come in order, each once, and never
    change. A barrier of which a table has no rows has a file without rows. Who reads may move files away, or delete
    them: nothing comes again, since what was delivered is kept apart, in ``url/_barrier``, which nobody may touch.

    A barrier's folder gets its name when all in it is written, in one step of the file system. So whoever lists a
    target finds whole barriers only, whatever fails. *Several* targets are committed in one step, too, but get their
    folders one after the other: who reads two of them takes only the barriers that both have.

    An object store (``s3://…``) renames nothing in one step. There files have their names before they count, beside
    some that never will, and a barrier's *manifest* in ``url/_manifests`` names those of all its targets, with rows and
    bytes. The store puts it only if there is none of its number, and that is the commit. So readers follow the
    manifests, which ``readers="manifest"`` says that they do, and such a ``url`` is one sink's alone.

    :param url: a folder: an absolute path or ``file://`` URL on a disk that all workers see, ``hdfs://…``, or
        ``s3://bucket/…`` in a store that has conditional puts (the extra ``s3``). Where it may lie the connection's
        ``source_roots`` say.
    :param name: unique in the topology. Default: the last part of ``url``.
    :param format: ``parquet`` (zstd), ``csv`` (with a header; NULL is nothing, and an empty text ``""``) or ``jsonl``
        (one object a line, times in ISO 8601, decimals as texts, bytes in base64).
    :param conn_id: for HDFS, an Airflow connection of type ``webhdfs``: host and port of the name node's HTTP address
        (9870 by default), and as login the user. For S3, one of type ``aws``: as login and password a pair of keys
        (without: what the worker's own AWS configuration says), and as extras ``region_name``, ``endpoint_url`` and
        ``aws_session_token``; others are refused. A disk needs none.
    :param roll_bytes: a file that has reached this size is followed by another one.
    :param success_file: whether each folder of a barrier has an empty file ``_SUCCESS``.
    :param readers: how readers find what counts: by ``pattern``, on a disk or HDFS, or by ``manifest``, on S3.

    :param key: with ``rows="changes"``, the columns that tell rows apart: of all targets, or target -> columns.

    With ``rows="changes"``, files have a column ``_change`` before those of the table: ``insert``, ``update`` or
    ``delete``; of a row that was deleted they have the key alone. Who applies the folders in the order of their names
    has the table. With ``rows="appends"`` all folders together are the table, with ``rows="table"`` the newest one is.
    What a revision corrects of a barrier that was delivered comes as a folder of its own, ``b00000007.r00002``, which
    has what differs (``table``: all rows): the same holds with it.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> FileSink("/out/reporting").name
    'reporting'
    """

    kind: ClassVar[str] = "files"

    url: str
    format: Format = "parquet"
    name: str = ""
    conn_id: str | None = None
    roll_bytes: int = 256 * 1024**2
    success_file: bool = False
    readers: Readers = "pattern"
    key: Sequence[str] | Mapping[str, Sequence[str]] = ()

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.url.rstrip("/").rpartition("/")[2])
        if not is_topology_name(self.name):
            raise ConfigurationError(
                f"sink {self.name!a}: expected a name of letters, digits, '_' and '-' that begins with a letter, found "
                "another one; pass name=…"
            )
        if fault := self._fault():
            raise ConfigurationError(f"sink {self.name}: {fault}")

    def _fault(self) -> str | None:
        if fault := location_fault(self.url):
            return f"url: {fault}"
        if self.scheme not in ("file", "hdfs", "s3"):
            return (
                "url: expected a file system that renames folders in one step (file, hdfs), or an object store with "
                f"conditional puts (s3), found {self.scheme!r}; deliver to one of those, and copy from there"
            )
        if odd := sorted(_NOT_IN_NAMES.intersection(self.path) - {"/"}):
            return f"url: expected a path without {' '.join(odd)}, which Hadoop or a pattern takes for something else"
        if self.scheme == "hdfs" and self.conn_id is None:
            return (
                "expected conn_id with hdfs://, a connection that has the name node's HTTP address, found none; pass "
                "conn_id=… (an Airflow connection of type webhdfs)"
            )
        if self.format not in get_args(Format):
            return f"format: expected one of {', '.join(get_args(Format))}, found {self.format!r}"
        if self.readers not in get_args(Readers):
            return f"readers: expected one of {', '.join(get_args(Readers))}, found {self.readers!r}"
        if self.roll_bytes < 1:
            return f"roll_bytes: expected 1 or more, found {self.roll_bytes}"
        return self._object_store_fault() if self.scheme == "s3" else self._file_system_fault()

    def _object_store_fault(self) -> str | None:
        if self.readers != "manifest":
            return (
                "expected readers='manifest' with s3://, since an object store renames no folder in one step, and who "
                "lists it finds halves of barriers and files that count for nothing; pass it, and have readers take "
                f"the files that {self.url.rstrip('/')}/_manifests names"
            )
        if self.success_file:
            return "success_file: expected False with s3://, where a manifest says what is whole; leave it out"
        if self.roll_bytes > _LARGEST_OBJECT:
            return f"roll_bytes: expected {_LARGEST_OBJECT} or less with s3://, found {self.roll_bytes}"
        return None

    def _file_system_fault(self) -> str | None:
        if self.readers != "pattern":
            return (
                f"readers: expected 'pattern' with {self.scheme}://, where whoever lists a folder finds whole barriers "
                f"only, found {self.readers!r}; leave it out"
            )
        return None

    @property
    def conn_type(self) -> str:
        return "aws" if self.scheme == "s3" else "webhdfs"

    @property
    def location(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        scheme = self.url.partition("://")[0] if "://" in self.url else "file"
        return "s3" if scheme == "s3a" else scheme

    @property
    def host(self) -> str:
        """The name nodes, or the bucket."""
        return "" if self.scheme == "file" else self.url.partition("://")[2].partition("/")[0]

    @property
    def path(self) -> str:
        """The folder's path on its file system."""
        rest = self.url.partition("://")[2] or self.url
        return "/" + (rest if self.scheme == "file" else rest.partition("/")[2]).strip("/")

    @property
    def identity(self) -> str:
        """The same for each way to write the same URL."""
        return f"{self.scheme}://{self.host}{self.path}"

    def declare(self, tables: str | Mapping[str, str], rows: Rows, owner: str) -> SinkDeclaration:
        """``tables``: one table, whose folder has its name without the namespace, or table -> the folder's name."""
        targets = {tables: tables.rpartition(".")[2]} if isinstance(tables, str) else dict(tables)
        taken: dict[str, str] = {}
        for table, target in targets.items():
            if fault := _target_fault(target):
                raise ConfigurationError(
                    f"sink {self.name}: table {table}: expected the name of a folder, found {target!a}, which {fault}; "
                    f"name another one: {{{table!r}: …}}"
                )
            # on a disk that does not tell upper case from lower case they would be one folder
            if (other := taken.setdefault(target.casefold(), table)) != table:
                raise ConfigurationError(
                    f"sink {self.name}: expected a folder for each table, found {target!a} for both {other} and "
                    f"{table}; name another one"
                )
        options: dict[str, Any] = {
            "url": self.url,
            "format": self.format,
            "conn_id": self.conn_id,
            "roll_bytes": self.roll_bytes,
            "success_file": self.success_file,
            "readers": self.readers,
            "keys": self._keys(list(targets.values())) if rows is Rows.CHANGES else {},
        }
        return SinkDeclaration(self.name, owner, self.kind, targets, options, rows)

    def _keys(self, targets: Sequence[str]) -> dict[str, list[str]]:
        if isinstance(self.key, str) or not self.key:
            raise ConfigurationError(
                f"sink {self.name}: expected the columns that tell rows apart, key=[…], since changes are delivered, "
                f"found {self.key!r}; name them, or deliver rows='appends' or rows='table'"
            )
        keys = self.key if isinstance(self.key, Mapping) else dict.fromkeys(targets, self.key)
        if set(keys) != set(targets) or not all(keys.values()) or any(isinstance(key, str) for key in keys.values()):
            raise ConfigurationError(
                f"sink {self.name}: key: expected columns for each target ({', '.join(targets)}), found {self.key!r}; "
                "name them: {target: […]}"
            )
        return {target: list(key) for target, key in keys.items()}

    @classmethod
    def of(cls, declared: SinkDeclaration) -> Self:
        """The adapter again, from its declaration."""
        options = dict(declared.options)
        return cls(name=declared.name, key=options.pop("keys"), **options)

    def dataset(self, target: str, credentials: Credentials | None) -> tuple[str, str]:
        """See :meth:`~airflow_barrier.sinks.port.Sink.dataset`."""
        return datasets.folder(f"{self.identity}/{target}")

    def corrections_fault(self, declared: SinkDeclaration) -> str | None:
        if declared.rows is Rows.APPENDS:
            return "it gets what is appended (rows='appends'), and files that are there do not change"
        return None

    def connect(self, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
        if self.scheme == "s3":
            from airflow_barrier.sinks.files.manifests import ManifestChannel
            from airflow_barrier.sinks.files.object_store import ObjectStore

            return ManifestChannel(self, declared, partial(ObjectStore, self.host, self.path.strip("/"), credentials))
        from airflow_barrier.sinks.files.folders import FileChannel
        from airflow_barrier.sinks.files.stores import HdfsStore, LocalStore

        if self.scheme == "file":
            return FileChannel(self, declared, partial(LocalStore, self.path))
        if credentials is None or not credentials.host:
            raise ConfigurationError(
                f"sink {self.name}: expected the name node's HTTP address as host and port of connection "
                f"{self.conn_id}, found none; add it"
            )
        return FileChannel(self, declared, partial(HdfsStore, self.path, credentials))


def _target_fault(target: str) -> str | None:
    if not target or target[0] in "_.":
        return "readers by pattern pass over" if target else "is empty"
    if odd := sorted(_NOT_IN_NAMES.intersection(target)):
        return f"has {' '.join(odd)} in it"
    if not target.isprintable() or target != target.strip():
        return "has characters in it that cannot be seen"
    return "is too long" if len(target.encode()) > _LONGEST_NAME else None
