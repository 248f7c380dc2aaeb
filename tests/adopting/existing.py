"""Two jobs that existed before us: `load` appends what landed, `mirror` copies what is new in the first table.

Run plainly they write to `main`, as they always have; run as jobs of a barrier they stage. Both by pyiceberg, as Spark
would. Every landed file holds one row, the number of its day as a power of ten: a sum shows what is missing or twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.starting import StartFrom, declared_start
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.spec import ClosingRecord
from tests.sources.landing import day, land_parquet
from tests.support.runs import run_of

NAME = "old"
EVENTS, MIRROR = "old.events", "old.mirror"
LOAD, COPY = "load_dag", "mirror_dag"


@dataclass
class Existing:
    deployment: Deployment
    folder: Path
    options: dict[str, Any] = field(default_factory=lambda: {"attribute_by": "mtime"})
    landed: Counter[int] = field(default_factory=Counter)

    @classmethod
    def made(cls, deployment: Deployment, folder: Path, **options: Any) -> Existing:
        catalog = deployment.tables.catalog
        catalog.create_namespace_if_not_exists("old")
        for table in (EVENTS, MIRROR):
            catalog.create_table(table, Schema(NestedField(1, "n", LongType())), properties={"format-version": "2"})
        folder.mkdir(parents=True)
        return cls(deployment, folder, options or {"attribute_by": "mtime"})

    # --- what happens anyway ----------------------------------------------------------------------

    def land(self, number: int) -> None:
        """The file of a day, an hour before the day ends; it holds 10 ** number."""
        path = self.folder / f"date={day(number - 1):%Y-%m-%d}" / f"{number}.parquet"
        land_parquet(path, {"n": pa.array([10**number])}, modified=day(number - 1 / 24))
        self.landed[10**number] += 1

    def load_plainly(self, *numbers: int) -> None:
        """The job as it was: straight onto `main`."""
        self._append(EVENTS, [10**number for number in numbers])

    def mirror_plainly(self) -> None:
        self._append(MIRROR, list((Counter(self.rows(EVENTS)) - Counter(self.rows(MIRROR))).elements()))

    def _append(self, table: str, rows: list[int]) -> None:
        iceberg = self.deployment.tables.load(table)
        iceberg.append(pa.Table.from_pylist([{"n": n} for n in rows], iceberg.schema().as_arrow()))

    # --- what is there ----------------------------------------------------------------------------

    def rows(self, table: str, snapshot: int | None = None) -> list[int]:
        """At a snapshot, or as every reader sees it."""
        at = self.deployment.tables.mains([table])[table] if snapshot is None else snapshot
        if at is None:
            return []
        found: list[int] = self.deployment.tables.load(table).scan(snapshot_id=at).to_arrow().column("n").to_pylist()
        return sorted(found)

    def main(self, table: str) -> int | None:
        return self.deployment.tables.mains([table])[table]

    def all_landed(self) -> list[int]:
        return sorted(self.landed.elements())

    # --- barriers ---------------------------------------------------------------------------------

    def load_job(self, start_from: StartFrom | None = None, owner: str = LOAD, name: str = "landing") -> Job:
        path_date = {"path_date": "date=%Y-%m-%d"} if self.options.get("attribute_by") == "path" else {}
        source = Files(str(self.folder), name=name, schema="n BIGINT", **self.options, **path_date)
        start = declared_start("load", start_from, [name])
        return Job("load", owner, outlets=(EVENTS,), externals=(source.declare(),), start_from=start)

    def mirror_job(self, start_from: StartFrom | None = None, owner: str = COPY) -> Job:
        start = declared_start("mirror", start_from, [EVENTS])
        return Job("mirror", owner, inlets=(EVENTS,), outlets=(MIRROR,), start_from=start)

    def open(self, number: float, *jobs: Job, owner: str = LOAD) -> Barrier:
        opened = self.try_to_open(number, *jobs, owner=owner)
        assert isinstance(opened, Opened), opened
        return opened.barrier

    def try_to_open(self, number: float, *jobs: Job, owner: str = LOAD) -> Opened | Later:
        """The barrier at the end of a day; ``jobs`` are the opening DAG's."""
        moment: datetime = day(number)
        own = tuple(replace(job, owner=owner) for job in jobs)
        fragment = Fragment(NAME, owner, own)
        return open_barrier(
            self.deployment,
            fragment,
            moment,
            timestamp_from="test",
            run=run_of(f"{owner}/{number}"),
            actor="test",
            now=moment,
        )

    def process(self, barrier: Barrier, job: str) -> Barrier:
        """One try, by a driver that appends what is new in its source."""
        ready = begin(self.deployment, barrier, job, Asking(request_key=job, generation="g0", actor="test"))
        assert isinstance(ready, Ready), ready
        (outlet,) = ready.spec.bases
        rows = self._epoch(ready)
        if not rows:
            staged = StagedTable(outlet, None, unchanged=True)
        else:
            iceberg = self.deployment.tables.load(outlet)
            arrow = pa.Table.from_pylist([{"n": n} for n in rows], iceberg.schema().as_arrow())
            iceberg.append(arrow, snapshot_properties=ready.spec.stamp.properties(), branch=ready.spec.branch)
            head = iceberg.refresh().snapshot_by_name(ready.spec.branch)
            assert head is not None
            staged = StagedTable(outlet, head.snapshot_id)
        record = ClosingRecord(ready.attempt.attempt_id, {outlet: staged})
        return close(self.deployment, ready.attempt, record=record, actor="test")

    def _epoch(self, ready: Ready) -> list[int]:
        spec = ready.spec
        if spec.job == "mirror":
            now, before = spec.inputs[EVENTS], spec.previous[EVENTS]
            delta = Counter(self.rows(EVENTS, now) if now else []) - Counter(
                self.rows(EVENTS, before) if before else []
            )
            return list(delta.elements())
        (name,) = spec.cuts
        source = Files.of(spec.externals[name])
        readings = source.readings(spec.cuts[name], spec.previous_timestamp, spec.timestamp)
        return [10 ** int(Path(file).stem) for reading in readings for file in reading.files]

    def commit(self, barrier: Barrier) -> None:
        committed = commit_barrier(self.deployment, NAME, barrier.barrier_id, actor="test")
        assert isinstance(committed, Committed), committed

    def run(self, number: float, *jobs: Job, owner: str = LOAD) -> Barrier:
        """A whole barrier, of all jobs that are registered."""
        barrier = self.open(number, *jobs, owner=owner)
        members = [job.name for job in self.deployment.meta.topologies.get(NAME, barrier.topology_version).jobs]
        for job in sorted(members):  # load, then mirror
            self.process(barrier, job)
        self.commit(barrier)
        return barrier
