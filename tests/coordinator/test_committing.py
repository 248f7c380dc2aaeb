"""Which barriers a commit takes along, and what happens to a committer that others overtake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.coordinator import committing
from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import NotYet, commit_barrier
from airflow_barrier.coordinator.journal import entry_uri
from airflow_barrier.protocol.errors import BarrierAbortedError, BarrierBlockedError, HeadMovedError, RefTakenError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables._metadata import Changes
from airflow_barrier.tables.port import Publication
from tests.support.shop import AMOUNT, PRICE, SHOPPING, Shop

ROWS = [{"amount": 100, "price": 1000}]


def commit(shop: Shop, barrier: Barrier) -> Any:
    return commit_barrier(shop.deployment, "shopping", barrier.barrier_id, actor="test")


def states(shop: Shop, *barriers: Barrier) -> list[BarrierState]:
    return [shop.deployment.meta.barriers.get("shopping", barrier.barrier_id).state for barrier in barriers]


@pytest.mark.kills("commits-no-further")
def test_a_commit_takes_no_later_barrier_along(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.process_all(second := shop.open(2), ROWS)
    assert [each.barrier_id for each in commit(shop, first).published] == [first.barrier_id]
    assert states(shop, first, second) == [BarrierState.COMMIT, BarrierState.PRECOMMIT]


@pytest.mark.kills("aborted-is-told")
def test_the_commit_of_an_aborted_barrier_commits_no_earlier_one_either(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.process_all(second := shop.open(2), ROWS)
    abort_barrier(shop.deployment, "shopping", second.barrier_id, reason="bad input", actor="test")
    with pytest.raises(BarrierAbortedError, match="bad input"):
        commit(shop, second)
    assert states(shop, first, second) == [BarrierState.PRECOMMIT, BarrierState.ABORTED]


@pytest.mark.kills("aborted-is-told")
def test_a_barrier_that_is_aborted_under_its_committer_is_not_called_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    meta = shop.deployment.meta
    look = meta.barriers.uncommitted

    def aborted_before(topology: str) -> list[Barrier]:
        abort_barrier(shop.deployment, topology, barrier.barrier_id, reason="bad input", actor="another")
        return look(topology)

    monkeypatch.setattr(meta.barriers, "uncommitted", aborted_before)
    with pytest.raises(BarrierAbortedError, match="bad input"):
        commit(shop, barrier)


@pytest.mark.kills("open-is-told")
def test_an_open_barrier_is_neither_published_nor_written_into_the_journal(shop_apart: Shop) -> None:
    """Where catalog and MetaService are two databases, tables are published before the MetaService is asked."""
    barrier = shop_apart.open(1)
    shop_apart.process(barrier, "load", ROWS)
    assert isinstance(commit(shop_apart, barrier), NotYet)
    tables = shop_apart.deployment.tables
    assert set(tables.mains([SHOPPING, AMOUNT, PRICE]).values()) == {None}
    assert not tables.exists(entry_uri(shop_apart.deployment, "shopping", barrier.barrier_id))


@pytest.mark.kills("blocked-is-told")
def test_a_blocked_barrier_goes_on_when_a_person_says_so_and_not_when_the_table_is_mended(shop_apart: Shop) -> None:
    """Where catalog and MetaService are two databases, tables are published before the MetaService is asked."""
    shop_apart.process_all(barrier := shop_apart.open(1), ROWS)
    shop_apart.deployment.meta.publishing.begin("shopping", 1, {SHOPPING: None, AMOUNT: None, PRICE: None}, "test")
    tables = shop_apart.deployment.tables
    table = tables.load(AMOUNT)
    table.append(pa.table({"amount": [1]}, schema=table.schema().as_arrow()))
    with pytest.raises(BarrierBlockedError):
        commit(shop_apart, barrier)
    tables._committer.commit({AMOUNT: lambda *_: Changes(drop=frozenset({"main"}))})
    with pytest.raises(BarrierBlockedError, match="is BLOCKED"):
        commit(shop_apart, barrier)
    assert set(tables.mains([SHOPPING, AMOUNT, PRICE]).values()) == {None}
    assert states(shop_apart, barrier) == [BarrierState.BLOCKED]


@pytest.mark.kills("decided-by-another")
def test_what_another_committer_published_meanwhile_is_no_foreign_write(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    look = committing.current_mains

    def overtaken(*arguments: Any) -> dict[str, int | None]:
        monkeypatch.setattr(committing, "current_mains", look)
        shop.commit(barrier)
        return look(*arguments)

    monkeypatch.setattr(committing, "current_mains", overtaken)
    assert commit(shop, barrier).barrier.state is BarrierState.COMMIT
    assert committing.current_mains is look, "it was overtaken where it looked"


@pytest.mark.kills("looks-run-out")
def test_a_commit_does_not_chase_tables_that_keep_moving(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person moves `main` away whenever it is to be published, and has it back when the committer looks."""
    shop.process_all(barrier := shop.open(1), ROWS)
    tables = shop.deployment.tables
    table = tables.load(AMOUNT)
    table.append(pa.table({"amount": [1]}, schema=table.schema().as_arrow()), branch="theirs")
    elsewhere = table.refs()["theirs"].snapshot_id
    staging, findings, tries = tables.staging, tables.findings, []

    @contextmanager
    def moved(publications: Sequence[Publication]) -> Iterator[Any]:
        with staging(publications) as staged:
            tables._committer.commit({AMOUNT: lambda *_: Changes(branches={"main": elsewhere})})
            tries.append(publications)
            yield staged

    def back(publications: Sequence[Publication]) -> Any:
        tables._committer.commit({AMOUNT: lambda *_: Changes(drop=frozenset({"main"}))})
        return findings(publications)

    monkeypatch.setattr(tables, "staging", moved)
    monkeypatch.setattr(tables, "findings", back)
    with pytest.raises(HeadMovedError, match=rf"expected no table to change.*{AMOUNT}.*{elsewhere}"):
        commit(shop, barrier)
    assert len(tries) == committing.LOOKS
    assert states(shop, barrier) == [BarrierState.COMMITTING]
    monkeypatch.undo()
    assert commit(shop, barrier).barrier.state is BarrierState.COMMIT, "the next try goes on from there"


