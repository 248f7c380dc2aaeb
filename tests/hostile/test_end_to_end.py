"""A whole barrier over tables, jobs, columns and files of hostile names, on real Iceberg, SQLite and PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec
from tests.hostile.names import WORKABLE
from tests.sources.landing import land
from tests.support.deployments import SHARED, settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.runs import run_of

TOPOLOGY = "select-" + "t" * 93
NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)
#: What a file system takes beyond the names that a table may have.
FILES = (
    *(name.replace("/", "|") for name in WORKABLE if len(name) < 250),
    " lead",
    "trail ",
    "new\nline",
    "tab\t",
    "esc\x1b[2J",
    "\u202egnp",
    "question?",
    "hash#",
    "{ds}",
    "x" * 240,
    "é" * 120,
)


def table_of(name: str) -> str:
    return f"{'n' * 150 if len(name) == 250 else name}.{name}"


@pytest.fixture(params=SHARED)
def deployment(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Deployment]:
    with settings_on(request.param, tmp_path, postgresql) as settings:
        deployment = Deployment.connect(replace(settings, warehouse=f"file://{tmp_path}/ware house 100%"))
        yield deployment
        deployment.close()


def create(deployment: Deployment, name: str) -> None:
    """A table of one column, all called ``name``."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    namespace, _, table = table_of(name).rpartition(".")
    deployment.tables.catalog.create_namespace_if_not_exists(namespace)
    deployment.tables.catalog.create_table((namespace, table), Schema(NestedField(1, name, LongType())))


def stage(deployment: Deployment, ready: Ready) -> ClosingRecord:
    """Append one row, as a driver that has read the spec from its file."""
    spec = EpochSpec.loads(deployment.tables.read_text(ready.spec_uri), ready.digest)
    assert spec == ready.spec
    staged = {}
    for table in spec.bases:
        iceberg = deployment.tables.load(table)
        rows = pa.table({iceberg.schema().fields[0].name: [spec.barrier_id]})
        iceberg.append(rows, snapshot_properties=spec.stamp.properties(), branch=spec.branch)
        head = iceberg.refresh().snapshot_by_name(spec.branch)
        assert head is not None
        staged[table] = StagedTable(table, head.snapshot_id)
    text = ClosingRecord(spec.attempt_id, staged).dumps(spec.nonce)
    return ClosingRecord.loads(text, spec.attempt_id, spec.nonce, "the record")


def run_barrier(deployment: Deployment, jobs: tuple[Job, ...], day: int) -> Barrier:
    opened = open_barrier(
        deployment,
        Fragment(TOPOLOGY, "dag", jobs),
        NEW_YEAR + timedelta(days=day),
        timestamp_from="test",
        run=run_of(f"dag/{day}"),
        actor="test",
    )
    assert isinstance(opened, Opened)
    for job in jobs:
        ready = begin(
            deployment, opened.barrier, job.name, Asking(request_key=job.name, generation="1/0", actor=job.name)
        )
        assert isinstance(ready, Ready), ready
        close(deployment, ready.attempt, record=stage(deployment, ready), actor=job.name)
    committed = commit_barrier(deployment, TOPOLOGY, opened.barrier.barrier_id, actor="test")
    assert isinstance(committed, Committed)
    return committed.barrier


def test_barriers_over_tables_that_are_called_so(deployment: Deployment, tmp_path: Path) -> None:
    """Each job reads the tables of the job before it, and writes several."""
    for name in WORKABLE:
        create(deployment, name)
    written = [tuple(map(table_of, WORKABLE[start::3])) for start in range(3)]
    names = WORKABLE[:3]
    jobs = tuple(
        Job(name, "dag", inlets, outlets)
        for name, inlets, outlets in zip(names, [(), *written[:-1]], written, strict=True)
    )
    for day in (1, 2):
        barrier = run_barrier(deployment, jobs, day)
        assert barrier.state is BarrierState.COMMIT
        for name in WORKABLE:
            table = deployment.tables.load(table_of(name))
            tagged = table.snapshot_by_name(barrier.tag)
            assert tagged == table.current_snapshot()
            assert tagged is not None
            assert sorted(table.scan(snapshot_id=tagged.snapshot_id).to_arrow()[name].to_pylist()) == list(
                range(1, day + 1)
            )
    assert {path.name for path in tmp_path.iterdir()} <= {"ware house 100%", "barrier.db", "meta.db", "catalog.db"} | {
        f"{name}.db-{kind}" for name in ("barrier", "meta", "catalog") for kind in ("wal", "shm")
    }


def test_each_file_is_in_one_cut_whatever_it_is_called(deployment: Deployment, tmp_path: Path) -> None:
    create(deployment, "load")
    landing = tmp_path / "in [x] 100%"
    source = Files(str(landing), name='x"; DROP TABLE barrier_cut_item --', format="json", schema="n BIGINT")
    jobs = (Job("load", "dag", outlets=(table_of("load"),), externals=(source.declare(),)),)
    for name in FILES:
        land(landing / f"{name}.json", '{"n": 1}\n')
    first = run_barrier(deployment, jobs, 1)
    cut = deployment.meta.cuts.of(TOPOLOGY, first.barrier_id)[source.name]
    assert set(cut.items) == {f"{name}.json" for name in FILES}
    assert deployment.meta.cuts.used_items(TOPOLOGY, source.name, cut.items) == set(cut.items)
    land(landing / "deep" / "../another.json".replace("..", "é" * 100), '{"n": 1}\n', NEW_YEAR + timedelta(days=1.5))
    second = run_barrier(deployment, jobs, 2)
    assert deployment.meta.cuts.of(TOPOLOGY, second.barrier_id)[source.name].items == (
        f"deep/{'é' * 100}/another.json",
    )


@pytest.mark.kills("paths-a-database-keeps")
@pytest.mark.parametrize("name", [b"\xff.json", b"/".join([b"x" * 200] * 6) + b".json"], ids=["bytes", "long"])
def test_a_file_that_no_database_can_keep_is_named_before_anything_is_written(
    deployment: Deployment, tmp_path: Path, name: bytes
) -> None:
    create(deployment, "load")
    landing = tmp_path / "in"
    path = os.fsencode(landing) + b"/" + name
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b'{"n": 1}\n')
    source = Files(str(landing), format="json", schema="n BIGINT")
    jobs = (Job("load", "dag", outlets=(table_of("load"),), externals=(source.declare(),)),)
    with pytest.raises(SourceDataError, match="rename the file") as caught:
        run_barrier(deployment, jobs, 30_000)
    assert str(caught.value).isprintable()
    assert deployment.meta.barriers.head(TOPOLOGY) is None
