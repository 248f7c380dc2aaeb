"""Whatever happened to a table, in whatever order: the older state plus the changes is the newer state."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from tests.support.drawing import OPERATIONS
from tests.support.history import COLUMNS, COW, MERGE, MOR, REWRITE_ALL, History, insert, modes

STEPS = 7
KINDS = {
    "append": 4,
    "update": 4,
    "delete": 4,
    "delete value": 1,
    "merge": 3,
    "compact": 2,
    "compact deletes": 1,
    "add column": 2,
    "overwrite": 1,
}
PARTITION = {"write.delete.granularity": "partition"}


def step(table: History, dice: random.Random, upgrade: bool) -> None:
    """One write of a random kind; an upgrade to v3 happens half-way."""
    done = len(table.heads)
    some, start = dice.randrange(4), 10 * done
    if upgrade and done == STEPS // 2:
        table.do("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")
    kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "append" or done == 0:
        table.do(insert(start, start + 8))
    elif kind == "update":
        table.do(f"UPDATE {{t}} SET v = v + 1 WHERE id % 4 = {some}")
    elif kind == "delete":
        table.do(f"DELETE FROM {{t}} WHERE id % 10 = {some}")
    elif kind == "delete value":  # where that is a partition, its files go without being read
        table.do(f"DELETE FROM {{t}} WHERE s = 's{some % 3}'")
    elif kind == "merge":
        table.do(MERGE.replace("id + 8", f"id + {10 * dice.randrange(done + 1)}"))
    elif kind == "compact":
        table.call("rewrite_data_files", REWRITE_ALL)
    elif kind == "compact deletes":
        table.call("rewrite_position_delete_files", REWRITE_ALL)
    elif kind == "add column":
        table.do(f"ALTER TABLE {{t}} ADD COLUMN c{done} INT", f"UPDATE {{t}} SET c{done} = id WHERE id % 3 = 0")
    else:
        columns = "CAST(id AS BIGINT) AS id, CAST(1 AS INT) AS v, s"
        table.do(f"INSERT OVERWRITE {{t}} BY NAME SELECT {columns} FROM VALUES ({start}, 's0'), (0, 's9') AS (id, s)")


@pytest.mark.parametrize(
    ("seed", "version", "settings", "clause", "upgrade"),
    [
        pytest.param(1, "2", modes(COW), "", False, id="v2-copy-on-write"),
        pytest.param(2, "2", modes(MOR), "PARTITIONED BY (s)", False, id="v2-merge-on-read-partitioned"),
        pytest.param(3, "2", {**modes(MOR), **PARTITION}, "", True, id="v2-upgraded"),
        pytest.param(4, "3", modes(MOR), "", False, id="v3-merge-on-read"),
        pytest.param(5, "3", {**modes(COW), "write.delete.mode": MOR}, "PARTITIONED BY (s)", False, id="v3-mixed"),
        pytest.param(6, "2", modes(MOR), "PARTITIONED BY (bucket(2, id))", True, id="v2-upgraded-partitioned"),
    ],
)
@pytest.mark.drawn
@pytest.mark.touches(*OPERATIONS["changes"])
def test_any_history(
    spark: SparkSession, seed: int, version: str, settings: dict[str, str], clause: str, upgrade: bool
) -> None:
    dice = random.Random(seed)
    table = History(spark, "random", COLUMNS, clause, **{"format-version": version, **settings})
    while len(table.heads) < STEPS:
        step(table, dice, upgrade)
    heads = table.heads
    assert len(set(heads)) > 1
    pairs = [(0, len(heads) - 1), *(sorted(dice.sample(range(len(heads)), 2)) for _ in range(3))]
    for start, end in pairs:
        table.check(heads[start], heads[end])
    told = [table.check_told(heads[start], heads[end]) for start, end in pairs]
    assert all(told) or settings.keys() >= PARTITION.keys(), "metadata tell of all but deletes for a whole partition"
