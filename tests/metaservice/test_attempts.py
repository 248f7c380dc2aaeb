"""Attempts: adopted or new, pinned when they start, taken only from the current one."""

from __future__ import annotations

from datetime import datetime

import pytest

from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    AttemptTakenError,
    BarrierAbortedError,
    BarrierError,
    FencedAttemptError,
    IllegalTransitionError,
    NotOwnerError,
    SilentOutletError,
    TopologyError,
    UndeclaredTableError,
    UnknownBarrierError,
)
from airflow_barrier.protocol.records import Attempt, Need, StagedTable, Tries
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from tests.metaservice.world import AMOUNT, PRICE, SHOPPING, TOP, World, staged


def test_from_request_to_processed(world: World) -> None:
    world.open(1)
    requested = world.request(1, "load")
    assert (requested.state, requested.job, requested.generation) == (AttemptState.REQUESTED, "load", "g1")
    assert requested.incarnation == world.meta.topologies.incarnation(world.name)
    attempt = world.process(1, "load")
    assert attempt.attempt_id == requested.attempt_id
    assert attempt.state is AttemptState.PROCESSED
    times = [attempt.requested_at, attempt.started_at, attempt.closed_at, attempt.processed_at]
    assert times == sorted(time for time in times if time is not None)
    row = next(progress for progress in world.meta.barriers.progress("shopping", 1) if progress.table == SHOPPING)
    assert (row.state, row.attempt_id, row.snapshot_id) == (
        TableState.PROCESSED,
        attempt.attempt_id,
        attempt.staged[SHOPPING].snapshot_id,
    )


@pytest.mark.kills("inputs-are-there")
def test_it_waits_for_inlets_here_and_for_inlets_and_outlets_before(world: World) -> None:
    world.open(1)
    world.open(2)
    attempt = world.request(2, "amount")
    at_first = {Need(AMOUNT, 1, "amount"), Need(SHOPPING, 1, "load"), Need(SHOPPING, 2, "load")}
    needs = world.meta.attempts.start(attempt.attempt_id)
    assert isinstance(needs, tuple)
    assert set(needs) == at_first
    world.process(1, "load")
    assert world.meta.attempts.start(attempt.attempt_id) == (Need(AMOUNT, 1, "amount"), Need(SHOPPING, 2, "load"))
    world.process(1, "amount")
    world.process(2, "load")
    started = world.meta.attempts.start(attempt.attempt_id)
    assert isinstance(started, Attempt)
    assert set(started.waited_for) == at_first, "all that it ever waited for is kept"


def test_a_poll_that_finds_nothing_new_writes_nothing(world: World) -> None:
    world.open(1)
    attempt = world.request(1, "amount")
    needs = world.meta.attempts.start(attempt.attempt_id)
    entries = world.meta.audit.newest("shopping")
    assert (
        world.meta.attempts.start(attempt.attempt_id) == needs == world.meta.attempts.get(attempt.attempt_id).waited_for
    )
    assert world.meta.audit.newest("shopping") == entries


def test_input_is_pinned_at_the_start(world: World) -> None:
    world.open(1, baseline={AMOUNT: 11, PRICE: 12, SHOPPING: None, TOP: None})
    world.process(1, "load")
    first = world.start(1, "amount")
    assert first.inputs == {SHOPPING: world.snapshots(1)[SHOPPING]}
    assert (first.previous, first.bases) == ({SHOPPING: None}, {AMOUNT: 11})
    world.close(first)
    world.meta.attempts.report(first.attempt_id, "test")
    world.open(2)
    world.process(2, "load")
    second = world.start(2, "amount")
    assert second.inputs == {SHOPPING: world.snapshots(2)[SHOPPING]}
    assert second.previous == {SHOPPING: world.snapshots(1)[SHOPPING]}
    assert second.bases == {AMOUNT: world.snapshots(1)[AMOUNT]}


@pytest.mark.kills("adopted-states", "running-is-fenced", "started-once")
def test_of_two_that_start_one_attempt_the_second_is_told_to_ask_again(world: World) -> None:
    world.open(1)
    zombie = world.request(1, "load", key="try 1")
    retry = world.request(1, "load", key="try 2")
    assert retry == zombie, "it still waits: a retry waits on"
    assert isinstance(world.meta.attempts.start(zombie.attempt_id), Attempt)
    with pytest.raises(AttemptTakenError, match="request an attempt again"):
        world.meta.attempts.start(retry.attempt_id)
    own = world.request(1, "load", key="try 2")
    assert own.attempt_id > zombie.attempt_id
    assert world.meta.attempts.get(zombie.attempt_id).state is AttemptState.FENCED
    assert isinstance(world.meta.attempts.start(own.attempt_id), Attempt)


