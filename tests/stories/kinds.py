"""The shopping topology with other sources, and with other jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.spec import EpochSpec
from tests.crash.shopping import FIRST_DAY, Shop, purchases, rows_of
from tests.handover.test_closing import SPARK

Purchases = list[dict[str, int]]
#: The days of a story are in the future, see ``FIRST_DAY``.
_AHEAD = timedelta(days=36_500)


class ByEventTime(Shop):
    """A day's first purchase lands in a file of the day before, and its last one bears a time of the day before."""

    @property
    def purchases(self) -> Files:
        return Files(
            str(self.landing),
            name="purchases",
            schema="id BIGINT, amount BIGINT, price BIGINT, at TIMESTAMP",
            attribute_by="event_time",
            event_time="at",
            max_future_skew=_AHEAD,
        )

    def land(self, day: int, priced: bool) -> Purchases:
        """Of the day's own prices nothing is known when its first purchase lands: that one always has one."""
        early, tomorrow = (purchases(each, True)[0] for each in (day, day + 1))
        _, today, late = purchases(day, priced)
        if day == 1:
            self.deliver(1, [(early, 1)], "first.parquet")
        self.deliver(day, [(today, day), (tomorrow, day + 1)], "part.parquet")
        self.deliver(day, [(late, day - 1)], "late.parquet")
        return [early, today, late]

    def due(self, day: int, earlier: Purchases) -> Purchases:
        """Of all that has landed, what a barrier takes that is opened now and earlier ones have not; late ones last."""
        files = sorted(self.landing.glob("*/*.parquet"))
        timed = [row for file in files for row in pq.read_table(file).to_pylist()]
        landed = [(row, row.pop("at")) for row in timed]
        taken = [row for row, at in landed if at <= noon(day) and row not in earlier]
        return sorted(taken, key=lambda row: row["id"])

    def correct(self, day: int, rows: Purchases) -> None:
        """``rows`` are the day's, but for the last one as they were."""
        self.file(day, "late.parquet").unlink()
        self.deliver(day, [(rows[-1], day)], "again.parquet")

    def deliver(self, day: int, rows: list[tuple[dict[str, int], int]], name: str) -> None:
        """Rows, with the day that their times are in."""
        path = self.file(day, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        timed = [{**row, "at": noon(of)} for row, of in rows]
        schema = pa.schema([*((each, pa.int64()) for each in rows[0][0]), ("at", pa.timestamp("us", "UTC"))])
        pq.write_table(pa.Table.from_pylist(timed, schema), path)

    def _landed(self, deployment: Deployment, spec: EpochSpec) -> Purchases:
        found = []
        for reading in self.purchases.readings(spec.cuts["purchases"], spec.previous_timestamp, spec.timestamp):
            assert reading.until is not None
            for file in reading.files:
                for row in pq.read_table(self.landing / file).to_pylist():
                    at = row.pop("at")
                    if at <= reading.until and (reading.after is None or at > reading.after):
                        found.append(row)
        return found


class Unchanged(Shop):
    """The jobs that derive tables are sent to their branches by conf, and leave no record."""

    unchanged: ClassVar = ("amount", "price")
    properties: ClassVar = {"write.wap.enabled": "true"}

    def _drive(self, deployment: Deployment, spec: EpochSpec) -> None:
        if spec.job not in self.unchanged:
            super()._drive(deployment, spec)
            return
        (outlet,) = spec.bases
        iceberg = deployment.tables.load(outlet)
        schema, landed = iceberg.schema().as_arrow(), self._input(deployment, spec)
        rows = [dict(zip(schema.names, row, strict=True)) for row in rows_of(outlet.rpartition(".")[2], landed)]
        iceberg.append(pa.Table.from_pylist(rows, schema), snapshot_properties=self.summary(spec), branch=spec.branch)

    def summary(self, spec: EpochSpec) -> dict[str, str]:
        summary = super().summary(spec)
        return {**summary, **SPARK, "spark.app.id": f"app-{spec.attempt_id}"} if spec.job in self.unchanged else summary


KINDS = (Shop, ByEventTime, Unchanged)


def noon(day: int) -> datetime:
    return FIRST_DAY + timedelta(days=day - 1, hours=12)
