"""Every operation on databases and files that a process makes, seen at the lowest boundary Python has.

- Metastores: Hive's Thrift client, and botocore's.
- SQL: SQLAlchemy's dialect, through which every engine in the process (MetaService, catalog, pyiceberg's own)
  executes, commits and rolls back.
- Files of the warehouse: pyiceberg's FileIO, and our own for local ones. Files of sources: fsspec's local file system.
- Whatever Python itself opens, renames or deletes under the deployment's folder: `open`, and an audit hook.

An *operation* is: a file read, stat, listing, deletion or renaming; the creation, the writing (which is seen half
done as well) and the closing of a file; the BEGIN of a transaction that writes, each of its INSERT, UPDATE and DELETE
statements and the locking of rows, its COMMIT or ROLLBACK; and the reading of a database between two such. Several
SELECTs of one transaction are one operation, and so is a file read at once: dying between two reads leaves behind
what dying before the first does.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_NUMBER = re.compile(r"\d+")
_STATEMENT = re.compile(r'\s*(INSERT INTO|UPDATE|DELETE FROM)\s+"?(\w+)', re.IGNORECASE)
_READ_TABLE = re.compile(r'\bFROM\s+"?(\w+)', re.IGNORECASE)
#: Python's own audit events; making a folder is none, since an empty folder is nothing to anybody.
_PYTHON_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
#: Each transaction looks at it first.
_UNTOLD_TABLES = {"barrier_schema_version"}

#: Operations that may have to wait for another process's transaction.
LOCKS = ("sql/BEGIN", "sql/LOCK", "sql/INSERT", "sql/UPDATE", "sql/DELETE")
#: When the observer is called: ``during`` is a file half written.
BEFORE, DURING, AFTER = "before", "during", "after"
Observer = Callable[[str, str], None]


class Watch:
    """What the patched functions below tell; one for the process, silent until :func:`watching`."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self.folder = ""
        self.name = ""
        self.seen: Counter[str] = Counter()
        #: raw connections that are in a transaction, and the tables they wrote in it; None: it has only read so far
        self.transactions: dict[int, set[str] | None] = {}
        self._inside = threading.local()

    @property
    def holds_lock(self) -> bool:
        """Whether this process is inside a transaction that writes, so that another writer may have to wait."""
        return any(written is not None for written in self.transactions.values())

    @property
    def inside(self) -> bool:
        return getattr(self._inside, "depth", 0) > 0

    @contextmanager
    def operation(self, label: str | None) -> Iterator[None]:
        """Around one operation; what it does underneath (or a label of None) is no operation of its own."""
        tell = label if label is not None and self.observer is not None and not self.inside else None
        if tell is not None:
            tell = self._numbered(tell)
            self._tell(BEFORE, tell)
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1
        if tell is not None:
            self._tell(AFTER, tell)

    def announce(self, label: str) -> None:
        """Of an operation that can be seen coming, but not its end."""
        if self.observer is not None:
            self._tell(BEFORE, self._numbered(label))

    def half_done(self, label: str) -> None:
        """Inside a write: some of the bytes are in the file."""
        if self.observer is not None and self._inside.depth == 1:
            self._tell(DURING, label if self.seen[label] == 1 else f"{label} #{self.seen[label]}")

    def _numbered(self, label: str) -> str:
        self.seen[label] += 1
        return label if self.seen[label] == 1 else f"{label} #{self.seen[label]}"

    def _tell(self, when: str, label: str) -> None:
        if self.observer is not None:
            self.observer(when, label)

    def path(self, location: Any) -> str | None:
        """A file as a label: below the deployment's folder, without what differs between two runs; None: elsewhere."""
        text = os.fsdecode(location) if isinstance(location, (str, bytes)) else str(location)
        text = text.removeprefix("file://").removeprefix("file:")
        if not self.folder or not text.startswith(self.folder):
            return None
        short = text[len(self.folder) :].strip("/").replace(self.name, "shop")
        return _NUMBER.sub("#", _UUID.sub("*", short))

    # --- SQL --------------------------------------------------------------------------------------

    def statement(self, connection: int, sql: str) -> str | None:
        """The label of a statement, and what it does to the transaction of its connection."""
        begins = sql.strip().upper()
        if begins.startswith("BEGIN"):
            if begins == "BEGIN IMMEDIATE":
                return "sql/BEGIN IMMEDIATE"
            return None
        writes = _STATEMENT.match(sql)
        if writes is not None:
            return f"sql/{writes[1].split()[0].upper()} {writes[2]}"
        table = _READ_TABLE.search(sql)
        if table is not None and begins.endswith("FOR UPDATE"):
            return f"sql/LOCK {table[1]}"
        if connection in self.transactions:
            return None
        return f"sql/read {table[1]}" if table is not None and table[1] not in _UNTOLD_TABLES else None

    def executed(self, connection: int, sql: str) -> None:
        begins = sql.strip().upper()
        writes = _STATEMENT.match(sql)
        if begins == "BEGIN IMMEDIATE" or begins.endswith("FOR UPDATE"):
            self.transactions[connection] = set(self.transactions.get(connection) or ())
        elif writes is not None:
            self.transactions[connection] = {*(self.transactions.get(connection) or ()), writes[2]}
        elif (table := _READ_TABLE.search(sql)) and table[1] not in _UNTOLD_TABLES:
            self.transactions.setdefault(connection, None)

    def ending(self, connection: int, how: str) -> str | None:
        written = self.transactions.get(connection)
        if written is None:
            return None
        return f"sql/{how} {'+'.join(sorted(written))}".strip()


