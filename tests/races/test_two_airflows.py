"""Two Airflow deployments pointed at one topology by mistake: the tables are those of one of them, and the other one
is told what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_barrier.coordinator.committing import Committed
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import read_head
from airflow_barrier.coordinator.opening import Opened
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Adopted, Asking, begin, find_barrier
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    BarrierError,
    StagedTableError,
    Terminal,
    TopologyError,
)
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment
from tests.races.checks import check_published_once
from tests.races.racers import Racers
from tests.races.test_many_at_once import commit, start
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, FRAGMENT, MONDAY, PRICE, SHOPPING, Shop, make_shop

ROWS = [{"amount": 1, "price": 10}]
ONE_BARRIER = {SHOPPING: 10, AMOUNT: 1, PRICE: 10}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        f"sqlite:///{tmp_path}/first.db",
        f"sqlite:///{tmp_path}/catalog.db",
        str(tmp_path / "lake"),
        tag_policy="every=1",
    )


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    shop = make_shop(settings)
    yield shop
    shop.deployment.close()


@pytest.fixture
def other(settings: Settings, tmp_path: Path, shop: Shop) -> Iterator[Shop]:
    """The same catalog and warehouse, with a MetaService of its own. (After the shop: the tables are there.)"""
    other = Shop(Deployment.connect(replace(settings, metaservice_url=f"sqlite:///{tmp_path}/second.db")))
    yield other
    other.deployment.close()


# --- one MetaService ------------------------------------------------------------------------------------


def test_on_one_metaservice_the_second_one_observes_and_finds_all_done(shop: Shop, settings: Settings) -> None:
    barrier = shop.open(1)
    with Racers([settings] * 2) as airflows:
        outcomes = airflows.race([(start, (2, "dag/run of one")), (start, (2, "dag/run of the other"))])
        assert sorted(outcome.created for outcome in outcomes) == [False, True]
        observer = next(outcome for outcome in outcomes if not outcome.created)
        assert observer.barrier.run == next(o.barrier.run for o in outcomes if o.created), "it is told whose"
        shop.process_all(barrier, ROWS)
        for run_key in ("dag/run of one", "dag/run of the other"):
            timestamp = MONDAY + timedelta(days=2)
            found = find_barrier(shop.deployment, "shopping", run=run_of(run_key), timestamp=timestamp)
            assert found.barrier_id == observer.barrier.barrier_id, "its own tasks work for the same barrier"
        shop.process_all(found, ROWS)
        # the other's task of the same kind, of which there was no clear, finds that the work is done
        again = begin(shop.deployment, found, "load", Asking(request_key="other", generation="g0", actor="other"))
        assert isinstance(again, Adopted)
        outcomes = airflows.race([(commit, (found.barrier_id,))] * 2)
        assert {outcome.barrier.state for outcome in outcomes} == {BarrierState.COMMIT}
    with pytest.raises(AlreadyCommittedError):
        begin(shop.deployment, found, "load", Asking(request_key="other", generation="g1", actor="other"))
    assert shop.main_totals() == {table: 2 * total for table, total in ONE_BARRIER.items()}
    check_published_once(shop, settings)


def test_on_one_metaservice_the_same_jobs_under_another_dag_are_refused(shop: Shop) -> None:
    shop.open(1)
    jobs = tuple(replace(job, owner="copy_of_shopping_dag") for job in FRAGMENT.jobs)
    with pytest.raises(TopologyError, match="shopping_dag"):
        shop.open(2, Fragment("shopping", "copy_of_shopping_dag", jobs))
    assert len(shop.deployment.meta.barriers.uncommitted("shopping")) == 1


# --- two MetaServices -----------------------------------------------------------------------------------


def refused(error: BarrierError, ours: Shop, leader: Shop) -> None:
    assert isinstance(error, Terminal)
    for said in (
        "connection",
        "recover",
        *(each.deployment.meta.topologies.incarnation("shopping") for each in (ours, leader)),
    ):
        assert said in str(error)


def test_a_second_metaservice_is_refused_from_its_first_barrier_on(shop: Shop, other: Shop, settings: Settings) -> None:
    shop.process_all(barrier := shop.open(1), ROWS)
    with pytest.raises(BarrierError) as before_commit:
        other.open(1)
    refused(before_commit.value, other, shop)
    shop.commit(barrier)
    with pytest.raises(BarrierError) as after_commit:
        other.open(2)
    refused(after_commit.value, other, shop)
    shop.process_all(shop.open(2), ROWS)
    shop.commit(shop.deployment.meta.barriers.get("shopping", 2))
    assert shop.main_totals() == {table: 2 * total for table, total in ONE_BARRIER.items()}
    check_published_once(shop, settings)


def test_of_two_metaservices_that_open_at_the_same_moment_one_leads_and_publishes_alone(
    shop: Shop, other: Shop, settings: Settings, tmp_path: Path
) -> None:
    both = [settings, replace(settings, metaservice_url=f"sqlite:///{tmp_path}/second.db")]
    with Racers(both) as airflows:
        outcomes = airflows.race([(start, (1, "dag/run"))] * 2)
        head = read_head(shop.deployment, "shopping")
        assert head is not None
        leads = head.incarnation == shop.deployment.meta.topologies.incarnation("shopping")
        leader, loser = (shop, other) if leads else (other, shop)
        at = 0 if leads else 1
        assert isinstance(outcomes[at], Opened), outcomes
        leader.process_all(outcomes[at].barrier, ROWS)
        if isinstance(outcomes[1 - at], Opened):  # both found nobody who leads: then the later one of them does
            with pytest.raises(StagedTableError, match="branch"):  # the numbers of their attempts are the same
                loser.process_all(outcomes[1 - at].barrier, ROWS)
        committed = airflows.race([(commit, (1,))] * 2)
    assert isinstance(committed[at], Committed)
    assert not isinstance(committed[1 - at], Committed)
    assert leader.main_totals() == ONE_BARRIER, "the leader's, once"
    with pytest.raises(BarrierError) as told:
        loser.open(2)
    refused(told.value, loser, leader)
