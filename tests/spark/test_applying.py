"""Changes are put on a table by their key: it has the rows that its origin has."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_barrier.protocol.errors import ConfigurationError, UndeclaredTableError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource, Job
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.sql import SqlJob
from airflow_barrier.spark.statement import check_for
from airflow_barrier.spark.testing import epoch_of
from tests.support.epochs import Barriers

pytestmark = pytest.mark.touches("spark/applying.py")

ORDERS = "shop.orders"
COLUMNS = "id INT, part STRING, a INT, b STRING"
CHANGED = f"{COLUMNS}, _change_type STRING, _weight INT, _seq BIGINT, _unsent ARRAY<STRING>"


def changes_of(session: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return session.createDataFrame(list(rows), CHANGED)


def insert(number: int, *row: Any, unsent: tuple[str, ...] = ()) -> tuple[Any, ...]:
    return (*row, "insert", 1, number, list(unsent))


def delete(number: int, *key: Any) -> tuple[Any, ...]:
    return (*key, None, None, "delete", -1, number, ["a", "b"])


def truncate(number: int) -> tuple[Any, ...]:
    return (None, None, None, None, "truncate", 0, number, [])


def applied(
    session: SparkSession, before: list[Any], *changes: tuple[Any, ...], key: Any = ("id", "part")
) -> list[Any]:
    """The rows of the table after the changes."""
    epoch = epoch_of(
        session,
        sources={"db.orders": changes_of(session, *changes)},
        outlets={ORDERS: session.createDataFrame(before, COLUMNS)},
    )
    epoch.apply(epoch.source("db", "orders"), ORDERS, key=key)
    return sorted((tuple(row) for row in epoch.read(ORDERS).collect()), key=repr)


def test_random_changes(session: SparkSession) -> None:
    """Of keys that have NULLs, too; each change by its key alone, an update of a key as two."""
    draw = random.Random(3)
    keys = [(number, part) for number in (1, 2, None) for part in ("x", None)]
    rows: dict[Any, tuple[Any, ...]] = {key: (*key, 0, "old") for key in keys[:3]}
    before, changes = list(rows.values()), []
    for number in range(1, 200):
        key, value = draw.choice(keys), draw.randint(1, 99)
        if number == 150:
            rows.clear()
            changes.append(truncate(number))
        elif key not in rows:
            rows[key] = (*key, value, f"new {number}")
            changes.append(insert(number, *rows[key]))
        elif draw.random() < 0.3:
            del rows[key]
            changes.append(delete(number, *key))
        else:
            rows[key] = (*key, value, rows[key][3])  # b is large, and stays as it is
            changes.append(insert(number, *key, value, None, unsent=("b",)))
    draw.shuffle(changes)
    assert applied(session, before, *changes) == sorted(rows.values(), key=repr)


def test_what_has_come_and_gone_leaves_the_table_as_it_was(
    session: SparkSession, spark: SparkSession, tmp_path: Any
) -> None:
    """Also with a job that writes nothing else, which has to write something, or to say that nothing changed."""
    barriers = Barriers(spark, tmp_path)
    barriers.create(ORDERS, COLUMNS)
    barriers.write(1, ORDERS, "INSERT INTO {t} VALUES (1, 'x', 1, 'one')")
    spec = barriers.begin(2, outlets=[ORDERS])

    def nothing(epoch: Epoch) -> None:
        epoch.apply(changes_of(session, insert(1, 2, "x", 1, "two"), delete(2, 2, "x")), ORDERS, key=["id", "part"])

    record = run_epoch(session, spec, nothing)
    barriers.publish(spec, record)
    assert barriers.rows(ORDERS) == [(1, "x", 1, "one")]
    third = barriers.begin(3, outlets=[ORDERS])
    record = run_epoch(session, third, lambda epoch: epoch.apply(changes_of(session), ORDERS, key=["id", "part"]))
    assert record.staged[ORDERS].unchanged


def test_a_difference_of_two_states_needs_no_numbers(session: SparkSession) -> None:
    """As ``epoch.changes`` has it: an update is there twice, in no order."""
    before = [(1, "x", 1, "one"), (2, "x", 2, "two")]
    frame = session.createDataFrame(
        [(1, 1, "delete"), (1, 5, "insert"), (2, 2, "delete"), (3, 3, "insert")], "id INT, a INT, _change_type STRING"
    )
    epoch = epoch_of(session, changes={"shop.other": frame}, outlets={ORDERS: session.createDataFrame(before, COLUMNS)})
    epoch.apply(epoch.changes("shop.other"), ORDERS, key="id")
    rows = [(1, "x", 5, "one"), (3, None, 3, None)]
    assert sorted(tuple(row) for row in epoch.read(ORDERS).collect()) == rows
    twice = session.createDataFrame([(4, 4, 1), (5, 4, 1)], "id INT, a INT, _weight INT")
    with pytest.raises(Exception, match=r"expected one row a key \(a\), found several"):
        epoch.apply(twice, ORDERS, key="a")


def test_a_key_moves(session: SparkSession) -> None:
    before = [(1, "x", 1, "one"), (2, "x", 2, "two")]
    swapped = [
        *(delete(1, 1, "x"), insert(2, 0, "x", 1, "one")),
        *(delete(3, 2, "x"), insert(4, 1, "x", 2, "two")),
        *(delete(5, 0, "x"), insert(6, 2, "x", 1, "one")),
    ]
    assert applied(session, before, *swapped) == [(1, "x", 2, "two"), (2, "x", 1, "one")]


@pytest.mark.kills("applied-by-a-key-that-was-sent", "applied-to-all-columns", "applied-with-what-tells-of-them")
def test_what_cannot_be_applied(session: SparkSession) -> None:
    before = [(1, "x", 1, "one")]
    with pytest.raises(ConfigurationError, match=r"its key \(a\), found 1 without.*REPLICA IDENTITY FULL"):
        applied(session, before, delete(1, 1, "x"), key="a")
    moved = insert(2, 2, "x", 1, None, unsent=("b", "id", "part"))
    with pytest.raises(ConfigurationError, match="found 1 without: the database sends the key"):
        applied(session, before, delete(1, 1, "x"), moved)
    with pytest.raises(Exception, match="expected the values that an update left alone, found no row"):
        applied(session, before, insert(1, 9, "x", 1, None, unsent=("b",)))
    with pytest.raises(ConfigurationError, match="expected changes with the columns nr, found id"):
        applied(session, before, delete(1, 1, "x"), key="nr")
    for left_out in ("_seq", "_unsent", "_change_type"):
        epoch = epoch_of(session, outlets={ORDERS: session.createDataFrame([], COLUMNS)})
        some = changes_of(session, insert(1, 1, "x", 1, "one")).drop(left_out)
        with pytest.raises(ConfigurationError, match=f"with all that tells of them, found {left_out} missing"):
            epoch.apply(some, ORDERS, key="id")
    epoch = epoch_of(
        session,
        sources={"db": changes_of(session, insert(1, 1, "x", 1, "one"))},
        outlets={ORDERS: session.createDataFrame([], "id INT, a INT")},
    )
    with pytest.raises(ConfigurationError, match=r"part, b missing.*ADD COLUMNS \(`part` string, `b` string\)"):
        epoch.apply(epoch.source("db"), ORDERS, key="id")


def test_in_sql(session: SparkSession) -> None:
    changes = changes_of(session, insert(1, 2, "x", 2, "two"), delete(2, 1, "x"))
    for origin in (
        "{source:db.public.orders}",
        "(SELECT id, part, a, upper(b) AS b, _change_type, _weight, _seq, _unsent FROM {source:db.public.orders})",
    ):
        epoch = epoch_of(
            session,
            sources={"db.public.orders": changes},
            outlets={ORDERS: session.createDataFrame([(1, "x", 1, "one")], COLUMNS)},
        )
        job = SqlJob(f"-- all of it\nAPPLY CHANGES INTO {{target:{ORDERS}}} FROM {origin} KEYS (id, `part`);")
        job(epoch)
        (row,) = epoch.read(ORDERS).collect()
        assert (row.id, row.b.lower()) == (2, "two")


def test_sql_that_is_wrong_is_refused_when_the_dag_is_parsed() -> None:
    database = ExternalSource("db", "postgresql", {"tables": ["public.orders"]})
    job = Job("orders", "shop", (), (ORDERS,), (database, ExternalSource("topic", "kafka")))
    statement = f"APPLY CHANGES INTO {{target:{ORDERS}}} FROM {{source:%s}} %s"
    check_for(statement % ("db.public.orders", "KEYS (id)"), job)
    check_for(statement % ("db", "KEYS (id)"), job)
    with pytest.raises(ConfigurationError, match=r"job orders.*expected APPLY CHANGES INTO \{target:ns.table\} FROM"):
        check_for(statement % ("db.public.orders", ""), job)
    for name in ("db.public.items", "topic.orders", "d"):
        with pytest.raises(UndeclaredTableError, match=f"uses external source '{name}'"):
            check_for(statement % (name, "KEYS (id)"), job)


def test_a_source_of_one_table_has_no_others(session: SparkSession, spark: SparkSession, tmp_path: Any) -> None:
    purchases = Kafka("purchases", schema="n INT").declare()
    spec = Barriers(spark, tmp_path).begin(1, externals={"purchases": (purchases, Cut("purchases", None, {}))})
    with pytest.raises(UndeclaredTableError, match=r"external source 'purchases\.orders'"):
        Epoch(session, spec).source("purchases", "orders")
