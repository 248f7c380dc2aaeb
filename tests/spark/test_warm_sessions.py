"""A session that serves several attempts, one after the other: none finds anything of an earlier one in it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_barrier.spark._traces import Traces
from airflow_barrier.spark.connect import ConnectRun, connect_session, end_session, stop_session
from airflow_barrier.spark.epoch import Epoch
from tests.support.epochs import Barriers, shopping_barriers
from tests.support.spark import SparkServer

AMOUNT = "shop.user_item_amount"
VIEWS = {"left", "also", "quoted view", "a_third"}


@pytest.fixture
def barriers(spark: Any, tmp_path: Any) -> Barriers:
    return shopping_barriers(spark, tmp_path)


@pytest.fixture
def session_id(spark_server: SparkServer) -> Iterator[str]:
    session_id = str(uuid.uuid4())
    yield session_id
    end_session(spark_server.url, session_id)


def _unchanged(epoch: Epoch) -> None:
    epoch.unchanged(AMOUNT)


def _leaves_views(epoch: Epoch) -> None:
    epoch.spark.range(1).createOrReplaceTempView("left")
    epoch.spark.sql("/* why */ CREATE OR REPLACE TEMPORARY VIEW also AS SELECT 1")
    epoch.spark.sql("CREATE TEMP VIEW `quoted view` AS SELECT 1")
    epoch.spark.sql("  -- a line\n create temporary view a_third AS SELECT 1")
    assert _views(epoch.spark) == VIEWS
    _unchanged(epoch)


def _views(session: Any) -> set[str]:
    return {view for view in VIEWS if session.catalog.tableExists(f"`{view}`")}


@pytest.mark.kills("session-with-traces-serves-no-other")
def test_an_attempt_finds_nothing_of_the_one_before_it_in_its_session(
    spark_server: SparkServer, barriers: Barriers, session_id: str
) -> None:
    attempts: list[int] = []

    def run(job: Callable[[Epoch], None]) -> bool:
        spec = barriers.begin(1, outlets=[AMOUNT])
        attempts.append(spec.attempt_id)
        work = ConnectRun(spark_server.url, spec, session_id=session_id)
        work.run(job)
        with work.handing_over() as idle:
            return idle

    def sees_nothing(epoch: Epoch) -> None:
        assert epoch.spark.session_id == session_id  # type: ignore[attr-defined]
        assert epoch.spark.conf.get("airflow_barrier.test", "unset") == "planted"  # so it is the very same one
        assert _views(epoch.spark) == set()
        assert epoch.spark.conf.get("spark.sql.iceberg.snapshot-property.barrier.attempt") == str(attempts[-1])
        epoch.spark.conf.set("spark.sql.ansi.enabled", "false")
        _unchanged(epoch)

    assert run(_leaves_views)
    beside = connect_session(spark_server.url, session_id)
    beside.conf.set("airflow_barrier.test", "planted")
    assert not run(sees_nothing)  # it has set conf, which is there for good


def test_a_statement_behind_a_comment_within_a_comment_is_not_taken_for_what_the_comment_says(
    spark_server: SparkServer, barriers: Barriers, session_id: str
) -> None:
    def sets(epoch: Epoch) -> None:
        epoch.spark.sql("/* /* why */ SELECT */ SET airflow_barrier.test = planted")
        assert epoch.spark.conf.get("airflow_barrier.test") == "planted"
        _unchanged(epoch)

    work = ConnectRun(spark_server.url, barriers.begin(1, outlets=[AMOUNT]), session_id=session_id)
    work.run(sets)
    with work.handing_over() as idle:
        assert not idle


def _fails(epoch: Epoch) -> None:
    _leaves_views(epoch)
    raise ZeroDivisionError


def test_an_attempt_whose_session_is_gone_takes_a_new_one(
    spark_server: SparkServer, barriers: Barriers, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed = ConnectRun(spark_server.url, barriers.begin(1, outlets=[AMOUNT]), session_id=session_id)
    with pytest.raises(ZeroDivisionError):
        failed.run(_fails)
    seen: list[set[str]] = []

    def looks(epoch: Epoch) -> None:
        assert epoch.spark.session_id != session_id  # type: ignore[attr-defined]
        seen.append(_views(epoch.spark))
        _unchanged(epoch)

    again = ConnectRun(spark_server.url, barriers.begin(1, outlets=[AMOUNT]), session_id=session_id)
    with caplog.at_level("INFO"):
        assert again.run(looks).staged[AMOUNT].unchanged
    assert seen == [set()]
    assert "its session is gone, and it takes a new one" in caplog.text
    with again.handing_over() as idle:
        assert not idle


def test_a_session_that_goes_when_the_job_is_done_takes_nothing_along(
    spark_server: SparkServer, barriers: Barriers, session_id: str
) -> None:
    spec = barriers.begin(1, outlets=[AMOUNT])
    refs = barriers.spark.table(f"lake.{AMOUNT}.refs").where(f"name = '{spec.branch}'").collect()

    def job(epoch: Epoch) -> None:
        _unchanged(epoch)
        end_session(spark_server.url, session_id)

    run = ConnectRun(spark_server.url, spec, lambda *_: {AMOUNT: refs[0].snapshot_id}, session_id)
    assert run.run(job).staged[AMOUNT].unchanged
    with run.handing_over() as idle:
        assert not idle


@pytest.mark.kills("anothers-session-is-not-ended")
def test_a_session_that_was_handed_over_is_not_ended_by_its_first_owner(
    spark_server: SparkServer, barriers: Barriers, session_id: str
) -> None:
    work = ConnectRun(spark_server.url, barriers.begin(1, outlets=[AMOUNT]), session_id=session_id)
    work.run(_unchanged)
    with work.handing_over() as idle:
        assert idle
    work.interrupt()  # a person kills the task, which has still to commit the barrier
    next_owner = connect_session(spark_server.url, session_id)
    assert next_owner.sql("SELECT 1").count() == 1
    # an attempt that cannot be closed leaves none
    last = ConnectRun(spark_server.url, barriers.begin(1, outlets=[AMOUNT]), session_id=session_id)
    last.run(_unchanged)
    with pytest.raises(ZeroDivisionError), last.handing_over():
        raise ZeroDivisionError
    with pytest.raises(Exception, match="INVALID_HANDLE"):
        next_owner.sql("SELECT 1").count()


_LASTING: dict[str, tuple[Callable[[Any], object], str]] = {
    "conf": (lambda spark: spark.conf.set("spark.sql.ansi.enabled", "false"), "it set spark.sql.ansi.enabled"),
    "no conf": (lambda spark: spark.conf.unset("spark.sql.ansi.enabled"), "it set spark.sql.ansi.enabled"),
    "SET": (lambda spark: spark.sql("SET spark.sql.ansi.enabled = false"), "begins with SET"),
    "USE": (lambda spark: spark.sql("USE lake"), "begins with USE"),
    "a variable": (lambda spark: spark.sql("DECLARE VARIABLE n INT DEFAULT 1"), "begins with DECLARE"),
    "a function": (lambda spark: spark.sql("CREATE TEMPORARY FUNCTION f AS 'no.such.Class'"), "with CREATE"),
    "a Python function": (lambda spark: spark.udf.register("f", lambda n: n), "the command register_function"),
    "a view for all": (lambda spark: spark.range(1).createOrReplaceGlobalTempView("g"), "create_dataframe_view"),
    "a database": (lambda spark: spark.catalog.setCurrentCatalog("lake"), "the catalog's set_current_catalog"),
    "a checkpoint": (lambda spark: spark.range(1).localCheckpoint(), "the command checkpoint_command"),
    "a file": (lambda spark: spark.addArtifact(__file__, file=True), "it sent files to the session"),
    "a clone": (lambda spark: spark.cloneSession(), "it cloned the session"),
}


@pytest.mark.parametrize("what", _LASTING)
def test_what_lasts_is_noticed(spark_server: SparkServer, what: str) -> None:
    leave, said = _LASTING[what]
    traces = Traces()
    session = connect_session(spark_server.url, traces=traces)
    try:
        session.sql("(SELECT 1) UNION ALL SELECT :n", args={"n": 2}).collect()
        session.sql("SELECT * FROM {rows}", rows=session.range(3)).collect()
        session.range(2).createOrReplaceTempView("rows")
        assert traces.lasting is None
        with suppress(PySparkException):
            leave(session)
        assert traces.lasting is not None
        assert said in traces.lasting
    finally:
        session.catalog.dropGlobalTempView("g")
        stop_session(session)
