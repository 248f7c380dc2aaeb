"""An unchanged job in a real Spark: its driver outlives its attempt, a person clears it, history is computed again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import FencedAttemptError, ForeignWriteError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.spark.unchanged import unchanged_conf
from tests.support.drawing import OPERATIONS
from tests.support.shop import AMOUNT, PRICE, SHOPPING, Shop
from tests.support.spark import APART, session_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

pytestmark = [
    pytest.mark.drawn("unchanged jobs"),
    pytest.mark.touches(*OPERATIONS["job"], "coordinator/unchanged.py", "spark/unchanged.py"),
]
#: The job: of all that was bought so far, the most at once.
MOST = f"INSERT INTO {APART}.{AMOUNT} SELECT max(amount) FROM {APART}.{SHOPPING}"
ONE, SEVEN = [{"amount": 1, "price": 1}], [{"amount": 7, "price": 1}]


@pytest.fixture
def shop(shop: Shop, spark: SparkSession) -> Shop:
    """Its tables let themselves be sent to a branch."""
    for table in (SHOPPING, AMOUNT, PRICE):
        spark.sql(f"ALTER TABLE {APART}.{table} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    return shop


@contextmanager
def driver(server: SparkServer, ready: Ready) -> Iterator[SparkSession]:
    """The session that an operator makes of unchanged code: nothing but its conf leads to the attempt branch."""
    with session_on(server, unchanged_conf(ready.spec, ready.spec_uri, ready.digest)) as session:
        yield session


def asked(shop: Shop, barrier: Barrier, generation: str) -> Ready:
    key = f"shopping_dag/{barrier.barrier_id}/amount/{generation}"
    ready = begin(
        shop.deployment, barrier, "amount", Asking(request_key=key, generation=generation, actor="test", by_branch=True)
    )
    assert isinstance(ready, Ready), ready
    return ready


def process(shop: Shop, server: SparkServer, barrier: Barrier, generation: str) -> None:
    ready = asked(shop, barrier, generation)
    with driver(server, ready) as session:
        session.sql(MOST)
    close(shop.deployment, ready.attempt, actor="test", by_branch=True)


def rows(shop: Shop, table: str) -> list[int]:
    """What every reader sees."""
    main = shop.deployment.tables.mains([table])[table]
    return sorted(shop.deployment.tables.load(table).scan(snapshot_id=main).to_arrow().column("amount").to_pylist())


def test_a_driver_that_outlives_its_attempt_changes_nothing(shop: Shop, spark_server: SparkServer) -> None:
    barrier = shop.open(5)
    shop.process(barrier, "load", SEVEN)
    first = asked(shop, barrier, "g0")
    with driver(spark_server, first) as zombie:
        zombie.sql(MOST)
        process(shop, spark_server, barrier, "cleared")
        zombie.sql(MOST)
        with pytest.raises(FencedAttemptError):
            close(shop.deployment, first.attempt, actor="test", by_branch=True)
        shop.process(barrier, "price", ONE)
        shop.commit(barrier)
        assert rows(shop, AMOUNT) == [1, 1, 1, 1, 7]
        zombie.sql(MOST)  # the commit has dropped its branch, and Iceberg makes it anew
        assert rows(shop, AMOUNT) == [1, 1, 1, 1, 7]
    following = shop.open(6)
    shop.process(following, "load", ONE)
    process(shop, spark_server, following, "g0")
    shop.process(following, "price", ONE)
    shop.commit(following)
    assert rows(shop, AMOUNT) == [1, 1, 1, 1, 7, 7]


def test_a_person_clears_it_after_it_has_staged(shop: Shop, spark_server: SparkServer) -> None:
    barrier = shop.open(5)
    shop.process(barrier, "load", SEVEN)
    process(shop, spark_server, barrier, "g0")
    process(shop, spark_server, barrier, "cleared")
    shop.process(barrier, "load", ONE, "cleared")  # what it reads is staged anew, so it has to run again
    process(shop, spark_server, barrier, "cleared again")
    shop.process(barrier, "price", ONE)
    shop.commit(barrier)
    assert rows(shop, AMOUNT) == [1, 1, 1, 1, 1]


def test_history_is_computed_again_by_the_same_code(shop: Shop, spark_server: SparkServer) -> None:
    meta = shop.deployment.meta
    plan = plan_revision(shop.deployment, Wanted("shopping", 3, changed=["load"]))
    revision = begin_revision(shop.deployment, plan, reason="a purchase of day 3 was of 7", actor="test")
    for barrier in meta.revisions.barriers("shopping", revision.revision):
        shop.process(barrier, "load", SEVEN if barrier.barrier_id == 3 else ONE, "1/1")
        process(shop, spark_server, barrier, "1/1")
        shop.process(barrier, "price", ONE, "1/1")
        assert rows(shop, AMOUNT) == [1, 1, 1, 1], "nothing is seen of it before the swap"
    assert isinstance(publish_revision(shop.deployment, "shopping", revision.revision, actor="test"), Swapped)
    assert rows(shop, SHOPPING) == [1, 1, 1, 7]
    assert rows(shop, AMOUNT) == [1, 1, 7, 7]


def test_a_write_to_main_is_refused_and_what_came_past_the_guard_is_led_back(
    shop: Shop, spark_server: SparkServer, spark: SparkSession
) -> None:
    """Up to the COMMIT of the barrier after it, by what the errors say."""
    barrier = shop.open(5)
    shop.process(barrier, "load", SEVEN)
    ready = asked(shop, barrier, "g0")
    with driver(spark_server, ready) as session:
        with pytest.raises(PySparkException, match=f"branch of its attempt, {ready.spec.branch}, .*branch_main"):
            session.sql(MOST.replace(f"{APART}.{AMOUNT}", f"{APART}.{AMOUNT}.branch_main"))
        session.conf.unset("spark.wap.branch")
        with pytest.raises(PySparkException, match=f"branch of its attempt, {ready.spec.branch}, .*unset"):
            session.sql(MOST)
        assert rows(shop, AMOUNT) == [1, 1, 1, 1]
        session.conf.unset("spark.airflow_barrier.reads")  # as if the guard were not there
        session.sql(MOST)
    with pytest.raises(ForeignWriteError, match=f"past its branch {ready.spec.branch}") as told:
        close(shop.deployment, ready.attempt, actor="test", by_branch=True)
    with pytest.raises(ForeignWriteError, match=r"set main back: CALL <catalog>\.system\.rollback_to_snapshot"):
        asked(shop, barrier, "g1")
    (command,) = re.findall(r"CALL <catalog>\S+ \d+\)", str(told.value))
    spark.sql(command.replace("<catalog>", APART))
    process(shop, spark_server, barrier, "g2")
    shop.process(barrier, "price", ONE)
    shop.commit(barrier)
    following = shop.open(6)
    shop.process(following, "load", ONE)
    process(shop, spark_server, following, "g0")
    shop.process(following, "price", ONE)
    shop.commit(following)
    assert rows(shop, AMOUNT) == [1, 1, 1, 1, 7, 7]
