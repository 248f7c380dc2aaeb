"""Spark's own statements and procedures as the foreign hand, on tables of both format versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import BarrierBlockedError, ForeignWriteError
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.states import BarrierState, Decision
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.changes import changes
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.runs import run_of
from tests.tables.lake import Lake, Rows

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Writer:
    """One table, which one job writes through Spark, barrier after barrier."""

    def __init__(self, lake: Lake, deployment: Deployment, properties: Mapping[str, str] | None = None) -> None:
        self.lake, self.deployment, self.spark = lake, deployment, lake.spark
        self.table = lake.create(properties)
        self.topology = f"of_{self.table.replace('.', '_')}"
        self.fragment = Fragment(self.topology, "dag", (Job("job", "dag", outlets=(self.table,)),))

    def stage(self, number: int, rows: Rows) -> Barrier:
        """Open barrier ``number`` and stage ``rows``; none: the epoch leaves the table unchanged."""
        opened = open_barrier(
            self.deployment,
            self.fragment,
            START + timedelta(days=number),
            timestamp_from="test",
            run=run_of(f"run {number}"),
            actor="test",
        )
        assert isinstance(opened, Opened)
        ready = begin(self.deployment, opened.barrier, "job", Asking(request_key="key", generation="g0", actor="test"))
        assert isinstance(ready, Ready)
        said = StagedTable(self.table, None, unchanged=True)
        if rows:
            self.lake.append(self.table, rows, ready.spec.branch, ready.spec.stamp)
            said = StagedTable(self.table, self.lake.refs(self.table)[ready.spec.branch])
        record = ClosingRecord(ready.attempt.attempt_id, {self.table: said})
        return close(self.deployment, ready.attempt, record=record, actor="test")

    def commit(self, barrier: Barrier) -> int | None:
        outcome = commit_barrier(self.deployment, self.topology, barrier.barrier_id, actor="test")
        assert isinstance(outcome, Committed)
        return self.lake.main(self.table)

    def committed(self, number: int, rows: Rows) -> int | None:
        return self.commit(self.stage(number, rows))

    def commit_blocked(self, barrier: Barrier, hand: Callable[[], None]) -> None:
        with self.after_the_decision(hand), pytest.raises(BarrierBlockedError, match=self.table):
            self.commit(barrier)
        assert self.deployment.meta.barriers.get(self.topology, barrier.barrier_id).state is BarrierState.BLOCKED

    def resolve(self, barrier: Barrier, decision: Decision) -> None:
        resolve_table(
            self.deployment, self.topology, barrier.barrier_id, self.table, decision, reason="asked", actor="alice"
        )

    @contextmanager
    def after_the_decision(self, hand: Callable[[], None]) -> Iterator[None]:
        meta = self.deployment.meta
        begin_commit = meta.publishing.begin

        def begun(*args: Any) -> Barrier:
            barrier = begin_commit(*args)
            hand()
            return barrier

        meta.publishing.begin = begun  # type: ignore[method-assign]
        try:
            yield
        finally:
            del meta.publishing.begin  # type: ignore[method-assign]

    def sql(self, statement: str) -> Callable[[], None]:
        """A hand: ``{t}`` is the table with its catalog, ``{n}`` without."""
        return lambda: self.spark.sql(
            statement.replace("{t}", f"lake.{self.table}").replace("{n}", self.table)
        ).collect()

    def row_ids(self) -> list[int]:
        """v3: the ids of the rows on `main`."""
        return [row[0] for row in self.spark.sql(f"SELECT _row_id FROM lake.{self.table}").collect()]


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def writer(request: pytest.FixtureRequest, spark: Any, spark_server: Any, tmp_path: Path) -> Iterator[Writer]:
    catalog = f"sqlite:///{spark_server.catalog_db}"
    deployment = Deployment.connect(Settings(f"sqlite:///{tmp_path}/meta.db", catalog, spark_server.warehouse.as_uri()))
    with IcebergTables.connect(catalog, spark_server.warehouse.as_uri()) as tables:
        lake = Lake(spark, tables, request.param, spark_server.url)
        yield Writer(lake, deployment, {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update")})
    deployment.close()


COMPACT = "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))"
EXPIRE = "CALL lake.system.expire_snapshots(table => '{n}', older_than => now(), retain_last => 1)"


def test_compaction_and_expiry_at_every_moment_are_absorbed(writer: Writer) -> None:
    for moment in (0, 1, 2):
        first = 10 * moment
        writer.committed(first + 1, [(first + 1, "a")])
        hands = [writer.sql(COMPACT), writer.sql(EXPIRE)]
        if moment == 0:
            [hand() for hand in hands]
        barrier = writer.stage(first + 2, [(first + 2, "a")])
        if moment == 1:
            [hand() for hand in hands]
        with writer.after_the_decision(lambda at=moment, hands=hands: [hand() for hand in hands] if at == 2 else None):
            writer.commit(barrier)
    assert writer.lake.rows(writer.table) == [(each, "a") for each in (1, 2, 11, 12, 21, 22)]


def test_a_rollback_blocks_and_ours_is_kept(writer: Writer) -> None:
    first = writer.committed(1, [(1, "a")])
    second = writer.committed(2, [(2, "b")])
    barrier = writer.stage(3, [(3, "c")])
    writer.commit_blocked(barrier, writer.sql(f"CALL lake.system.rollback_to_snapshot('{{n}}', {first})"))
    writer.resolve(barrier, Decision.KEEP_OURS)
    writer.commit(barrier)
    assert writer.lake.rows(writer.table) == [(1, "a"), (2, "b"), (3, "c")]
    assert writer.lake.rows(writer.table, set_aside_tag(writer.topology, 3, 0)) == [(1, "a")]
    assert writer.lake.main(writer.table) not in (first, second)
    writer.committed(4, [(4, "d")])
    assert len(writer.lake.rows(writer.table)) == 4


def test_an_unchanged_table_is_published_anew_and_every_engine_goes_on(writer: Writer) -> None:
    before = writer.committed(1, [(1, "a"), (2, "b")])
    barrier = writer.stage(2, [])
    writer.commit_blocked(barrier, writer.sql("INSERT INTO {t} VALUES (9, 'theirs')"))
    theirs = writer.lake.main(writer.table)
    writer.resolve(barrier, Decision.KEEP_OURS)
    anew = writer.commit(barrier)
    assert anew not in (before, theirs)
    assert writer.lake.rows(writer.table) == [(1, "a"), (2, "b")]
    assert writer.lake.rows(writer.table, set_aside_tag(writer.topology, 2, 0)) == [(1, "a"), (2, "b"), (9, "theirs")]
    assert writer.lake.tables.load(writer.table).scan().to_arrow().num_rows == 2
    # Spark goes on in every way it can
    writer.lake.append(writer.table, [(3, "c")])
    writer.sql("UPDATE {t} SET v = 'z' WHERE id = 1")()
    writer.sql("DELETE FROM {t} WHERE id = 2")()
    assert writer.lake.rows(writer.table) == [(1, "z"), (3, "c")]
    head = writer.lake.main(writer.table)
    found = changes(writer.spark, f"lake.{writer.table}", before, head).collect()
    assert sorted((row.id, row.v, row._weight) for row in found) == [
        (1, "a", -1),
        (1, "z", 1),
        (2, "b", -1),
        (3, "c", 1),
    ]
    if writer.lake.version == 3:
        ids = writer.row_ids()
        assert len(set(ids)) == 2
        assert None not in ids
        # the numbers of theirs are not given out again
        tag = set_aside_tag(writer.topology, 2, 0)
        aside = f"SELECT _row_id FROM lake.{writer.table} VERSION AS OF '{tag}' WHERE id = 9"
        assert writer.spark.sql(aside).collect()[0][0] not in ids
    writer.sql(COMPACT)()
    writer.sql("CALL lake.system.rewrite_manifests('{n}')")()
    writer.sql(EXPIRE)()
    assert writer.lake.rows(writer.table) == [(1, "z"), (3, "c")]
    assert writer.lake.rows(writer.table, barrier.tag) == [(1, "a"), (2, "b")]


def test_their_update_is_adopted_and_built_on(writer: Writer) -> None:
    writer.committed(1, [(1, "a"), (2, "b")])
    barrier = writer.stage(2, [(3, "c")])
    writer.commit_blocked(barrier, writer.sql("UPDATE {t} SET v = 'fixed' WHERE id = 1"))
    theirs = writer.lake.main(writer.table)
    writer.resolve(barrier, Decision.ADOPT_THEIRS)
    assert writer.commit(barrier) == theirs
    assert writer.lake.rows(writer.table) == writer.lake.rows(writer.table, barrier.tag) == [(1, "fixed"), (2, "b")]
    assert (3, "c") in writer.lake.rows(writer.table, set_aside_tag(writer.topology, 2, 0))
    writer.committed(3, [(4, "d")])
    assert writer.lake.rows(writer.table) == [(1, "fixed"), (2, "b"), (4, "d")]


def test_a_replaced_table_has_no_main_and_ours_is_kept(writer: Writer) -> None:
    writer.committed(1, [(1, "a")])
    barrier = writer.stage(2, [(2, "b")])
    version = f"'format-version' = '{writer.lake.version}'"
    replace = f"CREATE OR REPLACE TABLE {{t}} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ({version})"
    writer.commit_blocked(barrier, writer.sql(replace))
    assert writer.lake.main(writer.table) is None
    writer.resolve(barrier, Decision.KEEP_OURS)
    writer.commit(barrier)
    assert writer.lake.rows(writer.table) == [(1, "a"), (2, "b")]
    writer.committed(3, [(3, "c")])
    assert writer.lake.rows(writer.table) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("hand", ["INSERT INTO {t} VALUES (9, 'theirs')", "rollback"])
def test_the_way_back_that_the_refusal_names_works_in_spark(writer: Writer, hand: str) -> None:
    first = writer.committed(1, [(1, "a")])
    writer.committed(2, [(2, "b")])
    barrier = writer.stage(3, [(3, "c")])
    if hand == "rollback":
        hand = f"CALL lake.system.rollback_to_snapshot('{{n}}', {first})"
    writer.sql(hand)()
    with pytest.raises(ForeignWriteError) as refused:
        writer.commit(barrier)
    command = re.search(r"CALL <catalog>\.(system\.\w+\('[\w.]+', \d+\))", str(refused.value))
    assert command is not None, refused.value
    writer.sql(f"CALL lake.{command[1]}")()
    writer.commit(barrier)
    assert writer.lake.rows(writer.table) == [(1, "a"), (2, "b"), (3, "c")]
