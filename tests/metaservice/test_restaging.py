"""A cleared task whose output was consumed: everything that stands on it goes, in one transaction."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import VoidedAttemptError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Need
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, LOAD_JOB, PRICE, PRICE_JOB, SHOPPING, TOP, World

PENDING, PROCESSED = TableState.PENDING, TableState.PROCESSED


@pytest.mark.kills("clear-restages", "restaging-voids-consumers", "restaging-unstages-tables", "restaging-reopens")
def test_what_is_downstream_is_voided_and_read_committed_falls_back(world: World) -> None:
    world.committed(1)
    world.open(2)
    world.process_all(2)
    assert world.meta.answers.resolve("shopping", Level.READ_COMMITTED).barrier_id == 2
    top = world.meta.attempts.current("shopping", 2, "top")
    amount = world.meta.attempts.current("shopping", 2, "amount")
    assert top is not None
    assert amount is not None

    cleared = world.request(2, "amount", generation="g2")
    assert cleared.attempt_id > top.attempt_id
    assert world.meta.attempts.get(amount.attempt_id).state is AttemptState.FENCED
    voided = world.meta.attempts.get(top.attempt_id)
    assert voided.state is AttemptState.VOIDED
    assert "job amount is staged anew at barrier 2" in str(voided.reason)
    assert world.tables(2) == {AMOUNT: PENDING, PRICE: PROCESSED, SHOPPING: PROCESSED, TOP: PENDING}
    assert world.snapshots(2)[AMOUNT] is None
    assert (world.state(2), world.barrier(2).precommit_at) == (BarrierState.OPEN, None)
    assert world.meta.answers.resolve("shopping", Level.READ_COMMITTED).barrier_id == 1
    assert world.served(Level.READ_UNCOMMITTED) == {AMOUNT: 1, PRICE: 2, SHOPPING: 2, TOP: 1}
    with pytest.raises(VoidedAttemptError, match=r"VOIDED .* the next try begins a new attempt"):
        world.meta.attempts.report(top.attempt_id, "zombie")

    world.process(2, "amount", generation="g2")
    world.process(2, "top")
    assert world.state(2) is BarrierState.PRECOMMIT


def test_later_barriers_lose_what_builds_on_it(world: World) -> None:
    for number in (1, 2, 3):
        world.open(number)
        world.process_all(number)
    world.request(1, "price", generation="g2")
    assert world.tables(1) == {AMOUNT: PROCESSED, PRICE: PENDING, SHOPPING: PROCESSED, TOP: PENDING}
    assert world.tables(2) == world.tables(3) == world.tables(1)
    assert [world.state(number) for number in (1, 2, 3)] == [BarrierState.OPEN] * 3
    needs = world.meta.attempts.start(world.request(3, "price").attempt_id)
    assert needs == (Need(PRICE, 2, "price"),)
    for number in (1, 2, 3):
        world.process_all(number, generation="g2")
        world.commit(number)


def test_a_later_barrier_that_has_nothing_of_it_stays_precommit(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.open(2)
    world.process_all(2)
    world.request(1, "price", generation="g2")
    assert (world.state(1), world.state(2)) == (BarrierState.OPEN, BarrierState.PRECOMMIT)


def test_each_barrier_is_judged_by_the_jobs_it_was_opened_with(world: World) -> None:
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.open(1)
    world.process_all(1)
    world.declare([LOAD_JOB, AMOUNT_JOB, PRICE_JOB])
    world.open(2)
    world.process_all(2)
    world.request(1, "load", generation="g2")
    assert set(world.tables(1).values()) == set(world.tables(2).values()) == {PENDING}


def test_running_and_closed_consumers_are_voided_and_waiting_ones_wait_on(world: World) -> None:
    world.open(1)
    world.process(1, "load")
    running = world.start(1, "amount")
    closed = world.close(world.start(1, "price"))
    waiting = world.request(1, "top")
    world.request(1, "load", generation="g2")
    states = {a.attempt_id: a.state for a in world.meta.attempts.of("shopping", 1)}
    assert states[running.attempt_id] is states[closed.attempt_id] is AttemptState.VOIDED
    assert states[waiting.attempt_id] is AttemptState.REQUESTED


def test_a_clear_of_what_was_not_processed_voids_nobody(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.open(2)
    world.close(world.start(2, "load"))
    world.request(2, "load", generation="g2")
    assert world.state(1) is BarrierState.PRECOMMIT
    assert [a.state for a in world.meta.attempts.of("shopping", 2)] == [AttemptState.FENCED, AttemptState.REQUESTED]


def test_a_carried_table_is_staged_anew_with_its_job(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.open(2)
    world.process(2, "load", unchanged=True)
    world.request(1, "load", generation="g2")
    row = next(row for row in world.meta.barriers.progress("shopping", 2) if row.table == SHOPPING)
    assert (row.state, row.snapshot_id, row.carried_from, row.attempt_id) == (PENDING, None, None, None)


def test_the_note_for_open_sessions_names_all(world: World) -> None:
    world.open(1)
    world.process_all(1)
    voided = {
        attempt.attempt_id
        for attempt in world.meta.attempts.of("shopping", 1)
        if attempt.job in ("amount", "price", "top")
    }
    world.request(1, "load", generation="g2")
    note = next(
        entry
        for entry in world.meta.audit.newest("shopping", 1)
        if entry.kind == "topology" and entry.event == "restaged"
    )
    assert (note.event, note.detail["job"], set(note.detail["voided"])) == ("restaged", "load", voided)
    demoted = next(entry for entry in world.meta.audit.newest("shopping", 1) if entry.after == "OPEN" and entry.before)
    assert (demoted.kind, demoted.event, demoted.before) == ("barrier", "restaged", "PRECOMMIT")
