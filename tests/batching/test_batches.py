"""One task processes several barriers' epochs, and everything is as if each had been processed by its own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_barrier.coordinator.next import led_by
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, Waiting, begin
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    FencedAttemptError,
    StagedTableError,
    VoidedAttemptError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from tests.support.batches import Rows, batch_of, run
from tests.support.shop import AMOUNT, JOBS, PRICE, SHOPPING, Shop

ROWS: dict[int, Rows] = {n: [{"amount": 10**n, "price": n}] for n in range(1, 7)}


def task(shop: Shop, barrier: Barrier, job: str, generation: str = "g0") -> Ready | Adopted | Waiting:
    """The barrier's own task asks."""
    key = f"shopping_dag/{barrier.barrier_id}/{job}"
    return begin(shop.deployment, barrier, job, Asking(request_key=key, generation=generation, actor="test"))


def states(shop: Shop, barrier: Barrier, job: str) -> list[str]:
    found = shop.deployment.meta.attempts.of("shopping", barrier.barrier_id)
    return [attempt.state.value for attempt in found if attempt.job == job]


def everything(shop: Shop, barriers: list[Barrier]) -> list[dict[str, int]]:
    """What each table adds up to at each barrier."""
    return [
        {
            each.table: shop.total(each.table, each.snapshot_id)
            for each in shop.deployment.meta.barriers.progress("shopping", barrier.barrier_id)
        }
        for barrier in barriers
    ]


@pytest.mark.parametrize("seed", range(3))
def test_batches_stage_what_single_epochs_stage(make: Callable[[], Shop], seed: int) -> None:
    """Random limits, and random tasks that ask in between."""
    chance = random.Random(seed)
    count = 4
    rows = {n: [{"amount": chance.randrange(99), "price": chance.randrange(99)}] for n in range(1, count + 1)}
    single, batched = make(), make()
    one_by_one = [single.process_all(single.open(day), rows[day]) for day in range(1, count + 1)]

    barriers = [batched.open(day) for day in range(1, count + 1)]
    jobs = [job.name for job in JOBS]
    for job in [jobs[0], *chance.sample(jobs[1:], len(jobs[1:]))]:
        for barrier in barriers:
            for other in chance.sample(barriers, chance.randrange(count)):
                if other.barrier_id > barrier.barrier_id and not states(batched, other, job):
                    task(batched, other, job)  # waits, or has begun where the last batch ended
            if isinstance(step := task(batched, barrier, job), Ready):
                batch = batch_of(batched, barrier, job, chance.randrange(1, count + 1))
                run(batched, batch, rows)
                assert 1 <= len(batch.done) <= batch.limit
            else:
                assert isinstance(step, Adopted)
    assert everything(batched, barriers) == everything(single, one_by_one)
    for barrier in barriers:
        batched.commit(barrier)
    for barrier in one_by_one:
        single.commit(barrier)
    assert batched.main_totals() == single.main_totals()


def test_a_batch_goes_on_to_its_limit_and_each_barrier_has_its_own_snapshot(shop: Shop) -> None:
    barriers = [shop.open(day) for day in range(1, 5)]
    batch = batch_of(shop, barriers[0], "load", 3)
    run(shop, batch, ROWS)
    assert [attempt.barrier_id for attempt in batch.done] == [1, 2, 3]
    assert [states(shop, barrier, "load") for barrier in barriers] == [["PROCESSED"]] * 3 + [[]]
    assert [found[SHOPPING] for found in everything(shop, barriers)] == [1, 3, 6, 0]
    assert [attempt.request_key for attempt in batch.done] == ["shopping_dag/1/load"] * 3
    # their tasks find it done
    for barrier in barriers[1:3]:
        adopted = task(shop, barrier, "load")
        assert isinstance(adopted, Adopted)
        assert states(shop, barrier, "load") == ["PROCESSED"]


