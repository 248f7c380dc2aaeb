"""The previous join plus `delta_join` is the present join, whatever came and went on either side."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.delta_join import delta_join
from tests.support.drawing import OPERATIONS
from tests.support.history import History, modes

LEFT = "k STRING, `l.v` INT"
RIGHT = "k STRING, r INT"
Rows = list[tuple[Any, ...]]


def weighted(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in frame.collect():
        *values, change_type, weight = row
        assert (change_type, weight) in {("insert", 1), ("delete", -1)}
        assert rows[tuple(values)] * weight >= 0, "a row is both inserted and deleted"
        rows[tuple(values)] += weight
    return rows


def joined(left: Rows, right: Rows, how: str) -> Counter[tuple[Any, ...]]:
    """The join by nested loops: NULL matches nothing."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for key, value in left:
        matches = [other for other_key, other in right if key is not None and key == other_key]
        if not matches and how == "left":
            matches = [None]
        rows.update((key, value, other) for other in matches)
    return rows


def after(rows: Rows, delta: Rows) -> Rows:
    state = Counter(rows)
    for *values, weight in delta:
        state[tuple(values)] += weight
    assert all(count >= 0 for count in state.values())
    return list(state.elements())


def random_side(dice: random.Random) -> tuple[Rows, Rows]:
    """A state with NULL keys and duplicates, and a delta of it."""

    def row() -> tuple[Any, ...]:
        return (dice.choice(["a", "b", "c", "d", None]), dice.choice([1, 2, None]))

    previous = [row() for _ in range(dice.randrange(8))]
    gone = dice.sample(previous, dice.randrange(len(previous) + 1))
    return previous, [(*r, -1) for r in gone] + [(*row(), 1) for _ in range(dice.randrange(5))]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.drawn
@pytest.mark.touches(*OPERATIONS["changes"])
def test_any_two_sides(spark: SparkSession, seed: int, how: str) -> None:
    dice = random.Random(seed)
    (left, left_delta), (right, right_delta) = random_side(dice), random_side(dice)
    delta = delta_join(
        spark.createDataFrame(left, LEFT),
        spark.createDataFrame(left_delta, f"{LEFT}, _weight INT"),
        spark.createDataFrame(right, RIGHT),
        spark.createDataFrame(right_delta, f"{RIGHT}, _weight INT"),
        on="k",
        how=how,
    )
    assert delta.columns == ["k", "l.v", "r", "_change_type", "_weight"]
    expected = joined(after(left, left_delta), after(right, right_delta), how)
    expected.subtract(joined(left, right, how))
    assert weighted(delta) == Counter({row: n for row, n in expected.items() if n})


@pytest.mark.parametrize("how", ["inner", "left"])
def test_tables_and_their_changes(spark: SparkSession, how: str) -> None:
    orders = History(spark, "joins", "user INT, item INT, amount INT", **modes("merge-on-read"))
    items = History(spark, "joins", "item INT, user INT, price DECIMAL(9, 2)")
    orders.do("INSERT INTO {t} VALUES (1, 10, 2), (1, 11, 1), (2, 10, 5), (3, 12, 1)")
    items.do("INSERT INTO {t} VALUES (10, 1, 1.50), (10, 2, 1.75), (11, 1, 3.00)")
    orders.do(
        "UPDATE {t} SET amount = 6 WHERE user = 2",
        "INSERT INTO {t} VALUES (4, 10, 1)",
        "DELETE FROM {t} WHERE item = 11",
    )
    items.do("UPDATE {t} SET price = 9.99 WHERE user = 1 AND item = 10", "INSERT INTO {t} VALUES (12, 3, 0.10)")

    def state(history: History, at: int) -> DataFrame:
        return spark.sql(f"SELECT * FROM {history.name} VERSION AS OF {history.heads[at]}")

    delta = delta_join(
        state(orders, 0),
        orders.changes(*orders.heads),
        state(items, 0),
        items.changes(*items.heads),
        ["user", "item"],
        how,
    )
    before, now = (state(orders, at).join(state(items, at), ["user", "item"], how) for at in (0, 1))
    expected = Counter(tuple(row) for row in now.collect())
    expected.subtract(tuple(row) for row in before.collect())
    assert weighted(delta) == Counter({row: n for row, n in expected.items() if n})


def test_a_table_with_itself(spark: SparkSession) -> None:
    table = History(spark, "joins", "id INT, boss INT")
    table.do("INSERT INTO {t} VALUES (1, NULL), (2, 1), (3, 1)")
    table.do("INSERT INTO {t} VALUES (4, 2)", "UPDATE {t} SET boss = 2 WHERE id = 3")
    previous = spark.sql(f"SELECT * FROM {table.name} VERSION AS OF {table.heads[0]}")
    changed = table.changes(*table.heads)
    delta = delta_join(
        previous, changed, previous.selectExpr("id AS boss", "boss AS theirs"),
        changed.selectExpr("id AS boss", "boss AS theirs", "_change_type", "_weight"), "boss",
    )  # fmt: skip
    assert weighted(delta) == Counter({(1, 3, None): -1, (2, 3, 1): 1, (2, 4, 1): 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"how": "full"}, "expected how='inner' or 'left', found 'full'"),
        ({"on": []}, "expected the columns of on="),
        ({"on": "nowhere"}, r"found none called \['nowhere'\] on the left side"),
        ({"right_changes": "k STRING, r INT"}, "expected the right changes to have .* _weight"),
        ({"left_changes": "k STRING, _weight INT"}, "expected the left changes to have the columns of the left state"),
        ({"right_previous": LEFT, "right_changes": f"{LEFT}, _weight INT"}, r"found \['l.v'\] there too"),
    ],
)
def test_what_it_cannot_join(spark: SparkSession, arguments: dict[str, Any], said: str) -> None:
    frames = {
        "left_previous": LEFT,
        "left_changes": f"{LEFT}, _weight INT",
        "right_previous": RIGHT,
        "right_changes": f"{RIGHT}, _weight INT",
    }
    given = {name: arguments.get(name, columns) for name, columns in frames.items()}
    others = {name: value for name, value in arguments.items() if name not in frames}
    with pytest.raises(ConfigurationError, match=said):
        delta_join(**{n: spark.createDataFrame([], c) for n, c in given.items()}, **{"on": "k", **others})
