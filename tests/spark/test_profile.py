"""Small epochs have Spark told of that, and no other epoch, no user's conf and no later epoch notices."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch, Job
from airflow_barrier.spark.profile import MOST_BYTES, Inlet, profile_of
from tests.spark.jobs.amount import amount
from tests.support.epochs import AMOUNT, SHOPPING, Barriers, recomputed_amount, shop_for_a_day, shopping_barriers

PARTITIONS, ADAPTIVE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
SMALL = profile_of({}, {}).conf
OWN = {PARTITIONS: "200", ADAPTIVE: "true"}


@pytest.mark.parametrize(
    ("inlets", "others", "large", "reason"),
    [
        ({}, {}, (), "at most 0 bytes"),
        ({"a": Inlet(1, 2)}, {"out": 3}, (), "at most 6 bytes"),
        ({"a": Inlet(1, MOST_BYTES), "b": Inlet(1, 5)}, {"out": 3}, ("a",), "at most 10 bytes, and of a the changes"),
        ({"a": Inlet(1, None)}, {"out": 3}, ("a",), "of a the changes only"),
    ],
)
def test_small_is_what_reads_little_unless_a_large_inlet_is_read_whole(
    inlets: dict[str, Inlet], others: dict[str, int | None], large: tuple[str, ...], reason: str
) -> None:
    found = profile_of(inlets, others)
    assert (found.conf, found.large) == (SMALL, large)
    assert reason in found.reason


def test_as_many_tasks_as_the_bytes_ask_for() -> None:
    tasks = {count: profile_of({}, {"out": count}).conf[PARTITIONS] for count in (8 << 20, (8 << 20) + 1, MOST_BYTES)}
    assert list(tasks.values()) == ["1", "2", "8"]


@pytest.mark.parametrize(
    ("inlets", "others", "reason"),
    [
        ({"a": Inlet(MOST_BYTES, 1)}, {"out": 1}, "more than"),
        ({"a": Inlet(1, 1)}, {"out": MOST_BYTES}, "more than"),
        ({"a": Inlet(None, 1)}, {"out": 1}, "it is not known how many bytes it reads of a"),
        ({"a": Inlet(1, 1)}, {"out": None, "topic": None}, "of out, topic"),
    ],
)
def test_what_is_large_or_not_known_is_sparks_own(
    inlets: dict[str, Inlet], others: dict[str, int | None], reason: str
) -> None:
    found = profile_of(inlets, others)
    assert (found.conf, found.large) == ({}, ())
    assert reason in found.reason


def test_another_profile_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"task a: profile: expected 'auto' or 'spark', found 'fast'"):
        SparkEpochOperator(task_id="a", sql="SELECT 1", profile="fast")


# --- in Spark ---------------------------------------------------------------------------------------


class Days:
    """Barriers whose job looks at what Spark was told, and then does its work."""

    def __init__(self, session: SparkSession, barriers: Barriers) -> None:
        self.session = session
        self.barriers = barriers
        self.number = 0

    def run(self, conf: dict[str, str], *large: str, job: Job = amount) -> dict[str, str | None]:
        """Return the conf after the job had read its input."""
        self.number += 1
        shop_for_a_day(self.barriers, self.number)
        spec = replace(
            self.barriers.begin(self.number, inlets=[SHOPPING], outlets=[AMOUNT]), conf=conf, large=tuple(large)
        )
        found = {}

        def looking(epoch: Epoch) -> None:
            job(epoch)
            found.update({key: epoch.spark.conf.get(key) for key in OWN})

        self.barriers.publish(spec, run_epoch(self.session, spec, looking))
        assert [row for row in self.barriers.rows(AMOUNT) if row[2]] == recomputed_amount(self.barriers)
        return found


@pytest.fixture
def days(session: SparkSession, spark: SparkSession, tmp_path: Path) -> Days:
    return Days(session, shopping_barriers(spark, tmp_path))


@pytest.mark.every_landing
def test_the_epoch_after_a_small_one_has_sparks_own_conf_again(days: Days) -> None:
    assert days.run(dict(SMALL)) == SMALL
    assert days.run({}) == OWN
    assert days.run(dict(SMALL)) == SMALL


def test_what_the_user_has_set_stays_and_all_else_with_it(days: Days, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert days.run(dict(SMALL)) == SMALL
    days.session.conf.set(PARTITIONS, "7")
    assert days.run(dict(SMALL)) == {**OWN, PARTITIONS: "7"}
    assert f"job amount keeps Spark's conf, although its epoch is small: the user's has {PARTITIONS}=7" in caplog.text
    days.session.conf.set(PARTITIONS, SMALL[PARTITIONS])  # no contradiction, and not ours to take back
    assert days.run(dict(SMALL)) == SMALL
    assert days.session.conf.get(PARTITIONS) == SMALL[PARTITIONS]


def test_an_inlet_that_is_too_large_to_be_read_whole_is_read_with_sparks_own_conf(days: Days) -> None:
    def reading(epoch: Epoch) -> None:
        epoch.read(SHOPPING)
        amount(epoch)

    assert days.run(dict(SMALL), SHOPPING) == SMALL  # of its changes only
    assert days.run(dict(SMALL), SHOPPING, job=reading) == OWN
    assert days.run(dict(SMALL), job=reading) == SMALL
