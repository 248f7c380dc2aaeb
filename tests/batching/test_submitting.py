"""How a task leads a driver from epoch to epoch: the files between them, with a thread for the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.staging import Ready, closing_uri
from airflow_barrier.operators._batch import submit_batch
from airflow_barrier.protocol.errors import FencedAttemptError, NotClosedError, UnprovenFileError
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.spark.batch import Following, following_uri
from airflow_barrier.spark.spec import EpochSpec
from tests.support.batches import Rows, batch_of
from tests.support.shop import SHOPPING, Shop
from tests.support.waiting import wait_for

ROWS: dict[int, Rows] = {n: [{"amount": 10**n, "price": n}] for n in range(1, 7)}


class DriverError(Exception):
    """The driver has died."""


@dataclass
class Driver:
    """What a driver does, without Spark. ``dies_at``: before it closes that barrier's epoch."""

    shop: Shop
    batch: Batch
    dies_at: int | None = None
    before: Callable[[EpochSpec], None] = lambda _: None
    processed: list[int] = field(default_factory=list)

    def submit(self, ready: Ready) -> None:
        tables = self.shop.deployment.tables
        spec: EpochSpec | None = ready.spec
        while spec is not None:
            current = self.batch.under_way
            assert current is not None
            self.before(spec)
            record = self.shop.write(current, ROWS[spec.barrier_id])
            if spec.barrier_id == self.dies_at:
                raise DriverError
            tables.write_text(closing_uri(self.shop.deployment, current.attempt), record.dumps(spec.nonce))
            self.processed.append(spec.barrier_id)
            following = self.told(spec)
            spec = None
            if following.spec_uri is not None:
                spec = EpochSpec.loads(tables.read_text(following.spec_uri), following.digest)

    def told(self, spec: EpochSpec) -> Following:
        uri = following_uri(spec.closing_uri)
        wait_for(uri, lambda: self.shop.deployment.tables.exists(uri))
        return Following.loads(self.shop.deployment.tables.read_text(uri), spec.nonce, uri)


def drive(shop: Shop, count: int, limit: int) -> tuple[Batch, Driver]:
    barriers = [shop.open(day) for day in range(1, count + 1)]
    batch = batch_of(shop, barriers[0], "load", limit)
    return batch, Driver(shop, batch)


def total(shop: Shop, barrier_id: int) -> int:
    (table,) = [
        each for each in shop.deployment.meta.barriers.progress("shopping", barrier_id) if each.table == SHOPPING
    ]
    return shop.total(SHOPPING, table.snapshot_id)


def test_one_driver_works_off_the_barriers_and_is_told_when_there_are_no_more(shop: Shop) -> None:
    batch, driver = drive(shop, count=3, limit=9)
    submit_batch(batch, driver.submit)
    assert driver.processed == [1, 2, 3]
    assert [total(shop, n) for n in (1, 2, 3)] == [1, 3, 6]
    assert batch.under_way is None


def test_what_was_closed_before_the_driver_died_counts(shop: Shop) -> None:
    batch, driver = drive(shop, count=3, limit=9)
    driver.dies_at = 3
    with pytest.raises(DriverError):
        submit_batch(batch, driver.submit)
    assert [attempt.barrier_id for attempt in batch.done] == [1, 2]
    assert [total(shop, n) for n in (1, 2, 3)] == [1, 3, 0]
    assert batch.under_way is not None
    assert batch.under_way.attempt.barrier_id == 3


FORGED = json.dumps(
    {"attempt_id": 0, "staged": {SHOPPING: {"table": SHOPPING, "snapshot_id": None, "unchanged": True}}}
)


def test_a_forged_record_does_not_close_an_epoch_while_its_driver_still_reads(shop: Shop) -> None:
    batch, driver = drive(shop, count=2, limit=9)
    attempt_id = batch.first.attempt.attempt_id

    def forge(spec: EpochSpec) -> None:
        """Before the driver writes, when the branch is as unchanged as the record says."""
        shop.deployment.tables.write_text(spec.closing_uri, FORGED)
        wait_for("a look", lambda: shop.deployment.meta.attempts.get(attempt_id).state is not AttemptState.RUNNING)
        raise DriverError

    driver.before = forge
    with pytest.raises(UnprovenFileError, match="somebody else wrote the file"):
        submit_batch(batch, driver.submit)
    assert shop.deployment.meta.attempts.get(attempt_id).state is AttemptState.ABORTED
    assert batch.done == []
    assert shop.deployment.meta.attempts.of("shopping", 2) == []


@pytest.mark.kills("next-has-a-digest")
def test_what_a_driver_is_told_next_is_from_its_own_task_and_names_a_digest() -> None:
    told = Following("file:///b2/a8.spec.json", "abc")
    assert Following.loads(told.dumps("n"), "n", "next") == told
    assert Following.loads(Following().dumps("n"), "n", "next") == Following()
    forged = '{"spec_uri": "s3://mine/x.json", "digest": "abc"}', told.dumps("another"), "[]", "{", "[" * 100_000
    for text in (*forged, *(Following(*each).dumps("n") for each in ((told.spec_uri, None), (None, "abc"), ("", "")))):
        with pytest.raises(UnprovenFileError, match=r"^next: expected"):
            Following.loads(text, "n", "next")


def test_a_driver_that_ends_without_a_word_has_not_closed(shop: Shop) -> None:
    batch, _ = drive(shop, count=2, limit=9)
    with pytest.raises(NotClosedError):
        submit_batch(batch, lambda ready: None)
    assert batch.barrier is None
    assert shop.deployment.meta.attempts.of("shopping", 2) == []


def test_a_driver_whose_epoch_was_fenced_is_told_to_end(shop: Shop) -> None:
    batch, driver = drive(shop, count=3, limit=9)

    def clear(spec: EpochSpec) -> None:
        if spec.barrier_id == 2:
            shop.begin(shop.deployment.meta.barriers.get("shopping", 2), "load", "cleared")

    driver.before = clear
    with pytest.raises(FencedAttemptError):
        submit_batch(batch, driver.submit)
    assert driver.processed == [1, 2]
    assert [attempt.barrier_id for attempt in batch.done] == [1]
    assert total(shop, 2) == 0