@pytest.mark.kills("adopted-states", "processed-again")
def test_a_retry_adopts_what_was_closed_or_processed(world: World) -> None:
    world.open(1)
    closed = world.close(world.start(1, "load"))
    assert world.request(1, "load", key="try 2") == closed
    world.meta.attempts.report(closed.attempt_id, "test")
    adopted = world.request(1, "load", key="try 3")
    assert (adopted.attempt_id, adopted.state) == (closed.attempt_id, AttemptState.PROCESSED)
    assert world.meta.attempts.report(adopted.attempt_id, "test").state is BarrierState.OPEN


@pytest.mark.parametrize(
    ("key", "reason"),
    [("try 1", "superseded by the next try of its task"), ("another", "superseded by task another")],
)
def test_who_takes_over_what_runs_is_said(world: World, key: str, reason: str) -> None:
    world.open(1)
    lost = world.start(1, "load")
    world.request(1, "load", key=key)
    assert world.meta.attempts.get(lost.attempt_id).reason == reason


@pytest.mark.kills("clear-is-no-retry", "new-attempt-fences")
@pytest.mark.parametrize("reached", ["requested", "running", "closed"])
def test_a_clear_fences_what_was_under_way(world: World, reached: str) -> None:
    world.open(1)
    old = world.request(1, "load") if reached == "requested" else world.start(1, "load")
    if reached == "closed":
        world.close(old)
    new = world.request(1, "load", generation="g2")
    assert new.state is AttemptState.REQUESTED
    fenced = world.meta.attempts.get(old.attempt_id)
    assert (fenced.state, fenced.reason) == (
        AttemptState.FENCED,
        "superseded by its task, which somebody cleared",
    )
    assert fenced.ended_at is not None
    assert world.meta.attempts.current("shopping", 1, "load") == new
    assert [a.attempt_id for a in world.meta.attempts.of("shopping", 1)] == [old.attempt_id, new.attempt_id]


@pytest.mark.kills("fenced-reports-nothing")
def test_a_superseded_attempt_can_report_nothing(world: World) -> None:
    world.open(1)
    old = world.start(1, "load")
    world.request(1, "load", generation="g2")
    before = world.meta.audit.newest("shopping")
    for report in (
        lambda: world.meta.attempts.start(old.attempt_id),
        lambda: world.meta.attempts.rebase(old.attempt_id, {SHOPPING: 1}),
        lambda: world.close(old),
        lambda: world.meta.attempts.report(old.attempt_id, "zombie"),
    ):
        with pytest.raises(FencedAttemptError, match=rf"attempt {old.attempt_id} of job load .* FENCED \(superseded"):
            report()
    assert world.meta.audit.newest("shopping") == before


def test_after_an_end_the_same_task_gets_a_new_attempt(world: World) -> None:
    world.open(1)
    old = world.start(1, "load")
    aborted = world.meta.attempts.abort(old.attempt_id, "killed", "test")
    assert (aborted.state, aborted.reason) == (AttemptState.ABORTED, "killed")
    assert world.meta.attempts.abort(old.attempt_id, "killed again", "test") == aborted
    assert world.request(1, "load").attempt_id > old.attempt_id
    with pytest.raises(FencedAttemptError, match=r"ABORTED \(killed\)"):
        world.close(old)


def test_of_an_error_no_password_is_kept(world: World) -> None:
    """Not in the audit either, from which those are told who are told of failures."""
    world.open(1)
    error = "no route to jdbc:postgresql://db/dwh?user=dwh&password=geheim"
    aborted = world.meta.attempts.abort(world.start(1, "load").attempt_id, error, "test")
    assert aborted.reason == "no route to jdbc:postgresql://db/dwh?user=dwh&password=***"
    world.meta.barriers.abort("shopping", 1, error, "test")
    assert world.barrier(1).reason == aborted.reason
    details = [str(entry.detail) for entry in world.meta.audit.newest("shopping")]
    assert sum("password=***" in each for each in details) == 2
    assert not any("geheim" in each for each in details)


@pytest.mark.kills("kill-spares")
def test_a_kill_leaves_what_is_processed_alone(world: World) -> None:
    world.open(1)
    attempt = world.process(1, "load")
    assert world.meta.attempts.abort(attempt.attempt_id, "killed", "test") == attempt
    assert world.tables(1)[SHOPPING] is TableState.PROCESSED