def test_a_task_that_waits_adopts_what_its_leader_does(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    waiting = task(shop, second, "load")
    assert isinstance(waiting, Waiting)
    batch = batch_of(shop, first, "load", 2)

    def look(ready: Ready) -> None:
        if ready.attempt.barrier_id == 2:
            current = shop.deployment.meta.attempts.current("shopping", 2, "load")
            assert led_by(current, "shopping_dag/2/load", "g0") == "shopping_dag/1/load"
            assert led_by(current, "shopping_dag/2/load", "cleared") is None

    run(shop, batch, ROWS, look)
    assert states(shop, second, "load") == ["FENCED", "PROCESSED"]
    assert isinstance(task(shop, second, "load"), Adopted)
    current = shop.deployment.meta.attempts.current("shopping", 2, "load")
    assert led_by(current, "shopping_dag/2/load", "g0") is None


def test_a_batch_ends_where_its_input_is_missing_or_somebody_has_begun(shop: Shop) -> None:
    first, second, third = (shop.open(day) for day in (1, 2, 3))
    shop.process(first, "load", ROWS[1])
    batch = batch_of(shop, first, "amount", 9)
    run(shop, batch, ROWS)
    assert [attempt.barrier_id for attempt in batch.done] == [1]
    assert states(shop, second, "amount") == []
    shop.process(second, "load", ROWS[2])
    begun = shop.begin(second, "amount")
    batch = batch_of(shop, first, "price", 9)
    run(shop, batch, ROWS)
    assert [attempt.barrier_id for attempt in batch.done] == [1, 2]
    assert shop.deployment.meta.attempts.get(begun.attempt.attempt_id).state is AttemptState.RUNNING
    assert states(shop, third, "price") == []


def test_a_batch_ends_where_the_job_is_another(shop: Shop) -> None:
    first = shop.open(1)
    changed = [*JOBS[:2], Job("price", "shopping_dag", inlets=(SHOPPING, AMOUNT), outlets=(PRICE,))]
    second = shop.open(2, Fragment("shopping", "shopping_dag", tuple(changed)))
    for barrier in (first, second):
        shop.process(barrier, "load", ROWS[1])
        shop.process(barrier, "amount", ROWS[1])
    batch = batch_of(shop, first, "price", 9)
    run(shop, batch, ROWS)
    assert len(batch.done) == 1
    assert states(shop, second, "price") == []


def test_a_leader_that_dies_leaves_the_rest_to_its_tasks(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    batch = batch_of(shop, first, "load", 2)
    batch.close(shop.write(batch.first, ROWS[1]))
    orphan = batch.following()
    assert orphan is not None
    shop.write(orphan, ROWS[2])
    # the operator looks whether the leader still runs, and begins if it does not
    own = shop.begin(second, "load")
    assert states(shop, second, "load") == ["FENCED", "RUNNING"]
    with pytest.raises(FencedAttemptError):
        batch.close(shop.write(orphan, ROWS[2]))
    shop.close(own, shop.write(own, ROWS[2]))
    assert [found[SHOPPING] for found in everything(shop, [first, second])] == [1, 3]


def test_a_clear_of_a_later_task_fences_the_batch(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    batch = batch_of(shop, first, "load", 2)
    batch.close(shop.write(batch.first, ROWS[1]))
    led = batch.following()
    assert led is not None
    cleared = shop.begin(second, "load", "cleared")
    with pytest.raises(FencedAttemptError):
        batch.close(shop.write(led, ROWS[3]))
    shop.close(cleared, shop.write(cleared, ROWS[2]))
    assert [found[SHOPPING] for found in everything(shop, [first, second])] == [1, 3]
    # nor does a leader come back to it
    assert batch.barrier is not None
    assert [attempt.barrier_id for attempt in batch.done] == [1]


def test_staging_the_first_epoch_anew_voids_what_the_batch_builds_on_it(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    batch = batch_of(shop, first, "load", 2)
    batch.close(shop.write(batch.first, ROWS[1]))
    led = batch.following()
    assert led is not None
    anew = shop.begin(first, "load", "cleared")
    with pytest.raises(VoidedAttemptError, match="stands on its output"):
        batch.close(shop.write(led, ROWS[2]))
    shop.close(anew, shop.write(anew, ROWS[4]))
    assert states(shop, second, "load") == ["VOIDED"]
    # what was voided is its own task's
    again = batch_of(shop, first, "amount", 2)
    run(shop, again, ROWS)
    assert len(again.done) == 1


def test_a_batch_stages_nothing_at_a_barrier_that_is_given_up(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    batch = batch_of(shop, first, "load", 3)
    batch.close(shop.write(batch.first, ROWS[1]))
    led = batch.following()
    assert led is not None
    shop.deployment.meta.barriers.abort("shopping", second.barrier_id, "no", "test")
    with pytest.raises(BarrierAbortedError):
        batch.close(shop.write(led, ROWS[2]))
    third = shop.open(3)
    assert shop.deployment.meta.barriers.get("shopping", 1).state is BarrierState.OPEN
    # the next barrier builds on the first
    shop.process(third, "load", ROWS[3])
    assert everything(shop, [first, third])[1][SHOPPING] == 4


def test_the_checks_of_closing_are_the_same(shop: Shop) -> None:
    """A driver that says of the second epoch that it staged the first one's snapshot."""
    barriers = [shop.open(day) for day in (1, 2)]
    batch = batch_of(shop, barriers[0], "load", 2)
    record = shop.write(batch.first, ROWS[1])
    batch.close(record)
    assert batch.following() is not None
    with pytest.raises(StagedTableError):
        batch.close(record)
    assert batch.barrier is not None
    assert states(shop, barriers[1], "load") == ["ABORTED"]
