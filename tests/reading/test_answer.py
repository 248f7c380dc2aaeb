"""What a session and what is handed out have in common: tags, one table, and text for engines that stand elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import UnknownTableError, UnpinnableError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.reading.answer import Answer
from airflow_barrier.reading.duckdb_views import running
from airflow_barrier.reading.handing_out import hand_out
from airflow_barrier.reading.rewriting import Place
from airflow_barrier.reading.session import consistent_session
from tests.support.shop import AMOUNT, JOBS, PRICE, SHOPPING, Shop, make_shop

OUTSIDER = Hold("dashboard of ada", 3600)
LATE = "shop.late"
BELOW = ("read_committed", "read_uncommitted")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Barrier 1 is COMMIT, and the catalog is called `lake`."""
    shop = make_shop(Settings.embedded(str(tmp_path)))
    bring(shop, 1)
    yield shop
    shop.deployment.close()


def bring(shop: Shop, day: int) -> None:
    barrier = shop.open(day)
    shop.process_all(barrier, [{"amount": 25, "price": 250}])
    shop.commit(barrier)


@contextmanager
def given(shop: Shop) -> Iterator[Answer]:
    yield hand_out(shop.deployment, "shopping", OUTSIDER)


@contextmanager
def opened(shop: Shop) -> Iterator[Answer]:
    with consistent_session(shop.deployment, "shopping") as session:
        yield session


Of = Callable[[Shop], AbstractContextManager[Answer]]
ANSWERS = pytest.mark.parametrize("of", [opened, given])


@pytest.mark.kills("no-table-by-another-catalog")
def test_a_table_by_another_catalog_is_never_read_as_it_is_now(shop: Shop) -> None:
    answer = hand_out(shop.deployment, "shopping", OUTSIDER)
    for query, dialect in (
        (f"SELECT * FROM iceberg.{AMOUNT}", "trino"),
        (f"SELECT * FROM {PRICE}, Iceberg.{AMOUNT.upper()} a", "trino"),
        (f'SELECT * FROM iceberg.shop."{AMOUNT.partition(".")[2]}$changes"', "trino"),
        (f"SELECT * FROM iceberg.{AMOUNT}", "spark"),
        (f"SELECT * FROM iceberg.{AMOUNT}.branch_audit", "spark"),
        (f"FROM {PRICE} JOIN iceberg.{AMOUNT} ON true", "duckdb"),
    ):
        with pytest.raises(UnpinnableError, match=r"tables of topology shopping in catalog lake, found [iI]ceberg"):
            answer.sql(query, dialect)
    with pytest.raises(UnpinnableError, match=f"found iceberg.{PRICE}, called as one of them; if the engine"):
        answer.sql(f"SELECT * FROM {PRICE}", "spark", Place("iceberg"))
    assert answer.outside == ()


def test_an_engine_may_call_the_catalog_otherwise(shop: Shop) -> None:
    answer = hand_out(shop.deployment, "shopping", OUTSIDER)
    query = f"SELECT * FROM iceberg.{AMOUNT}, {PRICE} p"
    assert answer.sql(query, "trino", catalog="iceberg").sql == (
        f"SELECT * FROM iceberg.{AMOUNT} FOR VERSION AS OF {answer.snapshots[AMOUNT]}, "
        f"{PRICE} FOR VERSION AS OF {answer.snapshots[PRICE]} p"
    )
    assert answer.outside == ()


def test_what_is_read_as_it_is_now_is_said_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    answer = hand_out(shop.deployment, "shopping", OUTSIDER)
    query = f'SELECT * FROM old.{AMOUNT}, rates, {PRICE}, lake.shop."user_item_price$snapshots", f(1)'
    expected = ("lake.rates", f"old.{AMOUNT}", f"{PRICE}.snapshots")
    with caplog.at_level(logging.WARNING, "airflow_barrier"):
        # who says what the catalog is called has said as well that others are others
        assert answer.sql(query, "trino", catalog="lake").outside == ("f()", "lake.rates", f"old.{AMOUNT}")
        answer.sql("SELECT * FROM rates", "spark")
    assert [record.getMessage() for record in caplog.records] == [
        "read as they are now, and not as of a barrier, since they are not tables of topology shopping: "
        + ", ".join(expected)
    ]
    assert answer.outside == expected


