"""ConsistentQueryOperator on a real Spark, called as Airflow calls it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from pyspark.sql import SparkSession

from airflow_barrier.operators.query import ConsistentQueryOperator
from airflow_barrier.protocol.errors import ConfigurationError, LeaseLostError, StaleAnswerError
from airflow_barrier.triggers.barrier import BarrierTrigger
from tests.spark.test_connect import LONG, Monitor
from tests.support.lineage import Told, listen, told_by
from tests.support.shop import AMOUNT, PRICE, Shop
from tests.support.spark import APART
from tests.support.supervising import KeptXComs, supervised
from tests.support.waiting import patience, wait_for

SUM = f"SELECT sum(amount) AS n FROM {APART}.{AMOUNT}"
DAILY = f"{APART}.reports.daily"


class Task:
    """One try of a task that runs a query."""

    def __init__(self, sql: str, **arguments: Any) -> None:
        self.operator = ConsistentQueryOperator(task_id="report", topology="shopping", sql=sql, **arguments)
        self.said: dict[str, Any] = {}
        self.began = datetime.now(timezone.utc)

    def run(self) -> Any:
        return self.operator.execute(self.context)

    @property
    def context(self) -> Any:
        who = {"dag_id": "selling", "run_id": "today", "task_id": "report", "try_number": 1, "map_index": -1}
        return {"ti": SimpleNamespace(**who, start_date=self.began, xcom_push=self._push)}

    def _push(self, key: str, value: Any) -> None:
        self.said[key] = value


def run(sql: str, **arguments: Any) -> Any:
    return Task(sql, **arguments).run()


@pytest.fixture
def reports(spark: SparkSession) -> Iterator[SparkSession]:
    """A namespace beside the topology's."""
    spark.sql(f"CREATE NAMESPACE {APART}.reports")
    yield spark
    spark.sql(f"DROP TABLE IF EXISTS {DAILY} PURGE")
    spark.sql(f"DROP NAMESPACE {APART}.reports")


def rows(spark: SparkSession, table: str = DAILY) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(table).collect())