@pytest.mark.kills("rebase-only-running")
def test_reports_out_of_order_are_refused(world: World) -> None:
    world.open(1)
    attempt = world.request(1, "load")
    with pytest.raises(IllegalTransitionError, match="REQUESTED and cannot become CLOSED"):
        world.meta.attempts.close(attempt.attempt_id, {SHOPPING: StagedTable(SHOPPING, 1)}, "test")
    with pytest.raises(IllegalTransitionError, match="expected RUNNING to build on other snapshots, found REQUESTED"):
        world.meta.attempts.rebase(attempt.attempt_id, {SHOPPING: 1})
    started = world.start(1, "load")
    with pytest.raises(IllegalTransitionError, match="RUNNING and cannot become PROCESSED"):
        world.meta.attempts.report(started.attempt_id, "test")


@pytest.mark.kills("closing-again")
def test_closing_twice_is_fine_if_it_says_the_same(world: World) -> None:
    world.open(1)
    attempt = world.start(1, "load")
    closing = staged(attempt)
    closed = world.meta.attempts.close(attempt.attempt_id, closing, "test")
    assert world.meta.attempts.close(attempt.attempt_id, closing, "test") == closed
    with pytest.raises(IllegalTransitionError, match="CLOSED and cannot become CLOSED"):
        world.meta.attempts.close(attempt.attempt_id, staged(attempt), "test")


@pytest.mark.kills("only-declared-outlets", "silent-outlet")
@pytest.mark.parametrize(
    ("closing", "error", "named"),
    [
        ({}, SilentOutletError, SHOPPING),
        ({SHOPPING: StagedTable(SHOPPING, None)}, SilentOutletError, SHOPPING),
        ({SHOPPING: StagedTable(SHOPPING, 1), "shop.x": StagedTable("shop.x", 2)}, UndeclaredTableError, "shop.x"),
    ],
)
def test_a_closing_record_speaks_of_every_outlet_and_of_no_other(
    world: World, closing: dict[str, StagedTable], error: type[BarrierError], named: str
) -> None:
    world.open(1)
    attempt = world.start(1, "load")
    with pytest.raises(error, match=named):
        world.meta.attempts.close(attempt.attempt_id, closing, "test")
    assert world.meta.attempts.get(attempt.attempt_id).state is AttemptState.RUNNING


@pytest.mark.kills("only-declared-outlets")
def test_bases_follow_a_compaction(world: World) -> None:
    world.committed(1)
    world.open(2)
    attempt = world.start(2, "load")
    rebased = world.meta.attempts.rebase(attempt.attempt_id, {SHOPPING: 99})
    assert rebased.bases == {SHOPPING: 99}
    with pytest.raises(UndeclaredTableError, match=r"shop\.price"):
        world.meta.attempts.rebase(attempt.attempt_id, {PRICE: 1})
    world.close(attempt, unchanged=True)
    world.meta.attempts.report(attempt.attempt_id, "test")
    assert world.snapshots(2)[SHOPPING] == 99


@pytest.mark.kills("audited", "precommit-needs-all-tables")
def test_the_last_table_makes_the_barrier_precommit(world: World) -> None:
    world.open(1)
    for job in ("load", "price", "amount"):
        world.process(1, job)
        assert world.state(1) is BarrierState.OPEN
    world.process(1, "top")
    assert world.state(1) is BarrierState.PRECOMMIT
    assert world.barrier(1).precommit_at is not None


def test_an_unchanged_table_is_carried_from_where_it_was_staged(world: World) -> None:
    world.open(1, baseline={AMOUNT: 11, PRICE: None, SHOPPING: None, TOP: None})
    world.process(1, "load")
    world.process(1, "amount", unchanged=True)
    world.process(1, "price")
    for number in (2, 3):
        world.open(number)
        world.process(number, "load")
        world.process(number, "amount", unchanged=True)
        world.process(number, "price", unchanged=True)

    def carried(barrier_id: int, table: str) -> tuple[int | None, int | None]:
        row = next(row for row in world.meta.barriers.progress("shopping", barrier_id) if row.table == table)
        return row.carried_from, row.snapshot_id

    price = world.snapshots(1)[PRICE]
    assert [carried(number, AMOUNT) for number in (1, 2, 3)] == [(0, 11), (0, 11), (0, 11)]
    assert [carried(number, PRICE) for number in (1, 2, 3)] == [(None, price), (1, price), (1, price)]


