"""One barrier over three tables: opened, staged, checked, committed; and every way in which that may go wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import NotYet, commit_barrier
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.coordinator.staging import (
    Adopted,
    Asking,
    Waiting,
    begin,
    begin_again,
    close,
    closing_uri,
    give_up,
)
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    BarrierAbortedError,
    BarrierOrderError,
    FencedAttemptError,
    ForeignWriteError,
    MissingTableError,
    NotClosedError,
    StagedTableError,
    TableClaimedError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.replacing import replace_files
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, MONDAY, PRICE, SHOPPING, Shop

ROWS = [{"amount": 100, "price": 1000}]
MORE = [{"amount": 200, "price": 1500}]


def totals_at(shop: Shop, level: Level) -> dict[str, int]:
    resolution = shop.deployment.meta.answers.resolve("shopping", level)
    return {name: shop.total(name, table.snapshot_id) for name, table in resolution.tables.items()}


def average_price(shop: Shop, level: Level) -> float:
    totals = totals_at(shop, level)
    return round(totals[PRICE] / totals[AMOUNT], 5)


def test_nothing_is_visible_before_commit_and_all_of_it_after(shop: Shop) -> None:
    barrier = shop.open(1)
    assert shop.process_all(barrier, ROWS).state is BarrierState.PRECOMMIT
    assert shop.deployment.tables.mains([SHOPPING, AMOUNT, PRICE]) == {SHOPPING: None, AMOUNT: None, PRICE: None}
    committed = shop.commit(barrier)
    assert committed.barrier.state is BarrierState.COMMIT
    assert shop.main_totals() == {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}
    for table in (SHOPPING, AMOUNT, PRICE):
        refs = shop.deployment.tables.load(table).metadata.refs
        assert set(refs) == {"main", barrier.tag}, "attempt branches go with the publish"
    specs = Path(shop.deployment.tables.location("_barrier")).rglob("*.spec.json")
    assert not list(specs), "and so do the epoch specs"


def test_catalog_and_metaservice_in_two_databases(shop_apart: Shop) -> None:
    assert not shop_apart.deployment.shares_database
    barrier = shop_apart.open(1)
    shop_apart.process_all(barrier, ROWS)
    shop_apart.commit(barrier)
    assert shop_apart.main_totals() == {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}


def test_the_seeds_example_at_each_level(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.commit(first)
    second = shop.open(2)
    shop.process(second, "load", MORE)
    shop.process(second, "price", MORE)
    assert [average_price(shop, level) for level in Level] == [25, 10, 10]
    shop.process(second, "amount", MORE)
    assert [average_price(shop, level) for level in Level] == [8.33333, 8.33333, 10]
    # the job fails after PRECOMMIT and is staged anew: read committed falls back, repeatable read never moves
    ready = shop.begin(second, "amount", generation="cleared")
    assert [average_price(shop, level) for level in Level] == [25, 10, 10]
    close(shop.deployment, ready.attempt, record=shop.write(ready, MORE), actor="test")
    shop.commit(second)
    assert [average_price(shop, level) for level in Level] == [8.33333, 8.33333, 8.33333]


def test_a_job_waits_for_its_inlets_and_for_its_own_predecessor(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    waiting = begin(shop.deployment, second, "amount", Asking(request_key="k", generation="g0", actor="test"))
    assert isinstance(waiting, Waiting)
    assert {(need.table, need.barrier_id, need.job) for need in waiting.needs} == {
        (SHOPPING, 2, "load"),
        (SHOPPING, 1, "load"),
        (AMOUNT, 1, "amount"),
    }
    shop.process(first, "load", ROWS)
    shop.process(first, "amount", ROWS)
    shop.process(second, "load", MORE)
    ready = begin_again(shop.deployment, waiting.attempt.attempt_id, Asking("k", "g0", "test"))
    assert not isinstance(ready, (Waiting, Adopted))
    assert shop.deployment.meta.attempts.get(waiting.attempt.attempt_id).waited_for, "kept for delay analysis"


def test_jobs_go_ahead_of_an_uncommitted_barrier_and_commit_takes_it_along(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    shop.process_all(first, ROWS)
    shop.process_all(second, MORE)
    committed = shop.commit(second)
    assert [b.barrier_id for b in committed.published] == [first.barrier_id, second.barrier_id]
    assert shop.main_totals() == {SHOPPING: 2500, AMOUNT: 300, PRICE: 2500}
    assert shop.commit(first).published == ()


def test_commit_waits_for_the_barrier_before_and_names_what_is_missing(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    shop.process(first, "load", ROWS)
    not_yet = commit_barrier(shop.deployment, "shopping", second.barrier_id, actor="test")
    assert isinstance(not_yet, NotYet)
    assert not_yet.barrier.barrier_id == first.barrier_id
    assert [progress.job for progress in not_yet.missing] == ["amount", "price"]


def test_a_retry_adopts_what_the_driver_closed(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    record = shop.write(ready, ROWS)
    shop.deployment.tables.write_text(closing_uri(shop.deployment, ready.attempt), record.dumps(ready.spec.nonce))
    # here the worker dies; the next try of the same task finds the driver's closing record
    adopted = begin(shop.deployment, barrier, "load", Asking(request_key="k", generation="g0", actor="test"))
    assert isinstance(adopted, Adopted)
    assert adopted.attempt.attempt_id == ready.attempt.attempt_id


def test_a_retry_without_a_closing_record_fences_the_zombie(shop: Shop) -> None:
    barrier = shop.open(1)
    zombie = shop.begin(barrier, "load")
    record = shop.write(zombie, MORE)
    shop.process(barrier, "load", ROWS)
    with pytest.raises(FencedAttemptError):
        close(shop.deployment, zombie.attempt, record=record, actor="zombie")
    shop.process(barrier, "amount", ROWS)
    shop.process(barrier, "price", ROWS)
    shop.commit(barrier)
    assert shop.main_totals()[SHOPPING] == 1000


@pytest.mark.kills("closing-record")
def test_a_driver_that_died_before_its_last_write_is_not_processed(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    shop.write(ready, ROWS)
    with pytest.raises(NotClosedError, match="closing record"):
        close(shop.deployment, ready.attempt, actor="test")
    assert shop.deployment.meta.attempts.get(ready.attempt.attempt_id).state is AttemptState.ABORTED
    shop.process(barrier, "load", ROWS)


@pytest.mark.kills("trust-the-table", "bad-staging-is-given-up", "unchanged-is-unwritten")
def test_trust_the_table_not_the_reporter(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    shop.write(ready, ROWS)
    lie = ClosingRecord(ready.attempt.attempt_id, {SHOPPING: StagedTable(SHOPPING, 4711)})
    with pytest.raises(StagedTableError, match="4711"):
        close(shop.deployment, ready.attempt, record=lie, actor="test")
    again = shop.begin(barrier, "load")
    shop.write(again, ROWS)
    lie = ClosingRecord(again.attempt.attempt_id, {SHOPPING: StagedTable(SHOPPING, None, unchanged=True)})
    with pytest.raises(StagedTableError, match="unchanged"):
        close(shop.deployment, again.attempt, record=lie, actor="test")
    third = shop.begin(barrier, "load")
    shop.deployment.meta.attempts.close(third.attempt.attempt_id, {SHOPPING: StagedTable(SHOPPING, 4711)}, "a driver")
    with pytest.raises(StagedTableError, match="4711"):
        shop.begin(barrier, "load")  # which adopts what is closed
    assert shop.begin(barrier, "load").attempt.attempt_id > third.attempt.attempt_id, "not for ever"


def changes_nothing(shop: Shop, barrier: Barrier) -> None:
    for job in ("load", "amount", "price"):
        ready = shop.begin(barrier, job)
        staged = {table: StagedTable(table, None, unchanged=True) for table in ready.spec.bases}
        record = ClosingRecord(ready.attempt.attempt_id, staged)
        close(shop.deployment, ready.attempt, record=record, actor="test")


def test_an_unchanged_table_is_carried(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.commit(first)
    second = shop.open(2)
    changes_nothing(shop, second)
    before = shop.deployment.tables.mains([SHOPPING])
    shop.commit(second)
    assert shop.deployment.tables.mains([SHOPPING]) == before
    assert {p.carried_from for p in shop.deployment.meta.barriers.progress("shopping", second.barrier_id)} == {
        first.barrier_id
    }
    assert second.tag in shop.deployment.tables.load(SHOPPING).metadata.refs
    shop.process_all(third := shop.open(3), MORE)
    shop.commit(third)
    assert shop.main_totals() == {SHOPPING: 2500, AMOUNT: 300, PRICE: 2500}


def test_the_tag_of_a_carried_table_keeps_what_readers_are_given(shop: Shop) -> None:
    """Also where somebody has compacted `main` meanwhile, and the tag of the barrier before goes."""
    shop.process_all(first := shop.open(1), ROWS)
    shop.commit(first)
    second = shop.open(2)
    changes_nothing(shop, second)
    compacted = replace_files(shop.deployment.tables, SHOPPING, "main")
    shop.commit(second)
    assert shop.deployment.tables.mains([SHOPPING]) == {SHOPPING: compacted}
    answer = shop.deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ)
    refs = shop.deployment.tables.load(SHOPPING).metadata.refs
    assert refs[second.tag].snapshot_id == answer.tables[SHOPPING].snapshot_id


def test_clear_before_committing_restages_what_consumed_it(shop: Shop) -> None:
    first, second = shop.open(1), shop.open(2)
    shop.process_all(first, ROWS)
    shop.process_all(second, ROWS)
    ready = shop.begin(first, "load", generation="cleared")
    meta = shop.deployment.meta
    assert {b.state for b in (meta.barriers.get("shopping", 1), meta.barriers.get("shopping", 2))} == {
        BarrierState.OPEN
    }
    voided = {a.job for n in (1, 2) for a in meta.attempts.of("shopping", n) if a.state is AttemptState.VOIDED}
    assert voided == {"load", "amount", "price"}
    close(shop.deployment, ready.attempt, record=shop.write(ready, MORE), actor="test")
    for barrier, rows in ((first, MORE), (second, ROWS)):
        for job in ("load", "amount", "price"):
            if (barrier, job) != (first, "load"):
                shop.process(barrier, job, rows, generation="cleared")
    shop.commit(second)
    assert shop.main_totals() == {SHOPPING: 2500, AMOUNT: 300, PRICE: 2500}


def test_clear_from_committing_on_is_refused(shop: Shop) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    shop.commit(barrier)
    with pytest.raises(AlreadyCommittedError):
        shop.begin(barrier, "load", generation="cleared")


def test_commit_is_rolled_forward_by_anyone_after_the_decision(shop: Shop) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    shop.deployment.meta.publishing.begin("shopping", 1, {SHOPPING: None, AMOUNT: None, PRICE: None}, "who dies here")
    assert shop.commit(barrier).barrier.state is BarrierState.COMMIT
    assert shop.main_totals()[PRICE] == 1000


def test_a_publish_without_a_shared_database_is_resumed(shop_apart: Shop) -> None:
    from airflow_barrier.coordinator import committing

    shop_apart.process_all(barrier := shop_apart.open(1), ROWS)
    meta = shop_apart.deployment.meta
    meta.publishing.begin("shopping", 1, {SHOPPING: None, AMOUNT: None, PRICE: None}, "who dies after publishing")
    shop_apart.deployment.tables.publish(
        committing.publications_of(shop_apart.deployment, meta.barriers.get("shopping", 1))
    )
    assert shop_apart.commit(barrier).barrier.state is BarrierState.COMMIT
    assert shop_apart.main_totals() == {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}


def append_to_main(shop: Shop, table: str) -> None:
    import pyarrow as pa

    iceberg = shop.deployment.tables.load(table)
    iceberg.append(pa.table({"amount": [1]}, schema=iceberg.schema().as_arrow()))


@pytest.mark.kills("decided-by-another")
def test_a_foreign_write_is_noticed_before_the_decision(shop: Shop) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    append_to_main(shop, AMOUNT)
    with pytest.raises(ForeignWriteError, match=AMOUNT):
        shop.commit(barrier)
    assert shop.deployment.meta.barriers.get("shopping", 1).state is BarrierState.PRECOMMIT
    assert shop.deployment.tables.mains([SHOPPING]) == {SHOPPING: None}, "nothing of it was published"


def test_a_foreign_write_after_the_decision_blocks(shop: Shop) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    shop.deployment.meta.publishing.begin("shopping", 1, {SHOPPING: None, AMOUNT: None, PRICE: None}, "test")
    append_to_main(shop, AMOUNT)
    with pytest.raises(ForeignWriteError, match=AMOUNT):
        shop.commit(barrier)
    assert shop.deployment.meta.barriers.get("shopping", 1).state is BarrierState.BLOCKED
    assert shop.deployment.tables.mains([SHOPPING]) == {SHOPPING: None}, "all or nothing"
    with pytest.raises(ForeignWriteError, match="BLOCKED"):
        shop.commit(barrier)


def test_an_aborted_barrier_takes_later_ones_and_its_timestamp_may_reopen(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.commit(first)
    second, third = shop.open(2), shop.open(3)
    running = shop.begin(second, "load")
    aborted = abort_barrier(shop.deployment, "shopping", second.barrier_id, reason="bad input", actor="test")
    assert [b.barrier_id for b in aborted] == [second.barrier_id, third.barrier_id]
    with pytest.raises(BarrierAbortedError):
        close(shop.deployment, running.attempt, record=shop.write(running, MORE), actor="test")
    again = shop.open(2)
    assert again.barrier_id == 4
    assert again.predecessor == first.barrier_id
    shop.process_all(again, MORE)
    shop.commit(again)
    assert shop.main_totals() == {SHOPPING: 2500, AMOUNT: 300, PRICE: 2500}


def test_a_killed_attempt_is_given_up_and_the_next_counts(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    give_up(shop.deployment, ready.attempt.attempt_id, reason="killed", actor="test")
    with pytest.raises(FencedAttemptError):
        close(shop.deployment, ready.attempt, record=shop.write(ready, MORE), actor="test")
    shop.process(barrier, "load", ROWS)


def test_a_clock_that_goes_backwards(shop: Shop) -> None:
    shop.open(2)
    with pytest.raises(BarrierOrderError, match="2026-01-06"):
        shop.open(1)


def test_the_same_timestamp_is_observed_not_fought_over(shop: Shop) -> None:
    barrier = shop.open(1)
    again = open_barrier(
        shop.deployment,
        Fragment("shopping", "shopping_dag", shop.deployment.meta.topologies.get("shopping").jobs),
        MONDAY + timedelta(days=1),
        timestamp_from="test",
        run=run_of("another run"),
        actor="test",
    )
    assert isinstance(again, Opened)
    assert not again.created
    assert again.barrier.barrier_id == barrier.barrier_id


def test_no_more_than_max_open_barriers(shop: Shop) -> None:
    for day in range(1, 5):
        shop.open(day)
    fragment = Fragment("shopping", "shopping_dag", shop.deployment.meta.topologies.get("shopping").jobs)
    later = open_barrier(
        shop.deployment, fragment, MONDAY + timedelta(days=5), timestamp_from="test", run=run_of("5"), actor="test"
    )
    assert isinstance(later, Later)
    assert "max_open_barriers=4" in later.reason


def test_a_table_that_is_not_in_the_catalog(shop: Shop) -> None:
    jobs = (Job("load", "other_dag", outlets=("shop.not_created",)),)
    with pytest.raises(MissingTableError, match=r"shop\.not_created"):
        shop.open(1, Fragment("other", "other_dag", jobs))


def test_two_topologies_cannot_own_one_table(shop: Shop) -> None:
    shop.open(1)
    with pytest.raises(TableClaimedError, match=f"{SHOPPING}.*shopping"):
        shop.open(1, Fragment("other", "other_dag", (Job("load", "other_dag", outlets=(SHOPPING,)),)))


def test_tags_follow_the_policy(shop: Shop) -> None:
    from dataclasses import replace

    from airflow_barrier.protocol.tags import TagPolicy

    shop.deployment = replace(shop.deployment, tag_policy=TagPolicy(newest=2))
    for day in range(1, 5):
        shop.process_all(barrier := shop.open(day), ROWS)
        shop.commit(barrier)
    assert set(shop.deployment.tables.load(PRICE).metadata.refs) == {
        "main",
        "barrier_shopping_b3_r0",
        "barrier_shopping_b4_r0",
    }
