"""What has to be staged anew with a job: at its barrier and, since those build on it, at later ones."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.restaging import Membership, consumers, consumers_of_table, voided
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Job, Topology

LOAD = Job("load", "dag", outlets=("t.shopping",))
PRODUCTS = Job("products", "dag", outlets=("t.products",))
AMOUNT = Job("amount", "dag", inlets=("t.shopping",), outlets=("t.amount",))
PRICE = Job("price", "dag", inlets=("t.shopping",), outlets=("t.price",))
TOP = Job("top", "dag", inlets=("t.amount", "t.price"), outlets=("t.top",))
SPEND = Job("spend", "dag", inlets=("t.shopping", "t.products"), outlets=("t.spend",))
FULL = Topology.of("shopping", [LOAD, PRODUCTS, AMOUNT, PRICE, TOP, SPEND])


def in_a_row(*topologies: Topology, first: int = 1) -> list[Membership]:
    return [Membership(first + i, first + i - 1, topology) for i, topology in enumerate(topologies)]


def as_sets(found: dict[int, tuple[str, ...]]) -> dict[int, set[str]]:
    assert all(len(jobs) == len(set(jobs)) for jobs in found.values())
    return {barrier: set(jobs) for barrier, jobs in found.items()}


def test_at_its_own_barrier_what_is_downstream_without_the_job_itself() -> None:
    assert as_sets(dict(consumers(in_a_row(FULL), "amount"))) == {1: {"top"}}
    assert as_sets(dict(consumers(in_a_row(FULL), "load"))) == {1: {"amount", "price", "top", "spend"}}
    assert as_sets(dict(consumers(in_a_row(FULL), "top"))) == {1: set()}


def test_at_later_barriers_the_job_too_since_it_builds_on_its_own_outlets() -> None:
    assert as_sets(dict(consumers(in_a_row(FULL, FULL, FULL), "amount"))) == {
        1: {"top"},
        2: {"amount", "top"},
        3: {"amount", "top"},
    }


def test_a_reader_that_joins_later_compares_with_the_barrier_before() -> None:
    without = Topology.of("shopping", [LOAD, AMOUNT])
    with_price = Topology.of("shopping", [LOAD, AMOUNT, PRICE])
    assert as_sets(dict(consumers(in_a_row(without, with_price), "load"))) == {
        1: {"amount"},
        2: {"load", "amount", "price"},
    }


def test_a_job_that_left_takes_along_only_who_built_on_it() -> None:
    """`load` is staged anew at 1; at 2 it has left with its readers, so nothing there stands on it."""
    before = Topology.of("shopping", [LOAD, AMOUNT, PRODUCTS])
    after = Topology.of("shopping", [PRODUCTS])
    assert as_sets(dict(consumers(in_a_row(before, after), "load"))) == {1: {"amount"}, 2: set()}


def test_a_table_that_left_and_joined_anew_starts_from_a_baseline() -> None:
    without = Topology.of("shopping", [PRODUCTS])
    assert as_sets(dict(consumers(in_a_row(FULL, without, FULL), "amount"))) == {1: {"top"}, 2: set(), 3: set()}


def test_the_predecessor_counts_and_not_the_number() -> None:
    """Barrier 3 was aborted: 4 builds on 2."""
    barriers = [Membership(2, 1, FULL), Membership(4, 2, FULL)]
    assert as_sets(dict(consumers(barriers, "price"))) == {2: {"top"}, 4: {"price", "top"}}


def test_two_outlets_of_one_job_go_together() -> None:
    split = Job("split", "dag", inlets=("t.shopping",), outlets=("t.even", "t.odd"))
    odd = Job("odd", "dag", inlets=("t.odd",), outlets=("t.odd_sum",))
    even = Job("even", "dag", inlets=("t.even",), outlets=("t.even_sum",))
    topology = Topology.of("split", [LOAD, split, odd, even])
    assert as_sets(dict(consumers(in_a_row(topology), "split"))) == {1: {"odd", "even"}}


def test_of_a_table_that_was_replaced_only_later_barriers_are_staged_anew() -> None:
    """At its own barrier, which is decided, what was computed from it stays; a barrier between was aborted."""
    later = [Membership(3, 1, FULL), Membership(4, 3, FULL)]
    found = consumers_of_table(1, "t.amount", later)
    assert as_sets(dict(found)) == {3: {"amount", "top"}, 4: {"amount", "top"}}
    found = consumers_of_table(1, "t.shopping", later[:1])
    assert as_sets(dict(found)) == {3: {"load", "amount", "price", "top", "spend"}}
    assert as_sets(dict(consumers_of_table(2, "t.shopping", later))) == {3: set(), 4: set()}


def attempt(attempt_id: int, barrier_id: int, job: str, state: AttemptState) -> Attempt:
    now = datetime(2017, 1, 1, tzinfo=timezone.utc)
    return Attempt(
        attempt_id=attempt_id,
        topology="shopping",
        barrier_id=barrier_id,
        computed_in=0,
        job=job,
        state=state,
        request_key="key",
        generation="generation",
        incarnation="incarnation",
        requested_at=now,
    )


@pytest.mark.kills("consuming")
def test_only_attempts_that_have_read_are_voided() -> None:
    states = [*AttemptState]
    attempts = [attempt(i, 1, "top", state) for i, state in enumerate(states)]
    gone = voided(attempts, {1: ("top",)})
    assert [each.state for each in gone] == [AttemptState.RUNNING, AttemptState.CLOSED, AttemptState.PROCESSED]


def test_attempts_of_other_jobs_and_barriers_stay() -> None:
    attempts = [
        attempt(1, 1, "top", AttemptState.PROCESSED),
        attempt(2, 1, "spend", AttemptState.PROCESSED),
        attempt(3, 2, "top", AttemptState.RUNNING),
        attempt(4, 3, "top", AttemptState.RUNNING),
    ]
    assert [each.attempt_id for each in voided(attempts, {1: ("top",), 2: ("top", "amount")})] == [1, 3]
