"""What a barrier costs us after many barriers were kept, Spark's work left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from benchmarks.lake import make_tables, stage
from benchmarks.report import Measured
from tests.support.runs import run_of

_LENGTHS = (10, 100, 1_000)
#: Barriers whose median stands for a length.
_AROUND = 9
_FIRST = datetime(2020, 1, 1, tzinfo=timezone.utc)
TOPOLOGY = "kept"
TABLES = ("kept.events", "kept.totals")
_JOB = Job("load", "kept_dag", outlets=TABLES)
_FRAGMENT = Fragment(TOPOLOGY, "kept_dag", (_JOB,))
#: the steps, in the order in which they are shown
_STEPS = ("open", "begin and prepare", "close", "commit")


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    lengths, around = ((2, 4), 1) if quick else (_LENGTHS, _AROUND)
    settings = Settings.embedded(str(folder))
    deployment = Deployment.connect(settings)
    try:
        Barrier.make_tables(deployment)
        barriers = [Barrier(deployment, number) for number in range(1, lengths[-1] + 1)]
        kept = {length: [one.seconds for one in barriers[length - around : length]] for length in lengths}
        sizes = [f"at the end {_size(deployment)}"]
        _expire(deployment)
        expired = [Barrier(deployment, lengths[-1] + number).seconds for number in range(1, around + 1)]
        sizes.append(f"after their expiry {_size(deployment)}")
    finally:
        deployment.close()
    columns = [*kept.values(), expired]
    rows = [[step, *(f"{1000 * median(one[step] for one in at):.1f}" for at in columns)] for step in _STEPS]
    totals = [1000 * median(sum(one.values()) for one in at) for at in columns]
    rows.append(["all of it", *(f"{total:.1f}" for total in totals)])
    return [
        Measured(
            "A barrier after many barriers",
            f"Every barrier up to {lengths[-1]:,} is really run, without Airflow and Spark: one job, two tables of "
            "format version 2, one SQLite file for MetaService and catalog; what Spark would commit to the branches is "
            f"an empty snapshot, which is not counted. Medians of the {around} barriers before each number. Default "
            f"policy (`tag_policy={settings.tag_policy}`). Nobody expires snapshots before the last column, for which "
            "pyiceberg's `expire_snapshots` is run, which keeps what a ref holds.",
            ["milliseconds", *(f"after {length:,}" for length in lengths), f"after {lengths[-1]:,}, expired"],
            rows,
            [
                f"against the first column: {', '.join(f'{total / totals[0]:.2f}' for total in totals[1:])}",
                *sizes,
            ],
        )
    ]


class Barrier:
    """A barrier of the topology, run as it is made; ``seconds`` by step."""

    def __init__(self, deployment: Deployment, number: int) -> None:
        self.seconds = dict.fromkeys(_STEPS, 0.0)
        with self._timed("open"):
            opened = open_barrier(
                deployment,
                _FRAGMENT,
                _FIRST + timedelta(hours=number),
                timestamp_from="benchmark",
                run=run_of(f"kept_dag/{number}"),
                actor="benchmark",
            )
        assert isinstance(opened, Opened), opened
        with self._timed("begin and prepare"):
            ready = begin(
                deployment, opened.barrier, _JOB.name, Asking(request_key="task", generation="g", actor="benchmark")
            )
        assert isinstance(ready, Ready), ready
        heads = stage(deployment.tables, dict.fromkeys(TABLES, ready.attempt.stamp))
        record = ClosingRecord(
            ready.attempt.attempt_id, {table: StagedTable(table, head) for table, head in heads.items()}
        )
        with self._timed("close"):
            close(deployment, ready.attempt, actor="benchmark", record=record)
        with self._timed("commit"):
            committed = commit_barrier(deployment, TOPOLOGY, opened.barrier.barrier_id, actor="benchmark")
        assert isinstance(committed, Committed), committed

    @staticmethod
    def make_tables(deployment: Deployment) -> None:
        make_tables(deployment.tables, TABLES)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - began


def _expire(deployment: Deployment) -> None:
    """What a table's owner does from time to time."""
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    for table in TABLES:
        deployment.tables.load(table).maintenance.expire_snapshots().older_than(tomorrow).commit()


def _size(deployment: Deployment) -> str:
    """What a table has kept."""
    table = TABLES[-1]
    location = deployment.tables.metadata_locations([table])[table]
    document = deployment.tables._documents.read(location)
    size = len(deployment.tables._documents.read_bytes(location)) / 1024
    return (
        f"a table keeps {len(document['snapshots']):,} snapshots and {len(document['refs']):,} refs; its metadata "
        f"document has {size:,.0f} KiB"
    )