def test_rows_of_one_barrier_for_xcom(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    task, xcoms = Task(SUM, at="2"), KeptXComs()
    with supervised(xcoms):
        assert task.run() == [{"n": 2}]
    second = shop.deployment.meta.barriers.get("shopping", 2)
    assert task.said == {
        "barrier_id": 2,
        "barrier_timestamp": second.timestamp.isoformat(),
        "level": "repeatable_read",
    }
    assert xcoms.link == "deployment=barrier_default&topology=shopping&barrier=2"
    told = capsys.readouterr().out
    assert "held by lease 1 of selling/today/report#1 on barrier 2 of shopping" in told
    assert run(SUM, at=second.timestamp.isoformat(), tables=[AMOUNT]) == [{"n": 2}]
    assert run(SUM, level="ReadCommitted") == [{"n": 4}]
    # called as one of the topology's, and another table for who says that theirs is another catalog
    assert run(SUM, at=2, catalog="lake") == [{"n": 4}]
    values = (
        "CAST(8.33333 AS DECIMAL(38, 5)) AS price, DATE'2026-01-05' AS day, TIMESTAMP'2026-01-05 00:00:00Z' AS at, "
        "TIMESTAMP_NTZ'2026-01-05 00:00:00' AS here, named_struct('x', array(1, NULL)) AS st, map('k', 1.50BD) AS m, "
        "X'00FF' AS b, CAST('NaN' AS DOUBLE) AS nan, 9223372036854775807 AS big, NULL AS nothing, "
        "INTERVAL '1' HOUR AS hour"
    )
    (found,) = run(f"SELECT {values}, version FROM __META_TABLE_VERSION WHERE table_name = '{PRICE}'")
    assert found == {
        "price": "8.33333",
        "day": "2026-01-05",
        "at": "2026-01-05T00:00:00.000000+00:00",
        "here": "2026-01-05T00:00:00.000000",
        "st": {"x": [1, None]},
        "m": {"k": "1.50"},
        "b": "AP8=",
        "nan": "NaN",
        "big": 9223372036854775807,
        "nothing": None,
        "hour": 3600.0,
        "version": 4,
    }
    assert shop.deployment.meta.leases.of("shopping") == []


def test_a_result_that_is_too_large_is_refused_and_the_way_out_named(shop: Shop) -> None:
    every = f"SELECT amount FROM {APART}.{AMOUNT}"
    assert len(run(every, max_rows=4)) == 4
    with pytest.raises(
        AirflowFailException, match=r"at most 3 rows \(max_rows\), found more; .* \(into='catalog\.names"
    ):
        run(every, max_rows=3)
    with pytest.raises(AirflowFailException, match="different names, found 'amount' more than once"):
        run(f"SELECT a.amount, a.amount FROM {APART}.{AMOUNT} a")
    assert shop.deployment.meta.leases.of("shopping") == []


def test_a_result_goes_into_a_table_and_again_is_fine(
    shop: Shop, reports: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(SUM, into=DAILY, at=2)
    listen(monkeypatch)
    assert task.run() == DAILY
    assert rows(reports) == [(2,)]
    # OpenLineage is told what it has read, and no other table of the topology
    (amount,) = [row for row in shop.deployment.meta.barriers.progress("shopping", 2) if row.table == AMOUNT]
    read, made = told_by(task.operator)
    assert {name: told for (_, name), told in read.items()} == {AMOUNT: Told(2, 0, "shopping", str(amount.snapshot_id))}
    assert {name: told for (_, name), told in made.items()} == {"reports.daily": Told(2, 0, "shopping")}
    for _ in range(2):
        run(SUM, into=DAILY)
        assert rows(reports) == [(4,)]
    for catalog, into in ((None, APART), ("iceberg", "iceberg"), ("iceberg", APART)):
        with pytest.raises(
            AirflowFailException, match="which belongs to topology shopping and is written by its jobs only"
        ):
            run(SUM, catalog=catalog, into=f"{into}.{PRICE}")
    assert shop.main_totals()[PRICE] == 4


def test_a_run_adds_its_day_to_a_partitioned_report(shop: Shop, reports: SparkSession) -> None:
    reports.sql(f"CREATE TABLE {DAILY} (n BIGINT, day INT) USING iceberg PARTITIONED BY (day)")
    for day in (1, 2, 2, 3):
        run(f"SELECT {day} AS day, sum(amount) AS n FROM {APART}.{AMOUNT}", into=DAILY, replace="partitions", at=day)
    assert rows(reports) == [(1, 1), (2, 2), (3, 3)]


def by_day(day: int | str, **arguments: Any) -> Any:
    """A run that adds its day."""
    at = day if isinstance(day, int) else 2
    sql = f"SELECT {day} AS day, sum(amount) AS n FROM {APART}.{AMOUNT}"
    return run(sql, into=DAILY, replace="partitions", at=at, **arguments)


def test_the_first_run_makes_the_report_with_its_partitions(shop: Shop, reports: SparkSession) -> None:
    with pytest.raises(AirflowFailException, match=r"found no such table; .*partition_by=\['day'\]"):
        by_day(1)
    with pytest.raises(AirflowFailException, match="expected columns of the result in partition_by, found date"):
        by_day(1, partition_by=["date"])
    for day in (1, 2, 2, 3, "CAST(NULL AS INT)", "CAST(NULL AS INT)"):
        by_day(day, partition_by=["Day"])
    assert reports.table(DAILY).where("day IS NOT NULL").count() == 3
    assert [tuple(row) for row in reports.table(DAILY).where("day IS NULL").collect()] == [(None, 2)]
    with pytest.raises(AirflowFailException, match=r"partitioned by n, .*found day"):
        by_day(3, partition_by=["n"])


def test_a_report_without_partitions_keeps_its_other_days(shop: Shop, reports: SparkSession) -> None:
    reports.sql(f"CREATE TABLE {DAILY} (n BIGINT, day INT) USING iceberg")
    reports.sql(f"INSERT INTO {DAILY} VALUES (1, 1)")
    with pytest.raises(AirflowFailException, match="found that it has no partitions"):
        by_day(2)
    assert rows(reports) == [(1, 1)]


def test_a_day_stands_once_when_the_partitioning_was_changed(shop: Shop, reports: SparkSession) -> None:
    made = f"CREATE TABLE {DAILY} (n BIGINT, day INT) USING iceberg"
    reports.sql(f"{made} PARTITIONED BY (n) TBLPROPERTIES ('format-version' = '1')")
    by_day(2)
    reports.sql(f"ALTER TABLE {DAILY} ADD PARTITION FIELD day")
    reports.sql(f"ALTER TABLE {DAILY} DROP PARTITION FIELD n")
    rewrite = "rewrite_data_files\\(table => 'reports.daily', options => map\\('rewrite-all', 'true'\\)\\)"
    with pytest.raises(AirflowFailException, match=f"written before its partitioning was changed; .*{rewrite}"):
        by_day(2)
    reports.sql(
        f"CALL {APART}.system.rewrite_data_files(table => 'reports.daily', options => map('rewrite-all', 'true'))"
    )
    by_day(2)
    by_day(3)
    assert rows(reports) == [(2, 2), (3, 3)]
    reports.sql(f"ALTER TABLE {DAILY} DROP PARTITION FIELD day")
    with pytest.raises(AirflowFailException, match="found that it has no partitions"):
        by_day(3)


def test_what_no_retry_can_mend_ends_the_task(shop: Shop) -> None:
    shop.deployment.meta.expiry.expire("shopping", [1], "test")
    cases: list[tuple[str, dict[str, Any], str]] = [
        (f"DELETE FROM {APART}.{AMOUNT}", {}, "expected a query, found a statement that begins with 'DELETE'"),
        ("SELECT FROM WHERE", {}, r"SQL, line 1, column \d+: expected a query, found"),
        (f"SELECT * FROM {APART}.{AMOUNT} VERSION AS OF 1", {}, "one query reads one barrier"),
        (f"SELECT * FROM iceberg.{AMOUNT}", {}, f"in catalog {APART}, found iceberg.{AMOUNT}, called as one of them"),
        (SUM, {"at": "77"}, "77"),
        (SUM, {"at": 1}, "found one that expired on .* the oldest that can still be read is barrier 2"),
        (SUM, {"tables": ["shop.nothing"]}, r"expected tables that it has, .* found shop\.nothing"),
        (SUM, {"tables": PRICE}, f"expected a list of tables, found the text '{PRICE}'"),
        (SUM, {"tables": [PRICE]}, r"found shop\.user_item_amount, which is of the same topology; resolve with it"),
        (SUM, {"into": "daily"}, "expected a table's whole name"),
    ]
    for sql, arguments, message in cases:
        with pytest.raises(AirflowFailException, match=message):
            run(sql, **arguments)
    with pytest.raises(StaleAnswerError, match="expected an answer not older than 0:05:00"):  # which is retried
        run(SUM, not_older_than=timedelta(minutes=5))
    with pytest.raises(AirflowFailException, match=r"expected at most 1,048,576 bytes for XCom.*found"):
        run("SELECT repeat('x', 2000000) AS much")
    assert shop.deployment.meta.leases.of("shopping") == []


def test_a_newer_barrier_is_waited_for_in_the_triggerer(shop: Shop) -> None:
    task = Task(SUM, not_older_than=timedelta(minutes=5), wait=timedelta(hours=1))
    with pytest.raises(TaskDeferred) as deferred:
        task.run()
    trigger = deferred.value.trigger
    assert isinstance(trigger, BarrierTrigger)
    assert trigger.until == task.began + timedelta(hours=1)
    (wanted,) = trigger.conditions
    assert (wanted.target, wanted.or_newer) == ("COMMIT", True)
    assert shop.deployment.meta.leases.of("shopping") == [], "nothing is held meanwhile"
    task.began -= timedelta(hours=1)
    with pytest.raises(StaleAnswerError, match="expected an answer not older than 0:05:00"):
        task.operator.resume(task.context, {"status": "late", "message": ""})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "dirty"}, "consistency level 'dirty'"),
        ({"at": 1, "not_older_than": timedelta(1)}, "expected either at=... or not_older_than"),
        ({"wait": timedelta(1)}, "task report: expected wait=... with not_older_than"),
        ({"not_older_than": 300}, "task report: not_older_than: expected a timedelta, found 300"),
        ({"max_rows": 0}, "max_rows: expected 1 or more, found 0"),
        ({"replace": "rows"}, "replace: expected 'table' or 'partitions', found 'rows'"),
        ({"partition_by": ["day"]}, "expected partition_by=... with replace='partitions'"),
        ({"replace": "partitions", "partition_by": "day"}, "expected a list of columns in partition_by, found 'day'"),
        ({"replace": "partitions", "partition_by": []}, r"expected a list of columns in partition_by, found \[\]"),
    ],
)
def test_what_cannot_be_is_said_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Task(SUM, **arguments)
    assert Task(SUM, level="{{ params.level }}").operator.level == "{{ params.level }}"


def test_a_lease_that_is_lost_while_reading_fails_the_try_and_the_next_resolves_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(SUM)
    monkeypatch.setattr(task, "_push", lambda **_: shop.deployment.meta.leases.release(1))
    with pytest.raises(LeaseLostError, match="found that it has ended"):
        task.run()
    assert run(SUM) == [{"n": 4}]


def test_killing_the_task_stops_the_work_and_holds_nothing(shop: Shop, spark_ui: str) -> None:
    monitor = Monitor(int(spark_ui.rpartition(":")[2]))
    task = Task(LONG)

    def active_tasks() -> int:
        return monitor.active_tasks(task.operator._spark[1]) if task.operator._spark else 0

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(task.run)
        try:
            wait_for("the long query to run", active_tasks)
        finally:
            task.operator.on_kill()
        assert work.exception(patience()) is not None
    wait_for("no task to be running", lambda: active_tasks() == 0)
    assert shop.deployment.meta.leases.of("shopping") == []
