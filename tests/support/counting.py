"""The little topologies of `tests/airflow/dags`: what a test does to them and sees of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.hooks.features import Feature
from airflow_barrier.protocol.errors import UnknownBarrierError, UnknownTopologyError
from airflow_barrier.protocol.levels import Level
from tests.support.airflow import AirflowUnderTest
from tests.support.spark import IN_AIRFLOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.coordinator.deployment import Deployment


def sum_of_barriers(count: int) -> int:
    """The total of the first ``count`` barriers: 1, 11, 111, ..."""
    return int("1" * count) if count else 0


@dataclass(frozen=True)
class Counting:
    """Topology and namespace bear the same name."""

    name: str
    airflow: AirflowUnderTest
    deployment: Deployment

    def create(self, *tables: str) -> None:
        """Empty tables for jobs without Spark: of version 2, since pyiceberg writes no later one."""
        from pyiceberg.schema import Schema
        from pyiceberg.types import IntegerType, LongType, NestedField

        catalog = self.deployment.tables.catalog
        catalog.create_namespace_if_not_exists(self.name)
        schema = Schema(NestedField(1, "k", IntegerType()), NestedField(2, "n", LongType()))
        for table in tables:
            catalog.create_table(f"{self.name}.{table}", schema, properties={"format-version": "2"})

    def create_by(self, spark: SparkSession, *tables: str) -> None:
        """Empty tables for jobs of Spark, changed or not."""
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {IN_AIRFLOW}.{self.name}")
        for table in tables:
            spark.sql(
                f"CREATE TABLE {IN_AIRFLOW}.{self.name}.{table} (k INT, n BIGINT) USING iceberg "
                "TBLPROPERTIES ('format-version' = '3', 'write.wap.enabled' = 'true')"
            )

    def write(self, table: str, worth: int) -> None:
        """Somebody else adds a row to what every reader sees."""
        import pyarrow as pa

        iceberg = self.deployment.tables.load(f"{self.name}.{table}")
        iceberg.append(pa.Table.from_pylist([{"k": 7, "n": worth}], iceberg.schema().as_arrow()))

    def task(self, task: str) -> str:
        """A task id inside the group."""
        return f"{self.name}.{task}"

    def tell(self, kind: str, job: str, barrier_id: int) -> Path:
        """Make a job ``hold`` or ``fail`` at a barrier, until the file that this returns is removed."""
        path = self.airflow.folder / f"{kind}-{self.name}-{job}-{barrier_id}"
        path.touch()
        return path

    # --- what is there ----------------------------------------------------------------------------

    def states(self) -> dict[int, str]:
        """The state of every barrier but the baseline."""
        found: dict[int, str] = {}
        with contextlib.suppress(UnknownBarrierError, UnknownTopologyError):  # the number after the last
            while True:
                number = len(found) + 1
                found[number] = self.deployment.meta.barriers.get(self.name, number).state.value
        return found

    def table_states(self, barrier_id: int) -> dict[str, str]:
        return {p.table: p.state.value for p in self.deployment.meta.barriers.progress(self.name, barrier_id)}

    def attempts(self, barrier_id: int, job: str) -> list[str]:
        """The states of a job's attempts, oldest first."""
        found = self.deployment.meta.attempts.of(self.name, barrier_id)
        return [attempt.state.value for attempt in found if attempt.job == job]

    def served(self, level: Level) -> int | None:
        """The barrier that readers at ``level`` get."""
        return self.deployment.meta.answers.resolve(self.name, level).barrier_id

    def snapshot(self, table: str, barrier_id: int) -> int | None:
        """Which snapshot of the table belongs to a barrier."""
        name = f"{self.name}.{table}"
        (row,) = [p for p in self.deployment.meta.barriers.progress(self.name, barrier_id) if p.table == name]
        return row.snapshot_id

    def total_at(self, table: str, barrier_id: int) -> int:
        """What the table's column `n` adds up to at a barrier."""
        return self._total(table, self.snapshot(table, barrier_id))

    def read_at(self, table: str, barrier_id: int, revision: int | None = None) -> int:
        """The same as a reader gets it who asks for a barrier, and maybe for a revision of it; 0: nothing is there."""
        found = self.deployment.meta.answers.resolve(self.name, Level.REPEATABLE_READ, at=barrier_id, revision=revision)
        one = found.tables.get(f"{self.name}.{table}")
        if one is None or one.snapshot_id is None:
            return 0
        return self._total(table, one.snapshot_id)

    def totals(self, table: str) -> list[int]:
        """What readers get at each barrier that is COMMIT."""
        barriers = self.deployment.meta.answers.readable(self.name)
        return [self.read_at(table, barrier.barrier_id) for barrier in barriers]

    def published(self, table: str) -> int:
        """The same of what every reader sees."""
        name = f"{self.name}.{table}"
        main = self.deployment.tables.mains([name])[name]
        return 0 if main is None else self._total(table, main)

    def _total(self, table: str, snapshot_id: int | None) -> int:
        rows = self.deployment.tables.load(f"{self.name}.{table}").scan(snapshot_id=snapshot_id).to_arrow()
        return int(sum(rows.column("n").to_pylist()))

    def event_keys(self, table: str) -> set[str]:
        """The barriers for which the table had an asset event, at least once."""
        uri = f"barrier://{self.name}/{self.name}.{table}"
        assets = self.airflow.get("/assets", uri_pattern=uri)["assets"]
        (asset,) = [one for one in assets if one["uri"] == uri]
        found = self.airflow.get("/assets/events", asset_id=asset["id"], limit=100)["asset_events"]
        if Feature.PARTITION_KEYS.is_there:
            keys = {event["partition_key"] for event in found}
            assert all(event["partition_key"] in event["extra"]["barriers"] for event in found)
        else:
            keys = {key for event in found for key in event["extra"]["barriers"]}
        for key, told in (each for event in found for each in event["extra"]["barriers"].items()):
            assert key in keys
            assert key == f"b{told['barrier']}.r{told['revision']}"
            standing = self.deployment.meta.barriers.get(self.name, told["barrier"])
            if standing.computed_in == told["revision"]:  # what a revision replaced had events of its own
                assert told["snapshot"] == self.snapshot(table, told["barrier"])
        return keys