WATCH = Watch()


@contextmanager
def watching(observer: Observer, folder: str, name: str) -> Iterator[Watch]:
    """Tell ``observer`` of every operation of this process below ``folder``; ``name`` is shown as ``shop``."""
    WATCH.folder, WATCH.name, WATCH.seen = folder.rstrip("/"), name, Counter()
    WATCH.observer = observer
    try:
        yield WATCH
    finally:
        WATCH.observer = None


def install() -> None:
    """Patch the boundaries; once, in the warm parent, before it forks."""
    _install_sql()
    _install_metastores()
    _install_warehouse()
    _install_sources()
    _install_python()
    sys.addaudithook(_python_event)


# --- the boundaries -------------------------------------------------------------------------------


def _install_sql() -> None:
    from sqlalchemy.engine.default import DefaultDialect

    def executing(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(self: Any, cursor: Any, statement: str, *arguments: Any, **options: Any) -> Any:
            connection = id(cursor.connection)
            with WATCH.operation(WATCH.statement(connection, statement)):
                result = original(self, cursor, statement, *arguments, **options)
                WATCH.executed(connection, statement)
            return result

        return execute

    def ending(original: Callable[..., Any], how: str) -> Callable[..., Any]:
        def end(self: Any, connection: Any) -> Any:
            raw = id(getattr(connection, "dbapi_connection", connection))
            with WATCH.operation(WATCH.ending(raw, how)):
                result = original(self, connection)
                WATCH.transactions.pop(raw, None)
            return result

        return end

    dialect: Any = DefaultDialect
    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
        setattr(dialect, name, executing(getattr(dialect, name)))
    dialect.do_commit = ending(dialect.do_commit, "COMMIT")
    dialect.do_rollback = ending(dialect.do_rollback, "ROLLBACK")


def _install_metastores() -> None:
    """What changes a table, or its lock."""
    from botocore.client import BaseClient
    from hive_metastore.ThriftHiveMetastore import Client

    def watched(original: Callable[..., Any], label: Callable[..., str | None]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            told = label(*arguments, **named)
            with WATCH.operation(told and f"metastore/{told}".replace(WATCH.name, "shop")):
                try:
                    return original(self, *arguments, **named)
                except Exception as error:
                    raised = error  # Hive's are immutable, and cannot leave the block
            raise raised

        return call

    def locked(request: Any) -> str:
        return f"lock {request.component[0].dbname}.{request.component[0].tablename}"

    def altered(dbname: str, tbl_name: str, *_: Any, **__: Any) -> str:
        return f"alter {dbname}.{tbl_name}"

    def asked(name: str, request: Any) -> str | None:
        return f"update {request['DatabaseName']}.{request['TableInput']['Name']}" if name == "UpdateTable" else None

    labels: tuple[tuple[Any, str, Callable[..., str | None]], ...] = (
        (Client, "lock", locked),
        (Client, "alter_table_with_environment_context", altered),
        (Client, "unlock", lambda _: "unlock"),
        (BaseClient, "_make_api_call", asked),
    )
    for owner, method, label in labels:
        setattr(owner, method, watched(getattr(owner, method), label))


class _Stream:
    """An output stream whose first write is seen half done."""

    def __init__(self, stream: Any, path: str | None) -> None:
        self._stream = stream
        self._path = path
        self._written = False

    def write(self, data: Any) -> int:
        if self._written or self._path is None:
            return int(self._stream.write(data))
        self._written = True
        label = f"file/write {self._path}"
        view = memoryview(data)
        with WATCH.operation(label):
            half = int(self._stream.write(view[: len(view) // 2]) or 0)
            WATCH.half_done(label)
            return half + int(self._stream.write(view[len(view) // 2 :]) or 0)

    def close(self) -> None:
        if not self._stream.closed:
            with WATCH.operation(self._path and f"file/close {self._path}"):
                self._stream.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _install_warehouse() -> None:
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

    from airflow_barrier.tables._local_files import LocalFile, LocalFiles

    def create(self: Any, *arguments: Any, **options: Any) -> _Stream:
        path = WATCH.path(self.location)
        with WATCH.operation(path and f"file/create {path}"):
            stream = original_create(self, *arguments, **options)
        return _Stream(stream, path)

    def named(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            path = WATCH.path(self.location)
            with WATCH.operation(path and f"file/{kind} {path}"):
                return original(self, *arguments, **options)

        return call

    def deleting(original: Callable[..., Any]) -> Callable[..., Any]:
        def delete(self: Any, location: Any) -> None:
            path = WATCH.path(getattr(location, "location", location))
            with WATCH.operation(path and f"file/delete {path}"):
                original(self, location)

        return delete

    file: Any = PyArrowFile
    original_create, file.create = file.create, create
    for reader, method, kind in (
        (file, "open", "read"),
        (file, "exists", "exists"),
        (file, "__len__", "stat"),
        (LocalFile, "open", "read"),
        (LocalFile, "exists", "exists"),
    ):
        setattr(reader, method, named(getattr(reader, method), kind))
    for files in (PyArrowFileIO, LocalFiles):
        owner: Any = files
        owner.delete = deleting(owner.delete)


def _install_sources() -> None:
    from fsspec.implementations.local import LocalFileSystem

    def named(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(self: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            label = WATCH.path(path)
            with WATCH.operation(label and f"source/{kind} {label}"):
                return original(self, path, *arguments, **options)

        return call

    local: Any = LocalFileSystem
    for method, kind in (("find", "list"), ("info", "stat"), ("exists", "exists"), ("_open", "read")):
        setattr(local, method, named(getattr(local, method), kind))


def _install_python() -> None:
    original = builtins.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        path = WATCH.path(file) if WATCH.observer is not None and not isinstance(file, int) else None
        if path is None or not set(mode) & set("wax+"):
            return original(file, mode, *arguments, **options)
        with WATCH.operation(f"file/create {path}"):
            stream = original(file, mode, *arguments, **options)
        return _Stream(stream, path)

    for module in (builtins, io):  # pathlib takes the latter
        vars(module)["open"] = opened


def _python_event(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCH.observer is None or event not in _PYTHON_EVENTS or WATCH.inside:
        return
    places = [place for place in arguments[:2] if isinstance(place, (str, bytes, os.PathLike))]
    paths = [path for place in places[: 2 if event == "os.rename" else 1] if (path := WATCH.path(place)) is not None]
    if paths:
        WATCH.announce(f"python/{event} {' to '.join(paths)}")
