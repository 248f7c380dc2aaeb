"""A run of before the newest barrier may have the code of then: it takes back nothing that was registered since."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.joining import StaysOut, take_part
from airflow_barrier.protocol.errors import BarrierOrderError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from tests.support.shop import AMOUNT, JOBS, MONDAY, PRICE, SHOPPING, Shop

#: The opening DAG, before a third job came to it.
OLD = Fragment("shopping", "shopping_dag", JOBS[:2])
#: The opening DAG, and a member's two jobs.
LOAD = Fragment("shopping", "shopping_dag", JOBS[:1])
MEMBER = (
    Job("amount", "member_dag", inlets=(SHOPPING,), outlets=(AMOUNT,)),
    Job("price", "member_dag", inlets=(SHOPPING,), outlets=(PRICE,)),
)


def members(shop: Shop, barrier: Barrier | None = None) -> list[str]:
    """The jobs of a barrier (None: of the next one)."""
    version = None if barrier is None else barrier.topology_version
    return [job.name for job in shop.deployment.meta.topologies.get("shopping", version).jobs]


def runs(shop: Shop, job: Job, day: int, *declared: Job) -> object:
    """The task of a member's job starts, in a run whose DAG declares these jobs."""
    at = MONDAY + timedelta(days=day)
    return take_part(shop.deployment, Fragment("shopping", "member_dag", declared), job, at, "member")


def abort(shop: Shop, barrier: Barrier) -> None:
    abort_barrier(shop.deployment, "shopping", barrier.barrier_id, reason="bad input", actor="person")


# --- the DAG that opens -------------------------------------------------------------------------------


@pytest.mark.kills("old-runs-register-nothing")
def test_an_aborted_barrier_is_opened_again_with_what_is_registered(embedded: Shop) -> None:
    first = embedded.open(1, OLD)
    second = embedded.open(2)
    assert (members(embedded, first), members(embedded, second)) == (["amount", "load"], ["amount", "load", "price"])
    abort(embedded, first)
    assert members(embedded, embedded.open(1, OLD)) == ["amount", "load", "price"]


def test_a_run_that_opens_nothing_any_more_registers_nothing(embedded: Shop, caplog: pytest.LogCaptureFixture) -> None:
    embedded.open(1, OLD)
    embedded.open(3)
    with pytest.raises(BarrierOrderError):
        embedded.open(2, OLD)
    assert members(embedded) == ["amount", "load", "price"]
    assert "what DAG shopping_dag declares in its run at 2026-01-07T00:00:00+00:00 differs" in caplog.text


def test_the_newest_barrier_is_opened_again_as_its_dag_declares_it_by_then(embedded: Shop) -> None:
    """What made a person abort it may be mended in the code."""
    embedded.open(1, OLD)
    abort(embedded, embedded.open(2, OLD))
    assert members(embedded, embedded.open(2)) == ["amount", "load", "price"]


# --- members ------------------------------------------------------------------------------------------


@pytest.mark.kills("old-runs-register-nothing")
def test_an_old_run_of_a_member_takes_nothing_back(embedded: Shop) -> None:
    amount, price = MEMBER
    embedded.open(1, LOAD)
    runs(embedded, amount, 2, amount)
    second = embedded.open(2, LOAD)
    for job in MEMBER:
        runs(embedded, job, 3, *MEMBER)
    third = embedded.open(3, LOAD)
    assert (members(embedded, second), members(embedded, third)) == (["amount", "load"], ["amount", "load", "price"])
    version = embedded.deployment.meta.topologies.version("shopping")
    other = Job("amount", "member_dag", outlets=(AMOUNT,))
    assert runs(embedded, other, 2, other) == second, "it has its part in the barrier of its run"
    assert embedded.deployment.meta.topologies.version("shopping") == version

    runs(embedded, price, 4, price)  # a newer one does without the other job
    embedded.open(4, LOAD)
    assert members(embedded) == ["load", "price"]
    assert runs(embedded, amount, 3, *MEMBER) == third
    out = runs(embedded, amount, 1, *MEMBER)
    assert isinstance(out, StaysOut)
    assert "job amount is no member of shopping any more" in out.reason
    assert members(embedded) == ["load", "price"]
    said = runs(embedded, amount, 4, *MEMBER)  # the newest one's
    assert isinstance(said, StaysOut)
    assert said.reason.endswith("the job takes part from the next barrier on")
    assert members(embedded) == ["amount", "load", "price"]


@pytest.mark.kills("old-runs-register-nothing")
def test_a_job_that_has_never_been_a_member_joins_from_behind_and_changes_nothing_else(embedded: Shop) -> None:
    """A member that catches up may run behind the newest barrier all the time."""
    amount, price = MEMBER
    for day in (1, 2):
        embedded.open(day, LOAD)
    assert isinstance(runs(embedded, price, 2, price), StaysOut)
    assert isinstance(runs(embedded, amount, 1, amount, Job("price", "member_dag", outlets=(PRICE,))), StaysOut)
    assert members(embedded, embedded.open(3, LOAD)) == ["amount", "load", "price"]
    assert embedded.deployment.meta.topologies.get("shopping").job("price") == price