@pytest.mark.kills("looks-run-out")
def test_a_commit_does_not_chase_snapshots_that_keep_changing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One revision after the other is published between the committer's look and its decision."""
    shop.process_all(barrier := shop.open(1), ROWS)
    looks = []

    def revised(*arguments: Any) -> None:
        looks.append(arguments)
        raise HeadMovedError(f"{barrier}: found that revision {len(looks)} was published: look again")

    monkeypatch.setattr(shop.deployment.meta.publishing, "begin", revised)
    with pytest.raises(HeadMovedError, match=r"expected its snapshots to stay.*revision 3 was published.*try again"):
        commit(shop, barrier)
    assert len(looks) == committing.LOOKS
    assert states(shop, barrier) == [BarrierState.PRECOMMIT]
    monkeypatch.undo()
    assert commit(shop, barrier).barrier.state is BarrierState.COMMIT, "the next try goes on from there"


@pytest.mark.kills("last-look")
def test_what_a_decided_barrier_would_be_blocked_by_refuses_one_that_is_not_decided(shop: Shop) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    # somebody takes the tag's name: main itself is as expected
    there = shop.deployment.tables.load(SHOPPING).metadata.snapshots[0].snapshot_id
    shop.deployment.tables.pin(SHOPPING, barrier.tag, there)
    with pytest.raises(RefTakenError, match=f"expected no ref {barrier.tag}"):
        commit(shop, barrier)
    assert states(shop, barrier) == [BarrierState.PRECOMMIT]