def test_names_that_duckdb_does_not_know_are_not_called_read(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with (
        opened(shop) as session,
        session.duckdb() as connection,
        pytest.raises(UnpinnableError, match=r"found iceberg\.shop\.user_item_price, called as one of them"),
        running(session, connection, f"SELECT * FROM iceberg.{PRICE}, elsewhere"),
    ):
        pass
    assert session.outside == ()
    assert caplog.records == []


@ANSWERS
def test_duckdb_and_pyiceberg_read_by_it(shop: Shop, of: Of) -> None:
    with of(shop) as answer:
        bring(shop, 2)
        with answer.duckdb() as connection:
            assert connection.sql(f"SELECT amount FROM lake.{AMOUNT}").fetchall() == [(25,)]
        assert answer.table(PRICE).scan().to_arrow().to_pylist() == [{"price": 250}]


@ANSWERS
def test_a_table_that_joined_later_is_refused_naming_its_first_barrier(shop: Shop, of: Of) -> None:
    shop.deployment.tables.catalog.create_table(LATE, shop.deployment.tables.load(AMOUNT).schema())
    shop.open(2, Fragment("shopping", "shopping_dag", (*JOBS, Job("late", "shopping_dag", outlets=(LATE,)))))
    with of(shop) as answer:
        with pytest.raises(UnknownTableError, match=f"found {LATE}, which joined with barrier 2 of"):
            answer.table(LATE)
        with pytest.raises(UnknownTableError, match=r"found shop\.nothing; correct the name"):
            answer.table("shop.nothing")
    with (
        consistent_session(shop.deployment, "shopping", tables=[PRICE]) as session,
        pytest.raises(
            UnknownTableError, match=f"expected one of {PRICE}, which the answer has, found another; resolve"
        ),
    ):
        session.table(AMOUNT)


def test_what_is_published_has_its_tag_at_any_level(shop: Shop) -> None:
    first = "barrier_shopping_b1_r0"
    second = shop.open(2)
    shop.process(second, "load", [{"amount": 1, "price": 1}])
    tags = {level: hand_out(shop.deployment, "shopping", OUTSIDER, level=level.value).tags for level in Level}
    whole = dict.fromkeys((SHOPPING, AMOUNT, PRICE), first)
    assert tags[Level.REPEATABLE_READ] == tags[Level.READ_COMMITTED] == whole
    assert tags[Level.READ_UNCOMMITTED] == {AMOUNT: first, PRICE: first}
    for job in ("amount", "price"):
        shop.process(second, job, [{"amount": 1, "price": 1}])
    staged = hand_out(shop.deployment, "shopping", OUTSIDER, level="ReadCommitted")
    assert (staged.resolution.barrier_id, staged.tags) == (2, {})
    shop.commit(second)
    assert set(staged.tags.values()) == {"barrier_shopping_b2_r0"}
    tagged = shop.deployment.tables.load(PRICE).refs()["barrier_shopping_b2_r0"]
    assert tagged.snapshot_id == staged.snapshots[PRICE]


def test_what_was_staged_anew_or_aborted_since_has_no_tag(shop: Shop) -> None:
    second = shop.open(2)
    shop.process_all(second, [{"amount": 1, "price": 1}])
    staged = [hand_out(shop.deployment, "shopping", OUTSIDER, level=level) for level in BELOW]
    shop.process(second, "price", [{"amount": 2, "price": 2}], generation="cleared")
    shop.commit(second)
    for answer in staged:
        assert answer.tags == dict.fromkeys((SHOPPING, AMOUNT), "barrier_shopping_b2_r0")
    third = shop.open(3)
    shop.process_all(third, [{"amount": 3, "price": 3}])
    staged = [hand_out(shop.deployment, "shopping", OUTSIDER, level=level) for level in BELOW]
    abort_barrier(shop.deployment, "shopping", third.barrier_id, reason="wrong prices", actor="ada")
    bring(shop, 4)
    assert [answer.tags for answer in staged] == [{}, {}]
