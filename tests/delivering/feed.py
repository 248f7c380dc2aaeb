"""A topology whose tables are delivered, what each barrier holds, and hands in the place of Spark.

Real Iceberg tables through pyiceberg. What a delivery takes of them is compared here row by row, in another way than
Spark does it: so this is also what the Spark side is judged by.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import parquet
from sqlalchemy import make_url

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.delivering import Receipt, deliver
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Rows, SinkDeclaration
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sinks.port import Sink
from airflow_barrier.spark.delivering import Extract
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.postgresql import USER, PostgreSQL
from tests.support.runs import run_of

MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
AMOUNT, PRICE = "shop.amount", "shop.price"
TABLES = (AMOUNT, PRICE)
KEY = ("userId", "itemId")
FRAGMENT = Fragment("shopping", "shopping_dag", (Job("sums", "shopping_dag", outlets=TABLES),))
#: (user, item) -> value
State = Mapping[tuple[int, int], int]


@dataclass
class Feed:
    """Both tables hold the same keys, and the same values, at each barrier: a reader who joins them sees whether what
    he reads is of one barrier.
    """

    deployment: Deployment
    settings: Settings
    states: dict[int, State] = field(default_factory=dict)

    def commit(self, state: State) -> Barrier:
        """A barrier at which both tables hold just that."""
        timestamp = MONDAY + timedelta(days=len(self.states))
        opened = open_barrier(
            self.deployment,
            FRAGMENT,
            timestamp,
            timestamp_from="test",
            run=run_of(f"shopping_dag/{timestamp:%F}"),
            actor="test",
        )
        assert isinstance(opened, Opened), opened
        ready = begin(
            self.deployment, opened.barrier, "sums", Asking(request_key="sums", generation="g0", actor="test")
        )
        assert isinstance(ready, Ready), ready
        close(self.deployment, ready.attempt, record=self.write(ready, state), actor="test")
        committed = commit_barrier(self.deployment, "shopping", opened.barrier.barrier_id, actor="test")
        assert isinstance(committed, Committed), committed
        self.states[committed.barrier.barrier_id] = dict(state)
        return committed.barrier

    def write(self, ready: Ready, state: State) -> ClosingRecord:
        staged = {}
        for table in TABLES:
            iceberg = self.deployment.tables.load(table)
            rows = [{"userId": user, "itemId": item, "value": value} for (user, item), value in state.items()]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                iceberg.overwrite(
                    pa.Table.from_pylist(rows, iceberg.schema().as_arrow()),
                    snapshot_properties=ready.spec.stamp.properties(),
                    branch=ready.spec.branch,
                )
            head = iceberg.refresh().snapshot_by_name(ready.spec.branch)
            assert head is not None
            staged[table] = StagedTable(table, head.snapshot_id)
        return ClosingRecord(ready.attempt.attempt_id, staged)

    def revise(self, states: Mapping[int, State]) -> Revision:
        """Compute these barriers, up to the newest, again: what they held was wrong."""
        return self.publish(self.compute(states))

    def compute(self, states: Mapping[int, State]) -> Revision:
        plan = plan_revision(self.deployment, Wanted("shopping", min(states)))
        revision = begin_revision(self.deployment, plan, reason="corrected", actor="test")
        for barrier_id, state in sorted(states.items()):
            barrier = self.deployment.meta.barriers.get("shopping", barrier_id, revision.revision)
            ready = begin(self.deployment, barrier, "sums", Asking(request_key="sums", generation="g1", actor="test"))
            assert isinstance(ready, Ready), ready
            close(self.deployment, ready.attempt, record=self.write(ready, state), actor="test")
        self.states.update(states)
        return revision

    def publish(self, revision: Revision) -> Revision:
        swapped = publish_revision(self.deployment, "shopping", revision.revision, actor="test")
        assert isinstance(swapped, Swapped), swapped
        return swapped.revision

    def deliver(
        self,
        sink: Sink,
        targets: str | Mapping[str, str],
        credentials: Credentials | None,
        through: Barrier | None = None,
        *,
        request_key: str = "deliverer",
        rows: Rows = Rows.CHANGES,
        collapse: bool = False,
    ) -> list[Receipt]:
        """As a delivery's task does, once its barrier is COMMIT."""
        meta = self.deployment.meta
        declaration: SinkDeclaration = sink.declare(targets, rows, "shopping_dag")
        record = meta.deliveries.register("shopping", declaration, "test")
        record = meta.deliveries.claim("shopping", record.name, request_key, record.deliverer)
        last = through or meta.answers.readable("shopping")[-1]
        return deliver(
            self.deployment,
            record,
            last,
            credentials,
            self.write_extracts,
            request_key=request_key,
            actor="test",
            collapse=collapse,
        )

    def write_extracts(self, extracts: Sequence[Extract], folder: str) -> list[list[str]]:
        """In the place of :func:`airflow_barrier.spark.delivering.write_extracts`."""
        return [self._write_extract(extract, folder) for extract in extracts]

    def _write_extract(self, extract: Extract, folder: str) -> list[str]:
        before, after = self._rows(extract.table, extract.start), self._rows(extract.table, extract.end)
        schema = self.deployment.tables.schema_at(extract.table, extract.end)
        if extract.whole:
            schema = pa.schema([schema.field(column) for column in extract.key]) if extract.only_key else schema
            rows = [{name: row[name] for name in schema.names} for row in after.values()]
        elif extract.rows is Rows.APPENDS:
            rows = [row for key, row in after.items() if key not in before]
        else:
            schema = schema.insert(0, pa.field(CHANGE, pa.string()))
            rows = [
                {CHANGE: UPDATE if key in before else INSERT, **row}
                for key, row in after.items()
                if before.get(key) != row
            ]
            rows += [{CHANGE: DELETE, **dict(zip(KEY, key, strict=True))} for key in before.keys() - after.keys()]
        uri = f"{folder}/{uuid.uuid4()}.parquet"
        buffer = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(rows, schema), buffer)
        self.deployment.tables._documents.write_bytes(uri, buffer.getvalue().to_pybytes())
        return [uri]

    def _rows(self, table: str, snapshot: int | None) -> dict[tuple[Any, ...], dict[str, Any]]:
        if snapshot is None:
            return {}
        found = self.deployment.tables.load(table).scan(snapshot_id=snapshot).to_arrow().to_pylist()
        return {tuple(row[column] for column in KEY): row for row in found}


