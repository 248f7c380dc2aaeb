"""The shopping topology as Airflow runs it: five tasks a barrier, each called as its operator calls the coordinator.

`load` reads landed files from the cut and writes two tables, so that a driver can die between two writes of one job;
`amount` and `price` derive a table each from what the epoch brought to `shopping`; `price` reports its table unchanged
in an epoch without prices. An Iceberg table outside the topology is read too, so that cuts pin refs on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close, find_barrier, give_up
from airflow_barrier.protocol.errors import AlreadyCommittedError, SpecError, StagedTableError
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec
from tests.support.runs import run_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: Before any test runs, so that a table outside the topology has its snapshot by then: in the future.
FIRST_DAY = datetime(2040, 1, 2, tzinfo=timezone.utc)
TASKS = ("open", "load", "amount", "price", "commit")
COLUMNS = {
    "shopping": ("id", "amount", "price"),
    "receipts": ("id",),
    "amounts": ("id", "amount"),
    "prices": ("id", "price"),
}

Row = tuple[int, ...]


def purchases(day: int, priced: bool) -> list[dict[str, int]]:
    """What lands on a day; no two rows are alike, so that one that is lost or there twice shows."""
    return [
        {"id": 10 * day + i, "amount": 1000 * day + i, "price": (7 * day + i) if priced else 0} for i in range(1, 4)
    ]


def rows_of(table: str, landed: Iterable[dict[str, int]]) -> list[Row]:
    """The rows of a table that purchases make."""
    return [tuple(row[column] for column in COLUMNS[table]) for row in landed if table != "prices" or row["price"] > 0]


@dataclass(frozen=True)
class Shop:
    """One topology in one deployment. ``name`` is that of the topology and of the tables' namespace."""

    #: jobs whose code knows nothing of barriers
    unchanged: ClassVar[tuple[str, ...]] = ()
    #: of tables, besides those that :meth:`create` gives to all
    properties: ClassVar[Mapping[str, str]] = {}

    folder: str
    settings: Settings
    name: str = "shop"

    @property
    def lake(self) -> Path:
        """The warehouse."""
        return Path(self.settings.warehouse)

    def tables(self) -> list[str]:
        return [self.table(short) for short in COLUMNS]

    def table(self, short: str) -> str:
        return f"{self.name}.{short}"

    @property
    def outside(self) -> str:
        return f"{self.name}_outside.rates"

    @property
    def landing(self) -> Path:
        return Path(self.folder) / "landing" / self.name

    @property
    def purchases(self) -> Files:
        return Files(
            str(self.landing),
            name="purchases",
            schema="id BIGINT, amount BIGINT, price BIGINT",
            attribute_by="path",
            path_date="date=%Y-%m-%d",
        )

    @property
    def fragment(self) -> Fragment:
        purchases = self.purchases.declare()
        rates = IcebergTable(self.outside, name="rates").declare()
        shopping, receipts, amounts, prices = self.tables()
        return Fragment(
            self.name,
            "shopping_dag",
            (
                Job("load", "shopping_dag", outlets=(shopping, receipts), externals=(purchases,)),
                Job("amount", "shopping_dag", inlets=(shopping,), outlets=(amounts,), externals=(rates,)),
                Job("price", "shopping_dag", inlets=(shopping,), outlets=(prices,)),
            ),
        )

    def create(self) -> None:
        """The tables; their old metadata is deleted after each commit, so that deleting is among the operations."""
        deployment = Deployment.connect(self.settings)
        deployment.meta.check()
        for table, columns in {**{self.table(t): c for t, c in COLUMNS.items()}, self.outside: ("rate",)}.items():
            namespace = table.partition(".")[0]
            # a Hive Metastore has a folder of its own for tables
            place = {"location": (self.lake / namespace).as_uri()} if self.settings.catalog_uri[:6] == "thrift" else {}
            deployment.tables.catalog.create_namespace_if_not_exists(namespace, place)
            deployment.tables.catalog.create_table(
                table,
                pa.schema([pa.field(column, pa.int64()) for column in columns]),
                properties={
                    "write.metadata.delete-after-commit.enabled": "true",
                    "write.metadata.previous-versions-max": "3",
                    **self.properties,
                },
            )
        deployment.tables.load(self.outside).append(pa.table({"rate": [1]}))
        deployment.close()

    def land(self, day: int, priced: bool) -> list[dict[str, int]]:
        """Before the run of ``day`` starts; what is the day's."""
        path = self.file(day)
        path.parent.mkdir(parents=True, exist_ok=True)
        landed = purchases(day, priced)
        pq.write_table(pa.Table.from_pylist(landed), path)
        return landed

    def file(self, day: int, name: str = "part.parquet") -> Path:
        return self.landing / f"date={FIRST_DAY + timedelta(days=day - 1):%Y-%m-%d}" / name

    # --- the tasks --------------------------------------------------------------------------------

    def run(self, task: str, day: int, *, generation: str = "1/1") -> None:
        """One try of a task of the run of ``day``: a process of its own in Airflow, which connects anew."""
        deployment = Deployment.connect(self.settings)
        self.run_on(deployment, task, day, generation)
        deployment.close()

    def run_on(self, deployment: Deployment, task: str, day: int, generation: str = "1/1") -> None:
        """The same where nothing is to be seen but what it does."""
        if task == "open":
            self._open(deployment, day)
        elif task == "commit":
            committed = commit_barrier(deployment, self.name, self._found(deployment, day).barrier_id, actor="commit")
            assert isinstance(committed, Committed), committed
        else:
            self._work(deployment, self._found(deployment, day), task, generation)

    def _open(self, deployment: Deployment, day: int) -> Opened:
        opened = open_barrier(
            deployment,
            self.fragment,
            FIRST_DAY + timedelta(days=day),
            timestamp_from="data interval end",
            run=run_of(_run_key(day)),
            actor="open",
        )
        assert isinstance(opened, Opened), opened
        return opened

    def _found(self, deployment: Deployment, day: int) -> Barrier:
        return find_barrier(deployment, self.name, run=run_of(_run_key(day)), timestamp=FIRST_DAY + timedelta(days=day))

    def _work(self, deployment: Deployment, barrier: Barrier, job: str, generation: str) -> None:
        request_key, by_branch = f"{barrier.run}/{job}/-1", job in self.unchanged
        try:
            step = begin(
                deployment,
                barrier,
                job,
                Asking(request_key=request_key, generation=generation, actor=job, by_branch=by_branch),
            )
        except AlreadyCommittedError:
            return  # what a task cleared too late does: nothing, and it says so
        if not isinstance(step, Ready):
            assert type(step).__name__ == "Adopted", step
            return
        try:
            self._drive(deployment, step.spec)
        except BaseException as error:
            give_up(deployment, step.attempt.attempt_id, reason=type(error).__name__, actor=job)
            raise
        close(deployment, step.attempt, actor=job, by_branch=by_branch)

    # --- the driver's part ------------------------------------------------------------------------

    def _drive(self, deployment: Deployment, spec: EpochSpec) -> None:
        """What a driver does for its epoch: looks at its branches, reads its input, writes its outlets, and closes."""
        outlets = {table: deployment.tables.load(table) for table in sorted(spec.bases)}
        for table, iceberg in outlets.items():
            _check_untouched(spec, table, iceberg)
        landed = self._input(deployment, spec)
        staged = {}
        for table, iceberg in outlets.items():
            rows = rows_of(table.rpartition(".")[2], landed)
            staged[table] = _written(iceberg, rows, spec, table)
        _close(deployment, spec, ClosingRecord(spec.attempt_id, staged))

    def summary(self, spec: EpochSpec) -> dict[str, str]:
        """Of the snapshots that the driver of this epoch writes."""
        return spec.stamp.properties()

    def _input(self, deployment: Deployment, spec: EpochSpec) -> list[dict[str, int]]:
        if spec.job == "load":
            return self._landed(deployment, spec)
        inlet = self.table("shopping")
        return _delta(deployment.tables.load(inlet), spec.previous[inlet], spec.inputs[inlet])

    def _landed(self, deployment: Deployment, spec: EpochSpec) -> list[dict[str, int]]:
        files = [str(self.landing / file["path"]) for file in spec.cuts["purchases"].end["files"]]
        return _read(deployment.tables.load(self.table("receipts")), files)


