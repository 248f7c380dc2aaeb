"""Decide once, publish with the tables' own swap, and be repeatable by anyone."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from airflow_barrier.metaservice.commits import Settled
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    BarrierBlockedError,
    ConfigurationError,
    ForeignWriteError,
    HeadMovedError,
    IllegalTransitionError,
    NotPrecommitError,
    UnknownTableError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState, Decision, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import AMOUNT, PRICE, SHOPPING, TOP, World


@pytest.fixture
def ready(world: World) -> World:
    """Barriers 1 and 2 are PRECOMMIT."""
    for number in (1, 2):
        world.open(number)
        world.process_all(number)
    return world


def test_from_precommit_to_commit(ready: World) -> None:
    expected = {AMOUNT: 2**62, PRICE: 12, SHOPPING: None, TOP: None}
    decided = ready.begin_commit(1, expected)
    assert decided.state is BarrierState.COMMITTING
    assert {p.table: p.expected_snapshot for p in ready.meta.barriers.progress("shopping", 1)} == expected
    assert ready.publish(1)
    barrier = ready.barrier(1)
    assert barrier.state is BarrierState.COMMIT
    assert set(ready.tables(1).values()) == {TableState.WRITTEN}
    times = [barrier.opened_at, barrier.precommit_at, barrier.committing_at, barrier.commit_at]
    assert times == sorted(time for time in times if time is not None)


@pytest.mark.kills("decided-once", "published-once")
def test_again_changes_nothing(ready: World) -> None:
    decided = ready.begin_commit(1)
    assert ready.begin_commit(1, dict.fromkeys(ready.tables(1), 5)) == decided, "the first decision stands"
    assert ready.publish(1)
    entries = ready.meta.audit.newest("shopping", limit=1000)
    assert not ready.publish(1)
    assert ready.begin_commit(1).state is BarrierState.COMMIT
    assert ready.meta.audit.newest("shopping", limit=1000) == entries


def test_the_swap_and_commit_are_one_transaction(ready: World) -> None:
    ready.begin_commit(1)
    with ready.meta.publishing.swapping("shopping", 1, "test") as connection:
        assert connection is not None
        connection.execute(text("CREATE TABLE iceberg_tables (table_name TEXT, metadata_location TEXT)"))
        connection.execute(text("INSERT INTO iceberg_tables VALUES ('amount', 'v2.json')"))
    ready.begin_commit(2)

    def swap_and_fail() -> None:
        with ready.meta.publishing.swapping("shopping", 2, "test") as connection:
            assert connection is not None
            connection.execute(text("UPDATE iceberg_tables SET metadata_location = 'v3.json'"))
            raise ForeignWriteError("somebody moved it")

    with pytest.raises(ForeignWriteError):
        swap_and_fail()
    assert ready.state(2) is BarrierState.COMMITTING
    assert set(ready.tables(2).values()) == {TableState.PROCESSED}
    with ready.meta.publishing.swapping("shopping", 2, "test") as connection:
        assert connection is not None
        assert connection.execute(text("SELECT metadata_location FROM iceberg_tables")).scalar_one() == "v2.json"


@pytest.mark.kills("barriers-commit-in-order")
def test_in_order_only(ready: World) -> None:
    with pytest.raises(
        NotPrecommitError, match=r"expected COMMIT of the barrier before it, found barrier 1 .*PRECOMMIT"
    ):
        ready.begin_commit(2)
    ready.begin_commit(1)
    with pytest.raises(NotPrecommitError, match=r"found barrier 1 .*COMMITTING"):
        ready.begin_commit(2)
    ready.publish(1)
    ready.commit(2)


@pytest.mark.kills("only-precommit-is-decided", "only-decided-is-published", "aborted-is-not-committed")
def test_what_is_not_precommit_says_who_is_missing(ready: World) -> None:
    ready.open(3)
    ready.process(3, "load")
    with pytest.raises(NotPrecommitError) as refused:
        ready.begin_commit(3)
    assert "shop.amount (job amount)" in str(refused.value)
    assert "shop.shopping" not in str(refused.value)
    with pytest.raises(NotPrecommitError, match="expected COMMITTING to publish it, found OPEN"):
        ready.publish(3)
    ready.abort(3)
    with pytest.raises(BarrierAbortedError):
        ready.begin_commit(3)
    with pytest.raises(BarrierAbortedError):
        ready.publish(3)


@pytest.mark.kills("expected-main-of-every-table")
def test_every_table_has_to_be_looked_at_before_the_decision(ready: World) -> None:
    with pytest.raises(ConfigurationError, match=r"found those of shop\.price"):
        ready.begin_commit(1, {PRICE: 1})
    assert ready.state(1) is BarrierState.PRECOMMIT


@pytest.mark.kills("blocked-waits-for-a-person", "blocked-again", "unblocked-again")
def test_blocked_until_a_person_decides(ready: World) -> None:
    ready.begin_commit(1)
    blocked = ready.meta.publishing.block("shopping", 1, "shop.price moved to 99", "commit")
    assert (blocked.state, blocked.reason) == (BarrierState.BLOCKED, "shop.price moved to 99")
    assert ready.meta.publishing.block("shopping", 1, "again", "commit") == blocked
    for attempt in (lambda: ready.begin_commit(1), lambda: ready.publish(1)):
        with pytest.raises(BarrierBlockedError, match=r"BLOCKED: shop\.price moved to 99"):
            attempt()
    with pytest.raises(NotPrecommitError, match="BLOCKED"):
        ready.begin_commit(2)
    unblocked = ready.meta.publishing.unblock("shopping", 1, "rolled back by hand", "alice")
    assert (unblocked.state, unblocked.reason) == (BarrierState.COMMITTING, None)
    assert ready.meta.publishing.unblock("shopping", 1, "again", "alice") == unblocked
    assert ready.publish(1)
    entry = next(entry for entry in ready.meta.audit.newest("shopping", 1) if entry.event == "unblocked")
    assert (entry.actor, entry.detail) == ("alice", {"reason": "rolled back by hand"})


def test_only_a_barrier_in_committing_can_be_blocked(ready: World) -> None:
    with pytest.raises(IllegalTransitionError, match="PRECOMMIT and cannot become BLOCKED"):
        ready.meta.publishing.block("shopping", 1, "r", "test")
    with pytest.raises(IllegalTransitionError, match="expected BLOCKED, found PRECOMMIT"):
        ready.meta.publishing.unblock("shopping", 1, "r", "test")
    assert ready.state(1) is BarrierState.PRECOMMIT


def settled(world: World, decision: Decision, table: str = AMOUNT, theirs: int | None = 99) -> Settled:
    return Settled(table, decision, theirs, world.snapshots(1).get(table), "asked the owner", "alice")


def test_a_person_keeps_ours(ready: World) -> None:
    ready.begin_commit(1)
    ready.meta.publishing.block("shopping", 1, "moved", "commit")
    ours, later = ready.snapshots(1)[AMOUNT], ready.tables(2)
    barrier, voided = ready.meta.publishing.settle("shopping", 1, settled(ready, Decision.KEEP_OURS))
    assert (barrier.state, barrier.reason, voided) == (BarrierState.COMMITTING, None, ())
    row = next(each for each in ready.meta.barriers.progress("shopping", 1) if each.table == AMOUNT)
    found = (row.decision, row.snapshot_id, row.expected_snapshot, row.set_aside)
    assert found == (Decision.KEEP_OURS, ours, 99, 99)
    assert ready.tables(2) == later, "nothing that was built on ours is touched"
    events = [(entry.kind, entry.actor, entry.detail) for entry in ready.meta.audit.newest("shopping", 1)][-2:]
    detail = {"table": AMOUNT, "reason": "asked the owner", "theirs": 99, "ours": ours}
    assert events == [("table", "alice", detail), ("barrier", "alice", detail)]
    assert ready.publish(1)


def test_a_person_adopts_theirs_and_what_stands_on_ours_is_staged_anew(ready: World) -> None:
    ready.begin_commit(1)
    ready.meta.publishing.block("shopping", 1, "moved", "commit")
    ours = ready.snapshots(1)[AMOUNT]
    barrier, voided = ready.meta.publishing.settle("shopping", 1, settled(ready, Decision.ADOPT_THEIRS))
    assert barrier.state is BarrierState.COMMITTING
    assert {(each.barrier_id, each.job) for each in voided} == {(2, "amount"), (2, "top")}
    assert ready.state(2) is BarrierState.OPEN
    row = next(each for each in ready.meta.barriers.progress("shopping", 1) if each.table == AMOUNT)
    assert (row.snapshot_id, row.set_aside, row.attempt_id, row.carried_from) == (99, ours, None, None)
    assert ready.meta.answers.resolve("shopping", Level.READ_COMMITTED).tables[AMOUNT].snapshot_id == 99
    ready.publish(1)
    ready.process_all(2, "g2")
    ready.commit(2)


def test_what_is_not_blocked_or_not_a_table_of_the_barrier_cannot_be_settled(ready: World) -> None:
    with pytest.raises(IllegalTransitionError, match="expected BLOCKED, found PRECOMMIT"):
        ready.meta.publishing.settle("shopping", 1, settled(ready, Decision.KEEP_OURS))
    ready.begin_commit(1)
    ready.meta.publishing.block("shopping", 1, "moved", "commit")
    with pytest.raises(UnknownTableError, match=r"found shop\.nothing"):
        ready.meta.publishing.settle("shopping", 1, settled(ready, Decision.KEEP_OURS, "shop.nothing"))
    assert ready.state(1) is BarrierState.BLOCKED


def test_a_publish_that_goes_by_another_decision_is_not_written_down(ready: World) -> None:
    planned = dict.fromkeys(ready.tables(1))
    ready.begin_commit(1, planned)
    ready.meta.publishing.block("shopping", 1, "moved", "commit")
    ready.meta.publishing.settle("shopping", 1, settled(ready, Decision.KEEP_OURS))
    with (
        pytest.raises(HeadMovedError, match="found another decision"),
        ready.meta.publishing.swapping("shopping", 1, "slept", planned),
    ):
        pass
    assert ready.state(1) is BarrierState.COMMITTING
    with ready.meta.publishing.swapping("shopping", 1, "awake", {**planned, AMOUNT: 99}) as connection:
        assert connection is not None
    assert ready.state(1) is BarrierState.COMMIT


def test_topologies_publish_independently(ready: World) -> None:
    other = World(ready.meta, "pricing", [Job("mine", "dag", outlets=("p.a",))])
    other.open(1)
    other.process_all(1)
    ready.begin_commit(1)
    other.commit(1)
    ready.publish(1)