def test_a_job_runs_ahead_of_barriers_that_others_still_work_on(world: World) -> None:
    for number in (1, 2, 3):
        world.open(number)
        world.process(number, "load")
        world.process(number, "price")
    assert [world.state(number) for number in (1, 2, 3)] == [BarrierState.OPEN] * 3
    for number in (1, 2, 3):
        world.process_all(number)
    assert [world.state(number) for number in (1, 2, 3)] == [BarrierState.PRECOMMIT] * 3


def test_who_has_no_part_in_the_barrier_gets_no_attempt(world: World) -> None:
    world.open(1)
    with pytest.raises(TopologyError, match="no job 'lode'; it has: amount, load, price, top"):
        world.request(1, "lode")
    with pytest.raises(UnknownBarrierError, match="barrier 2 of shopping"):
        world.request(2, "load")
    with pytest.raises(UnknownBarrierError, match="attempt 12345"):
        world.meta.attempts.get(12345)


@pytest.mark.kills("decided-takes-no-attempt")
def test_from_committing_on_only_a_retry_gets_an_answer(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.begin_commit(1)
    for _ in range(2):  # COMMITTING, then COMMIT
        with pytest.raises(AlreadyCommittedError, match="correct them at a later barrier"):
            world.request(1, "load", generation="cleared")
        assert world.request(1, "load").state is AttemptState.PROCESSED
        world.publish(1)


@pytest.mark.kills("aborted-takes-nothing")
def test_an_aborted_barrier_takes_no_reports(world: World) -> None:
    world.open(1)
    attempt = world.start(1, "load")
    waiting = world.request(1, "amount")
    world.abort(1)
    for report in (
        lambda: world.close(attempt),
        lambda: world.meta.attempts.start(waiting.attempt_id),
        lambda: world.request(1, "price"),
    ):
        with pytest.raises(BarrierAbortedError, match=r"was aborted \(bad input\)"):
            report()


@pytest.mark.kills("owner-reports")
def test_a_dag_neither_does_nor_reports_the_work_of_anothers_job(world: World) -> None:
    world.open(1)
    told = r"job load of barrier 1 .*its owner, DAG dag, found DAG other.*topology leave shopping --dag dag --job load"
    ask = {"request_key": "key", "generation": "g1", "actor": "test"}
    with pytest.raises(NotOwnerError, match=told):
        world.meta.attempts.request(Request("shopping", 1, "load", owner="other", **ask))
    assert world.meta.attempts.current("shopping", 1, "load") is None
    attempt = world.meta.attempts.request(Request("shopping", 1, "load", owner="dag", **ask))
    world.start(1, "load")
    with pytest.raises(NotOwnerError, match=told):
        world.meta.attempts.close(
            attempt.attempt_id, staged(world.meta.attempts.get(attempt.attempt_id)), "test", "other"
        )
    world.meta.attempts.close(attempt.attempt_id, staged(world.meta.attempts.get(attempt.attempt_id)), "test", "dag")
    with pytest.raises(NotOwnerError, match=told):
        world.meta.attempts.report(attempt.attempt_id, "test", "other")
    assert world.tables(1)[SHOPPING] is TableState.PENDING
    world.meta.attempts.report(attempt.attempt_id, "test", "dag")
    assert world.tables(1)[SHOPPING] is TableState.PROCESSED


@pytest.mark.kills("moved-job-is-told")
def test_a_job_that_has_moved_finds_earlier_barriers_done(world: World) -> None:
    world.committed(1)
    ask = {"request_key": "other/run/load", "generation": "g1", "actor": "other"}
    with pytest.raises(AlreadyCommittedError, match=r"found COMMIT; DAG dag, which owned the job then, has done it"):
        world.meta.attempts.request(Request("shopping", 1, "load", owner="other", **ask))


def test_which_try_failed_is_kept_with_what_failed(world: World) -> None:
    tried, again_at = world.meta.attempts.tried, world.meta.now()

    def known(attempt: Attempt) -> tuple[int | None, int | None, datetime | None]:
        found = world.meta.attempts.get(attempt.attempt_id)
        return found.tried, found.tries, found.again_at

    world.open(1)
    tried("try 1", Tries(1, 3, again_at))  # it failed before it asked for anything
    running = world.start(1, "load")
    tried("try 1", Tries(1, 3, again_at))
    assert known(running) == (None, None, None), "it is at work"
    world.meta.attempts.abort(running.attempt_id, "failed", "test")
    before = world.meta.topologies.change_count("shopping")
    tried("try 1", Tries(2, 3, None))
    assert world.meta.topologies.change_count("shopping") > before, "who looks at it looks again"
    assert known(running) == (2, 3, None)
    tried("try 1", Tries(1, 3, again_at))
    assert known(running) == (2, 3, None), "one that slept"