def _run_key(day: int) -> str:
    return f"shopping_dag/scheduled__{day}"


def _check_untouched(spec: EpochSpec, table: str, iceberg: Table) -> None:
    head = iceberg.metadata.snapshot_by_name(spec.branch)
    base = spec.bases[table]
    if head is None or (head.parent_snapshot_id is not None if base is None else head.snapshot_id != base):
        raise StagedTableError(
            f"expected branch {spec.branch} of {table} at its base {base}, found {head and head.snapshot_id}"
        )


def _written(iceberg: Table, rows: Sequence[Row], spec: EpochSpec, table: str) -> StagedTable:
    if not rows:
        return StagedTable(table, spec.bases[table], unchanged=True)
    schema = iceberg.schema().as_arrow()
    arrow = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    iceberg.append(arrow, snapshot_properties=spec.stamp.properties(), branch=spec.branch)
    head = iceberg.refresh().metadata.snapshot_by_name(spec.branch)
    if head is None:
        raise StagedTableError(f"expected branch {spec.branch} on {table}, found none: the attempt was superseded")
    return StagedTable(table, head.snapshot_id)


def _close(deployment: Deployment, spec: EpochSpec, record: ClosingRecord) -> None:
    """Whole or not at all, as the driver of spark-submit does it."""
    partial = f"{spec.closing_uri}.partial"
    deployment.tables.write_text(partial, record.dumps(spec.nonce))
    if not os.path.exists(spec.closing_uri):
        with suppress(FileNotFoundError):  # tidied away after the commit
            os.rename(partial, spec.closing_uri)
            return
    raise SpecError(f"expected to write the closing record {spec.closing_uri}: another driver ran the same attempt")


def _delta(iceberg: Table, previous: int | None, current: int | None) -> list[dict[str, int]]:
    """The rows that were appended after one snapshot and up to another."""
    files = []
    while current is not None and current != previous:
        snapshot = iceberg.snapshot_by_id(current)
        assert snapshot is not None, f"snapshot {current} is gone"
        for manifest in snapshot.manifests(iceberg.io):
            if manifest.added_snapshot_id == current:
                files += [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(iceberg.io)]
        current = snapshot.parent_snapshot_id
    return _read(iceberg, files)


def _read(iceberg: Table, files: Iterable[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in files:
        with iceberg.io.new_input(file).open() as stream:
            rows += pq.read_table(pa.BufferReader(stream.read())).to_pylist()
    return rows
