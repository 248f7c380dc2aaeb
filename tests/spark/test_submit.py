"""Work handed to spark-submit by the Spark provider's own hook: real drivers, each a JVM of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import airflow_barrier
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.spark.corrections import CorrectBySql
from airflow_barrier.spark.guard import guard_jar
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, digest_of
from airflow_barrier.spark.submit import SQL_APPLICATION, submit_conf
from demo.local_spark import PACKAGES, catalog_conf
from tests.support.epochs import AMOUNT, SHOPPING, Barriers, recomputed_amount, shop_for_a_day, shopping_barriers
from tests.support.spark import BEFORE_4, SparkServer
from tests.support.waiting import patience, wait_for

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # each test starts a JVM, which on a busy machine takes its time

JOBS = Path(__file__).parent / "jobs"
SQL = """INSERT INTO {target:shop.user_item_amount}
         SELECT userId, itemId, sum(amount * _weight) FROM {changes:shop.shopping} GROUP BY userId, itemId"""


@pytest.fixture
def barriers(spark: SparkSession, tmp_path: Path) -> Barriers:
    return shopping_barriers(spark, tmp_path)


@pytest.fixture
def hook_for(
    spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., SparkSubmitHook]]:
    """The hook that SparkSubmitOperator uses, for a spec."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    # this process talks to Spark Connect; the driver that it starts does not
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)

    hooks: list[SparkSubmitHook] = []

    def make(spec: EpochSpec, digest: str | None = None) -> SparkSubmitHook:
        text = spec.dumps()
        (tmp_path / "epoch.spec.json").write_text(text)
        hook = SparkSubmitHook(
            conn_id="spark_here",
            packages=PACKAGES,
            driver_memory="700m",
            env_vars={
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path(airflow_barrier.__file__).parents[1]),
            },
            conf={
                "spark.jars": guard_jar(),
                **catalog_conf(spark_server.warehouse, spark_server.catalog_db),
                **submit_conf((tmp_path / "epoch.spec.json").as_uri(), digest or digest_of(text)),
                "spark.jars.ivy": str(spark_server.ivy),
                "spark.ui.enabled": "false",
                "spark.driver.extraJavaOptions": QUICK_JAVA,
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(tmp_path / "spark-warehouse"),
            },
        )
        hooks.append(hook)
        return hook

    yield make
    for hook in hooks:
        hook._submit_sp.stdout.close()  # the hook leaves it open


def closing_record(spec: EpochSpec) -> Path:
    return Path(spec.closing_uri.removeprefix("file://"))


def left_by(spec: EpochSpec) -> ClosingRecord:
    return ClosingRecord.loads(closing_record(spec).read_text(), spec.attempt_id, spec.nonce, spec.closing_uri)


@pytest.mark.drawn("drivers of their own")
def test_the_same_file_runs_by_spark_submit_and_leaves_a_closing_record(
    hook_for: Callable[..., SparkSubmitHook], barriers: Barriers
) -> None:
    shop_for_a_day(barriers, 1)
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    hook_for(spec).submit(str(JOBS / "amount.py"))
    record = left_by(spec)
    assert record.attempt_id == spec.attempt_id
    barriers.publish(spec, record)
    assert barriers.rows(AMOUNT) == recomputed_amount(barriers)


@pytest.mark.drawn("drivers of their own")
def test_an_sql_job_travels_in_the_spec(hook_for: Callable[..., SparkSubmitHook], barriers: Barriers) -> None:
    shop_for_a_day(barriers, 1)
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT], sql=SQL)
    hook_for(spec).submit(SQL_APPLICATION)
    record = left_by(spec)
    assert record.staged == {AMOUNT: StagedTable(AMOUNT, record.staged[AMOUNT].snapshot_id)}
    barriers.publish(spec, record)
    assert barriers.rows(AMOUNT) == recomputed_amount(barriers)


@pytest.mark.drawn("drivers of their own")
def test_a_correction_runs_instead_of_the_job_that_is_submitted(
    hook_for: Callable[..., SparkSubmitHook], barriers: Barriers
) -> None:
    shop_for_a_day(barriers, 1)
    barriers.at[1][SHOPPING] = barriers.main(SHOPPING)
    deletion = CorrectBySql(SHOPPING, "DELETE FROM {target:shop.shopping} WHERE userId = 1")
    spec = replace(barriers.begin(2, outlets=[SHOPPING]), corrections=(deletion,))
    hook_for(spec).submit(str(JOBS / "amount.py"))
    barriers.publish(spec, left_by(spec))
    assert [row[0] for row in barriers.rows(SHOPPING)] == [3, 4]


@pytest.mark.drawn("drivers of their own")
def test_a_spec_that_was_changed_on_the_way_is_refused(
    hook_for: Callable[..., SparkSubmitHook], barriers: Barriers
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    with pytest.raises(AirflowException, match="The epoch failed: SpecError: epoch spec: expected digest 0123"):
        hook_for(spec, digest="0123").submit(str(JOBS / "amount.py"))
    assert not closing_record(spec).exists()


@BEFORE_4
@pytest.mark.drawn("drivers of their own")
def test_a_spark_that_needs_the_guard_and_lacks_it_stages_nothing(
    hook_for: Callable[..., SparkSubmitHook], barriers: Barriers
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    hook = hook_for(spec)
    del hook._conf["spark.jars"]
    with pytest.raises(AirflowException, match=r"ConfigurationError: .* the guard among the jars of Spark 3\.5"):
        hook.submit(str(JOBS / "amount.py"))
    assert not closing_record(spec).exists()


@pytest.mark.drawn("drivers of their own")
def test_a_killed_driver_is_gone_and_its_half_does_not_count(
    hook_for: Callable[..., SparkSubmitHook], barriers: Barriers
) -> None:
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    half = barriers.spark.sql(f"SELECT * FROM lake.shop.user_item_amount.`branch_{spec.branch}`")
    hook = hook_for(spec)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(hook.submit, str(JOBS / "never_ends.py"))
        try:
            wait_for("the first of two writes", lambda: work.done() or half.count() == 1)
            driver = psutil.Process(hook._submit_sp.pid)
            processes = [driver, *driver.children(recursive=True)]
            assert any("java" in process.name() for process in processes)
            assert any("never_ends.py" in " ".join(process.cmdline()) for process in processes)
        finally:
            hook.on_kill()
        # The hook first: waiting for its process here would take the exit code away from it.
        assert work.exception(patience()) is not None
        _, alive = psutil.wait_procs(processes, timeout=patience())
        assert alive == []
    assert not closing_record(spec).exists()
    assert half.count() == 1
    assert barriers.main(AMOUNT) is None
