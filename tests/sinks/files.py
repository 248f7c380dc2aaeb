"""Where files are delivered to in tests, on any file system, and what readers find there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fsspec
import pyarrow.parquet

from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.port import CHANGE, Channel, Credentials
from tests.crash import instrument
from tests.sinks.behaviour import AMOUNTS, KEY, PRICES, applied

#: What the sink is made of.
FILES = ("sinks/_file_channel.py", "sinks/_file_stores.py")
TARGETS = {PRICES: "prices", AMOUNTS: "amounts"}
_BARRIER = r"b\d{8}\.r\d+"
_LEDGER = r"_barrier/shopping\.out"
#: What is there when nobody delivers.
_IN_ORDER = re.compile(
    rf"_barrier|{_LEDGER}|{_LEDGER}/owner\.json"
    rf"|{_LEDGER}/delivered(/{_BARRIER}(/record\.json)?)?|{_LEDGER}/deliverer-\d{{6}}(/deliverer\.json)?"
    rf"|(prices|amounts)(/_delivered_by(/owner\.json)?|/{_BARRIER}(/part-\d{{5}}\.parquet)?)?"
)


@dataclass(frozen=True)
class LocalFiles:
    """Parquet in a local folder that is not there at first."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS, Rows.TABLE)

    path: str
    sink: FileSink = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", FileSink(self.path, name="out", key={PRICES: KEY, AMOUNTS: KEY}))

    def channel(self, rows: Rows) -> Channel:
        return self.sink.connect(self.sink.declare(TARGETS, rows, "dag"), self.credentials)

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        found = list(self._by_barrier(TARGETS[table]).values())
        if rows is Rows.TABLE:
            return found[-1]
        if rows is Rows.APPENDS:
            return [row for each in found for row in each]
        return applied([(row.pop(CHANGE), row) for row in each] for each in found)

    def left_over(self) -> list[str]:
        found = [path for path in self.all_files() if not _IN_ORDER.fullmatch(path)]
        deliverers = [path for path in self.all_files() if path.endswith("/deliverer.json")]
        return [*found, *sorted(deliverers)[:-1]]

    def watch(self, tell: Callable[[str], None]) -> None:
        instrument.install()
        instrument.WATCH.folder, instrument.WATCH.name = self.path, "shopping"

        def observe(when: str, call: str) -> None:
            # What a call leaves behind is what the next one finds; opening a file to read it changes nothing.
            if when != instrument.AFTER and not call.startswith("python/open"):
                tell(f"{when} {call}")

        instrument.WATCH.observer = observe

    # --- the file system --------------------------------------------------------------------------

    @property
    def credentials(self) -> Credentials | None:
        return None

    @property
    def file_system(self) -> Any:
        return fsspec.filesystem("file", skip_instance_cache=True)

    def all_files(self) -> list[str]:
        """All files and folders, as paths relative to the sink's folder; an empty one that is there has "." in it."""
        if not self.file_system.exists(self.path):
            return []
        found = self.file_system.find(self.path, withdirs=True)
        return sorted({path.removeprefix(self.path).strip("/") for path in found} - {""}) or ["."]

    def _by_barrier(self, target: str) -> dict[str, list[dict[str, Any]]]:
        """As a reader by pattern does it: no names that begin with '_'."""
        files, found = self.file_system, {}
        for path in sorted(self.all_files()):
            if re.fullmatch(rf"{target}/[^_/][^/]*", path):
                found[path] = [
                    row
                    for file in sorted(files.glob(f"{self.path}/{path}/[!_]*"))
                    for row in pyarrow.parquet.read_table(files.open(file)).to_pylist()
                ]
        return found
