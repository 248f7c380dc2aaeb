"""Where files are delivered to in tests, on any file system, and what readers find there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, ClassVar
from urllib.parse import urlsplit

import fsspec
import pyarrow.parquet
import requests

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, Rows
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.port import Channel
from tests.crash import instrument
from tests.sinks.behaviour import AMOUNTS, KEY, PRICES, TABLES, applied
from tests.support.hdfs import Hdfs

#: What the sink is made of.
FILES = ("sinks/files/folders.py", "sinks/files/steps.py", "sinks/files/stores.py")
KEYS = {"prices": KEY, "amounts": KEY}
TARGETS = {PRICES: "prices", AMOUNTS: "amounts"}
_BARRIER = r"b\d{8}\.r\d+"
_LEDGER = r"_barrier/shopping\.out"
#: What is there when nobody delivers.
_IN_ORDER = re.compile(
    rf"_barrier|{_LEDGER}|{_LEDGER}/_delivered_by(/owner\.json)?"
    rf"|{_LEDGER}/delivered(/{_BARRIER}(/record\.json)?)?|{_LEDGER}/deliverer-\d{{6}}(/token)?"
    rf"|(prices|amounts)(/_delivered_by(/owner\.json)?|/{_BARRIER}(/part-\d{{5}}\.parquet)?)?"
)


@dataclass(frozen=True)
class Files:
    """Parquet in a folder that is not there at first. ``path``: on ``file_system``."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS, Rows.TABLE)

    path: str

    @property
    def sink(self) -> FileSink:
        raise NotImplementedError

    @property
    def credentials(self) -> Credentials | None:
        raise NotImplementedError

    @property
    def file_system(self) -> Any:
        """As fsspec has it."""
        raise NotImplementedError

    def channel(self, rows: Rows, tables: Sequence[str] = TABLES, key: str = "id") -> Channel:
        sink, targets = replace(self.sink, key=[key]), {table: TARGETS[table] for table in tables}
        return sink.connect(sink.declare(targets, rows, "dag"), self.credentials)

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        found = list(self._by_barrier(TARGETS[table]).values())
        if rows is Rows.TABLE:
            return found[-1]
        if rows is Rows.APPENDS:
            return [row for each in found for row in each]
        return applied([(row.pop(CHANGE), row) for row in each] for each in found)

    def left_over(self) -> list[str]:
        there = self.all_files()
        deliverers = [path for path in there if path.endswith("/token")]
        return [path for path in there if not _IN_ORDER.fullmatch(path)] + deliverers[:-1]

    def forge(self, entry: str, value: object) -> None:
        for path in (f"{self.path}/{each}" for each in self.all_files() if each.startswith("_barrier/")):
            if not path.endswith(".json"):
                continue
            said = json.loads(self.file_system.cat_file(path))
            name = "url" if entry == "place" and "url" in said else entry
            self.file_system.pipe_file(path, json.dumps({**said, name: value}).encode())

    # --- the file system --------------------------------------------------------------------------

    def all_files(self) -> list[str]:
        """All files and folders, as paths relative to the sink's folder; an empty one that is there has "." in it."""
        if not self.file_system.exists(self.path):
            return []
        found = self.file_system.find(self.path, withdirs=True)
        return sorted({path.removeprefix(self.path).strip("/") for path in found} - {""}) or ["."]

    def _by_barrier(self, target: str) -> dict[str, list[dict[str, Any]]]:
        """As a reader by pattern does it: no names that begin with '_'."""
        files, here = self.file_system, f"{self.path}/{target}"
        folders = sorted(files.ls(here, detail=False)) if files.exists(here) else []
        return {
            folder: [
                row
                for file in sorted(files.ls(folder, detail=False))
                if file.rpartition("/")[2][0] != "_"
                for row in pyarrow.parquet.read_table(BytesIO(files.cat_file(file))).to_pylist()
            ]
            for folder in folders
            if folder.rpartition("/")[2][0] != "_"
        }


class LocalFiles(Files):
    @property
    def sink(self) -> FileSink:
        return FileSink(self.path, name="out", key=KEYS)

    @property
    def credentials(self) -> None:
        return None

    @property
    def file_system(self) -> Any:
        return fsspec.filesystem("file", skip_instance_cache=True)

    def watch(self, tell: Callable[[str], None]) -> None:
        instrument.install()
        instrument.WATCH.folder, instrument.WATCH.name = self.path, "shopping"

        def observe(when: str, call: str) -> None:
            # What a call leaves behind is what the next one finds; opening a file to read it changes nothing.
            if when != instrument.AFTER and not call.startswith("python/open"):
                tell(f"{when} {call}")

        instrument.WATCH.observer = observe


@dataclass(frozen=True)
class FilesOnHdfs(Files):
    server: Hdfs

    @property
    def sink(self) -> FileSink:
        return FileSink(f"hdfs://nodes{self.path}", name="out", key=KEYS, conn_id="hdfs")

    @property
    def credentials(self) -> Credentials:
        return Credentials("hdfs", self.server.host, self.server.port, self.server.user)

    @property
    def file_system(self) -> Any:
        options = {"host": self.server.host, "port": self.server.port, "user": self.server.user}
        return fsspec.filesystem("webhdfs", skip_instance_cache=True, **options)

    def watch(self, tell: Callable[[str], None]) -> None:
        around_requests(before=tell, after=lambda _: None)


def around_requests(before: Callable[[str], None], after: Callable[[str], None]) -> None:
    """Call these at each HTTP request of this process that may change something."""
    original = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
        if method.upper() == "GET":
            return original(self, method, url, **options)
        path, operation = urlsplit(url).path, dict(options.get("params") or {}).get("op", "data")
        told = f"{operation} {re.sub(r'[0-9a-f-]{36}|[0-9]+', '*', path)}"
        before(told)
        answer = original(self, method, url, **options)
        after(told)
        return answer

    requests.Session.request = request  # type: ignore[method-assign]
