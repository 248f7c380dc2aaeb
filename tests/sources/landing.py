"""What tests of sources share: files that land, and cuts that are made one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, NotReady, Source

DAY = timedelta(days=1)
#: All in a Spark session that could change what a record says, set to what changes it.
OTHER_MEANINGS = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
}
T0 = datetime(2017, 1, 1, tzinfo=timezone.utc)


def day(number: float) -> datetime:
    """Midnight ``number`` days after 2017-01-01, UTC."""
    return T0 + number * DAY


def land(path: Path, content: str | bytes, modified: datetime = T0) -> Path:
    """A file with that content and modification time, whole from the beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return touch(path, modified)


def land_parquet(path: Path, columns: dict[str, pa.Array | list[Any]], modified: datetime = T0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return touch(path, modified)


def touch(path: Path, modified: datetime) -> Path:
    os.utime(path, (modified.timestamp(), modified.timestamp()))
    return path


@dataclass
class Cutter:
    """Opens barriers over one source as the coordinator does: each cut starts where the newest that counts ended."""

    source: Source
    catalog: Any = None
    cuts: list[tuple[datetime, Cut]] = field(default_factory=list)

    def request(self, until: datetime, now: datetime | None = None) -> CutRequest:
        after, before = self.cuts[-1] if self.cuts else (None, None)
        return CutRequest(
            topology="shopping",
            barrier_id=len(self.cuts) + 1,
            after=after,
            until=until,
            start=before.end if before else None,
            used=self._used,
            now=now or datetime.now(timezone.utc),
            catalog=self.catalog,
            anew=before.anew if before else None,
        )

    def cut(self, until: datetime, now: datetime | None = None) -> Cut:
        cut = self.source.cut(self.request(until, now))
        assert isinstance(cut, Cut), cut
        self.cuts.append((until, cut))
        return cut

    def waits(self, until: datetime, now: datetime | None = None) -> NotReady:
        answer = self.source.cut(self.request(until, now))
        assert isinstance(answer, NotReady), answer
        return answer

    def abort(self) -> Cut:
        """The newest barrier does not count any more."""
        return self.cuts.pop()[1]

    def _used(self, items: Sequence[str]) -> set[str]:
        return {item for _, cut in self.cuts for item in cut.items} & set(items)
