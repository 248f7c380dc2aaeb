"""A rehearsal: a barrier whose jobs compute as ever, and of which nothing stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.rehearsing import (
    begin_rehearsal,
    forget_left_rehearsals,
    forget_rehearsal,
    rehearsed,
)
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.protocol.errors import (
    IllegalTransitionError,
    NotProcessedError,
    RehearsalRefusedError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.names import is_topology_name
from airflow_barrier.protocol.records import Barrier, RunRef, StagedTable
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from tests.coordinator.test_sources import arrive, files_of, fragment, landing
from tests.support.scheduling import Scheduled
from tests.support.shop import AMOUNT, FRAGMENT, JOBS, MONDAY, PRICE, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 1}]
MIRROR = Job("mirror", "mirror_dag", inlets=(PRICE,), outlets=("shop.mirror",))


def run(day: float, name: str = "manual") -> Run:
    return Run(RunRef("shopping_dag", name, "manual"), MONDAY + timedelta(days=day), "run_after", rehearsal=True)


def rehearse(shop: Shop, day: float, name: str = "manual", fragment: Fragment = FRAGMENT) -> Barrier:
    return begin_rehearsal(shop.deployment, fragment, run(day, name), Scheduled(), actor="test")


def publish(shop: Shop, *days: int) -> None:
    for day in days:
        barrier = shop.open(day)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)


def everything(shop: Shop) -> dict[str, object]:
    """All that somebody could find: rows of the MetaService, refs of tables, and files beside the tables."""
    rows = {
        table.name: shop.deployment.meta.query(
            lambda c, table=table: sorted(map(str, c.execute(select(table)).all()))  # type: ignore[misc]
        )
        for table in schema.metadata.sorted_tables
    }
    refs = {table: sorted(shop.deployment.tables.load(table).metadata.refs) for table in (SHOPPING, AMOUNT, PRICE)}
    folder = Path(shop.deployment.tables.location("_barrier").removeprefix("file://"))
    return {**rows, "refs": refs, "files": sorted(map(str, folder.rglob("*"))), "mains": shop.main_totals()}


def test_nothing_of_it_stays(shop: Shop) -> None:
    publish(shop, 1, 2)
    before = everything(shop)
    barrier = rehearse(shop, 3)
    assert (barrier.barrier_id, barrier.predecessor, barrier.state) == (3, 2, BarrierState.OPEN)
    assert shop.deployment.meta.topologies.names() == ["shopping"]
    assert [each.name for each in shop.deployment.meta.overviews.known()] == ["shopping"]
    shop.process_all(barrier, [*ROWS, *ROWS])
    done = rehearsed(shop.deployment, run(3), "shopping")
    assert done.lines == tuple(
        f"{table}: 4 rows after 2 would be published, by job {job}; its files gain 2 rows and lose 0"
        for table, job in ((SHOPPING, "load"), (AMOUNT, "amount"), (PRICE, "price"))
    )
    for _ in range(2):
        forget_rehearsal(shop.deployment, barrier.topology)
        assert everything(shop) == before


def test_real_barriers_go_on_beside_it(shop: Shop) -> None:
    publish(shop, 1)
    held = rehearse(shop, 2)
    shop.process(held, "load", ROWS)
    real = shop.open(2)
    shop.process(held, "amount", ROWS)
    shop.process_all(real, ROWS)
    shop.commit(real)
    shop.process(held, "price", ROWS)
    assert "2 rows after 1 would be published" in rehearsed(shop.deployment, run(2), "shopping").lines[0]
    forget_rehearsal(shop.deployment, held.topology)
    assert shop.main_totals() == dict.fromkeys((SHOPPING, AMOUNT, PRICE), 2)
    publish(shop, 3)
    assert shop.main_totals() == dict.fromkeys((SHOPPING, AMOUNT, PRICE), 3)


def test_a_day_of_the_past_is_rehearsed_on_the_barrier_before_it(shop: Shop) -> None:
    publish(shop, 1, 2, 3)
    barrier = rehearse(shop, 2)
    assert (barrier.barrier_id, barrier.predecessor) == (2, 1)
    shop.process_all(barrier, ROWS)
    assert "2 rows after 1 would be published" in rehearsed(shop.deployment, run(2), "shopping").lines[0]


@pytest.mark.kills("rehearsed-is-not-published")
def test_it_is_never_published(embedded: Shop) -> None:
    publish(embedded, 1)
    barrier = embedded.process_all(rehearse(embedded, 2), ROWS)
    assert barrier.state is BarrierState.PRECOMMIT
    with pytest.raises(RehearsalRefusedError, match="expected a barrier that is to be published, found a rehearsal"):
        commit_barrier(embedded.deployment, barrier.topology, barrier.barrier_id, actor="test")
    anew = NewRevision(
        topology=barrier.topology,
        mode=RevisionMode.FULL,
        first_barrier=1,
        predecessor=0,
        window_end=1,
        tables=[SHOPPING, AMOUNT, PRICE],
        jobs=["load", "amount", "price"],
        changed=["load"],
        topology_version=1,
        reason="because",
        actor="test",
    )
    with pytest.raises(RehearsalRefusedError, match="expected a topology whose barriers are published, found a"):
        embedded.deployment.meta.revisions.begin(anew)
    assert set(embedded.main_totals().values()) == {1}


@pytest.mark.kills("only-rehearsals-are-forgotten")
def test_only_a_rehearsal_is_forgotten(embedded: Shop) -> None:
    publish(embedded, 1)
    with pytest.raises(IllegalTransitionError, match="expected a rehearsal to forget"):
        embedded.deployment.meta.rehearsals.drop("shopping")
    assert embedded.deployment.meta.barriers.get("shopping", 1).state is BarrierState.COMMIT
    assert not is_topology_name(rehearse(embedded, 2).topology)


def test_sources_are_cut_and_not_used_up(embedded: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    declared = fragment(landing(folder))
    arrive(folder, 1, "1.parquet")
    first = embedded.open(1, declared)
    embedded.process_all(first, ROWS)
    embedded.commit(first)
    arrive(folder, 2, "2.parquet")
    embedded.open(2, declared)  # it is not committed, and so none that a rehearsal is built on
    arrive(folder, 3, "3.parquet")
    held = rehearse(embedded, 3, fragment=declared)
    cut = embedded.deployment.meta.cuts.of(held.topology, held.barrier_id)["purchases"]
    assert [Path(item).name for item in cut.items] == ["2.parquet", "3.parquet"]
    ready = embedded.begin(held, "load")
    assert ready.spec.cuts["purchases"] == cut
    forget_rehearsal(embedded.deployment, held.topology)
    embedded.open(3, declared)
    assert (files_of(embedded, 2), files_of(embedded, 3)) == (["2.parquet"], ["3.parquet"])
    # and again the day that is committed, from what it was cut from
    again = rehearse(embedded, 2, fragment=declared)
    cut = embedded.deployment.meta.cuts.of(again.topology, again.barrier_id)["purchases"]
    assert [Path(item).name for item in cut.items] == ["2.parquet"]


@pytest.mark.kills("rehearsed-on-whole-cuts")
def test_a_source_that_cannot_be_cut(embedded: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    declared = fragment(landing(folder))
    arrive(folder, 1)
    first = embedded.open(1, declared)
    embedded.process_all(first, ROWS)
    embedded.commit(first)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(RehearsalRefusedError, match="expected to cut every source, found source purchases: landing"):
        rehearse(embedded, 2, fragment=declared)
    assert embedded.deployment.meta.rehearsals.of("shopping") == []


def test_jobs_of_other_dags_are_carried(embedded: Shop) -> None:
    tables = embedded.deployment.tables
    tables.catalog.create_table("shop.mirror", tables.load(PRICE).schema())
    publish(embedded, 1)
    embedded.deployment.meta.topologies.register("shopping", "mirror_dag", [MIRROR], "test")
    barrier = rehearse(embedded, 2)
    assert embedded.process_all(barrier, ROWS).state is BarrierState.PRECOMMIT
    lines = rehearsed(embedded.deployment, run(2), "shopping").lines
    assert lines[0] == "shop.mirror: 0 rows, carried; its job mirror did not run"


@pytest.mark.kills("rehearsed-whole")
def test_a_new_job_is_rehearsed_before_it_joins(embedded: Shop) -> None:
    tables = embedded.deployment.tables
    tables.catalog.create_table("shop.mirror", tables.load(PRICE).schema())
    publish(embedded, 1)
    more = replace(FRAGMENT, jobs=(*JOBS, replace(MIRROR, owner="shopping_dag")))
    barrier = rehearse(embedded, 2, fragment=more)
    assert embedded.process_all(barrier, ROWS).state is BarrierState.OPEN
    ready = embedded.begin(barrier, "mirror")
    assert ready.spec.previous == {PRICE: None}  # all that its inlet holds
    with pytest.raises(NotProcessedError, match=r"shop.mirror \(job mirror\); clear these jobs' tasks"):
        rehearsed(embedded.deployment, run(2), "shopping")
    assert {job.name for job in embedded.deployment.meta.topologies.get("shopping").jobs} == {"load", "amount", "price"}


def test_what_is_left_behind_goes_with_the_next(embedded: Shop) -> None:
    publish(embedded, 1)
    before = everything(embedded)
    runs = Scheduled({"shopping_dag/at work": "running", "shopping_dag/killed": "running"})

    def begin(name: str) -> Barrier:
        return begin_rehearsal(embedded.deployment, FRAGMENT, run(2, name), runs, actor="test")

    at_work, killed = begin("at work"), begin("killed")
    embedded.process(killed, "load", ROWS)
    runs.states["shopping_dag/killed"] = "failed"
    third = begin("third")
    held = {each.topology for each in embedded.deployment.meta.rehearsals.of("shopping")}
    assert held == {at_work.topology, third.topology}
    # again, as a try after one that was killed: from the beginning
    embedded.process(third, "load", ROWS)
    embedded.process_all(begin("third"), ROWS)
    forget_left_rehearsals(embedded.deployment, "shopping", lambda _: True)
    assert everything(embedded) == before
    with pytest.raises(UnknownTopologyError):
        embedded.process(killed, "amount", ROWS)


@pytest.mark.kills("rehearsed-on-what-is-committed", "rehearsed-where-it-has-joined")
def test_what_cannot_be_rehearsed(embedded: Shop) -> None:
    def refused(day: float) -> str:
        with pytest.raises(RehearsalRefusedError) as found:
            rehearse(embedded, day)
        return str(found.value)

    never = "expected a barrier before it that is COMMIT, which it is built on, found none; run the DAG by its schedule"
    assert never in refused(1)
    embedded.open(1)
    assert never in refused(2)
    embedded.process_all(embedded.deployment.meta.barriers.get("shopping", 1), ROWS)
    embedded.commit(embedded.deployment.meta.barriers.get("shopping", 1))
    assert never in refused(1)
    tables = embedded.deployment.tables
    tables.catalog.create_table("shop.mirror", tables.load(PRICE).schema())
    more = replace(FRAGMENT, jobs=(*JOBS, replace(MIRROR, owner="shopping_dag")))
    joined = embedded.open(2, more)
    embedded.process_all(joined, ROWS)
    ready = embedded.begin(joined, "mirror")
    embedded.close(
        ready, ClosingRecord(ready.attempt.attempt_id, {"shop.mirror": StagedTable("shop.mirror", None, True)})
    )
    embedded.commit(joined)
    with pytest.raises(RehearsalRefusedError, match="expected job mirror in barrier 1 of shopping"):
        rehearse(embedded, 2, fragment=more)
    publish(embedded, 3)
    embedded.deployment.meta.expiry.expire("shopping", [1], "test")
    assert "found barrier 1 of shopping (2026-01-06 00:00:00+0000), which has expired" in refused(2)
    assert embedded.deployment.meta.rehearsals.of("shopping") == []