def make_feed(settings: Settings) -> Feed:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, LongType, NestedField

    deployment = Deployment.connect(settings)
    deployment.tables.catalog.create_namespace_if_not_exists("shop")
    columns = [
        NestedField(1, "userId", LongType()),
        NestedField(2, "itemId", IntegerType()),
        NestedField(3, "value", LongType()),
    ]
    for table in TABLES:
        deployment.tables.catalog.create_table_if_not_exists(table, Schema(*columns))
    return Feed(deployment, settings)


@dataclass(frozen=True)
class Reporting:
    """A database that is delivered to: ``url`` as a superuser of tests made it, with both targets in it."""

    url: str

    def credentials(self, port: int | None = None) -> Credentials:
        """``port``: of a proxy before it."""
        at = make_url(self.url)
        return Credentials("reporting", at.host, port or at.port, at.username, str(at.password), at.database)

    def of(self, role: str) -> Reporting:
        """The same database by way of another role."""
        return Reporting(make_url(self.url).set(username=role).render_as_string(hide_password=False))

    def connect(self) -> psycopg.Connection[Any]:
        at = make_url(self.url)
        return psycopg.connect(
            host=at.host,
            port=at.port,
            user=at.username,
            password=str(at.password),
            dbname=at.database,
            autocommit=True,
        )

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, target: str) -> dict[tuple[int, int], int]:
        found = self.run(f'SELECT "userId", "itemId", value FROM {target}')
        assert len({row[:2] for row in found}) == len(found)
        return {(user, item): value for user, item, value in found}


def make_targets(reporting: Reporting, targets: Sequence[str] = ("amount", "price")) -> None:
    for target in targets:
        reporting.run(
            f'CREATE TABLE {target} ("userId" bigint, "itemId" integer, value bigint, PRIMARY KEY ("userId", "itemId"))'
        )


@contextmanager
def reporting_on(server: PostgreSQL) -> Iterator[Reporting]:
    with server.database(migrated=False) as url:
        server.run(f"GRANT CREATE ON SCHEMA public TO {USER}", database=url)
        reporting = Reporting(url)
        make_targets(reporting)
        yield reporting
