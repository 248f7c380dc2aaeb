"""Jobs that wait for their history, and the revision by which they become members."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    RevisionRefusedError,
    SecondWriterError,
    TableClaimedError,
    TopologyError,
)
from airflow_barrier.protocol.revisions import Revision, RevisionMode
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_maintenance import compact, maintain
from tests.metaservice.world import (
    AMOUNT,
    AMOUNT_JOB,
    LOAD_JOB,
    PRICE,
    PRICE_JOB,
    SHOPPING,
    TOP,
    TOP_JOB,
    World,
)


def late(job: Job) -> Job:
    return dataclasses.replace(job, start_from=dict.fromkeys(job.inlets, "history"))


PRICE_LATE = late(PRICE_JOB)
MEMBERS = (LOAD_JOB, AMOUNT_JOB)


@pytest.fixture
def running(meta: MetaService) -> World:
    """Barriers 1 and 2 are COMMIT, and the DAG has got a job since."""
    world = World(meta, jobs=MEMBERS)
    for number in (1, 2):
        world.committed(number)
    world.declare((*MEMBERS, PRICE_LATE))
    return world


def names(world: World) -> list[str]:
    return [job.name for job in world.meta.topologies.get(world.name).jobs]


def begin(world: World, *jobs: Job, **given: Any) -> Revision:
    jobs = jobs or (PRICE_LATE,)
    tables = sorted(outlet for job in jobs for outlet in job.outlets)
    new = {
        "topology": world.name,
        "mode": RevisionMode.HISTORY,
        "first_barrier": 1,
        "predecessor": 0,
        "window_end": 1,
        "tables": tables,
        "jobs": [job.name for job in jobs],
        "changed": [job.name for job in jobs],
        "topology_version": world.meta.topologies.version(world.name),
        "reason": "new",
        "actor": "person",
        "joining": dict.fromkeys(tables),
    }
    return world.meta.revisions.begin(NewRevision(**{**new, **given}))


def swapped(world: World, revision: Revision, *jobs: str) -> None:
    for barrier in world.meta.revisions.barriers(world.name, revision.revision):
        for job in jobs or ("price",):
            world.process(barrier.barrier_id, job, line=revision.revision)
    head = world.meta.answers.readable(world.name)[-1].barrier_id
    expected = {**world.snapshots(head), **revision.expected}
    world.meta.revisions.begin_swap(world.name, revision.revision, head, expected, "person")
    assert world.swap(revision)


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.kills("waits-for-its-history")
def test_a_job_that_waits_is_in_no_barrier(running: World) -> None:
    assert names(running) == ["amount", "load"]
    assert running.meta.topologies.waiting("shopping") == (PRICE_LATE,)
    version = running.meta.topologies.version("shopping")
    assert running.declare((*MEMBERS, PRICE_LATE)) == version, "the same again writes nothing"
    running.committed(3)
    assert set(running.tables(3)) == {SHOPPING, AMOUNT}
    running.declare(MEMBERS)
    assert running.meta.topologies.waiting("shopping") == ()


def test_before_the_first_barrier_there_is_nothing_to_wait_for(meta: MetaService) -> None:
    world = World(meta, jobs=(*MEMBERS, PRICE_LATE))
    assert meta.topologies.waiting("shopping") == ()
    world.open(1)
    world.abort(1)
    world.declare((*MEMBERS, late(TOP_JOB), PRICE_LATE))
    assert names(world) == ["amount", "load", "price", "top"]
    world.committed(1)
    world.declare((*MEMBERS, PRICE_LATE))
    assert names(world) == ["amount", "load", "price"], "nor does a member ever wait again"


@pytest.mark.kills("claimed-while-waiting")
def test_its_tables_are_taken(running: World) -> None:
    with pytest.raises(TableClaimedError, match=rf"{PRICE} .*belongs to topology shopping"):
        World(running.meta, "other", [Job("mine", "dag", outlets=(PRICE,))])
    with pytest.raises(SecondWriterError, match=PRICE):
        running.declare([Job("mine", "other", outlets=(PRICE,))], owner="other")
    running.declare(MEMBERS)
    World(running.meta, "other", [Job("mine", "dag", outlets=(PRICE,))])


@pytest.mark.kills("reads-what-has-its-history")
def test_nobody_reads_them_before(running: World) -> None:
    with pytest.raises(TopologyError, match=r"job top .*reads shop\.price, which job price has yet to compute"):
        running.declare((*MEMBERS, PRICE_LATE, TOP_JOB))
    top = dataclasses.replace(TOP_JOB, owner="team")
    assert running.meta.topologies.join("shopping", "team", "top", [top], "test") == (PRICE,)
    assert isinstance(running.meta.topologies.join("shopping", "team", "top", [late(top)], "test"), int)
    assert [job.name for job in running.meta.topologies.waiting("shopping")] == ["price", "top"]


def test_it_can_leave(running: World) -> None:
    running.meta.topologies.leave("shopping", "dag", "price", "not needed", "me")
    assert running.meta.topologies.waiting("shopping") == ()
    running.declare((*MEMBERS, PRICE_LATE))
    assert running.meta.topologies.waiting("shopping") == ()
    running.meta.topologies.readmit("shopping", "dag", "price", "me")
    running.declare((*MEMBERS, PRICE_LATE))
    assert running.meta.topologies.waiting("shopping") == (PRICE_LATE,)


# --- joining --------------------------------------------------------------------------------------


@pytest.mark.kills("joins-with-its-history")
def test_it_is_a_member_once_its_history_is_published(running: World) -> None:
    running.open(3)
    revision = begin(running)
    first = running.start(1, "price", line=revision.revision)
    assert first.bases == {PRICE: None}
    assert (first.previous, first.inputs) == ({SHOPPING: None}, {SHOPPING: running.snapshots(1)[SHOPPING]})
    assert running.meta.topologies.waiting("shopping") == (PRICE_LATE,)
    running.process(3, "load")
    swapped(running, revision)
    assert running.meta.topologies.waiting("shopping") == ()
    assert names(running) == ["amount", "load", "price"]
    assert running.declare((*MEMBERS, PRICE_LATE)) == running.meta.topologies.version("shopping")
    assert running.tables(0)[PRICE] is TableState.WRITTEN
    for number in (1, 2):
        assert running.tables(number)[PRICE] is TableState.WRITTEN
        assert PRICE in running.meta.topologies.get("shopping", running.barrier(number).topology_version).tables
    assert running.tables(3) == {
        SHOPPING: TableState.PROCESSED,
        AMOUNT: TableState.PENDING,
        PRICE: TableState.PROCESSED,
    }
    running.process(3, "amount")
    assert running.state(3) is BarrierState.PRECOMMIT
    running.commit(3)
    assert running.meta.barriers.unjoined("shopping") == ()
    running.open(4)
    assert set(running.tables(4)) == {SHOPPING, AMOUNT, PRICE}


def test_later_epochs_are_only_what_is_new(running: World) -> None:
    revision = begin(running)
    running.process(1, "price", line=revision.revision)
    second = running.start(2, "price", line=revision.revision)
    assert second.previous == {SHOPPING: running.snapshots(1)[SHOPPING]}
    (row,) = running.meta.revisions.progress("shopping", revision.revision, 1)
    assert second.bases == {PRICE: row.snapshot_id}


def test_two_jobs_of_which_one_reads_the_others_tables(running: World) -> None:
    jobs = (PRICE_LATE, late(TOP_JOB))
    running.declare((*MEMBERS, *jobs))
    swapped(running, begin(running, *jobs), "price", "top")
    assert names(running) == ["amount", "load", "price", "top"]
    assert set(running.tables(1)) == {SHOPPING, AMOUNT, PRICE, TOP}


def test_maintenance_has_the_tables_too(running: World) -> None:
    barrier = maintain(running, (AMOUNT,))
    assert barrier is not None
    compact(running, barrier, AMOUNT, 98)
    running.meta.maintenance.carry("shopping", barrier.barrier_id, "test")
    running.commit(barrier.barrier_id)
    swapped(running, begin(running))
    assert running.snapshots(3)[PRICE] == running.snapshots(2)[PRICE] is not None
    assert running.meta.barriers.unjoined("shopping") == (), "else it would join again with the next barrier"
    assert set(running.meta.revisions.get("shopping", 1).expected) == {SHOPPING, AMOUNT, PRICE}


def test_cancelled_it_waits_on(running: World) -> None:
    revision = begin(running)
    running.process(1, "price", line=revision.revision)
    running.meta.revisions.cancel("shopping", revision.revision, "no", "me")
    assert running.meta.topologies.waiting("shopping") == (PRICE_LATE,)
    assert names(running) == ["amount", "load"]
    swapped(running, begin(running))
    assert names(running) == ["amount", "load", "price"]


def test_a_plan_is_stale_once_the_job_is_declared_otherwise(running: World) -> None:
    running.declare(MEMBERS)
    with pytest.raises(RevisionRefusedError, match=r"wait for the history of shop\.price, found that of none; plan it"):
        begin(running)
    running.declare((*MEMBERS, dataclasses.replace(PRICE_LATE, outlets=(TOP,))))
    with pytest.raises(RevisionRefusedError, match=r"found that of shop\.top; plan it again"):
        begin(running)
    assert running.meta.revisions.under_way("shopping") is None


def test_a_barrier_that_lacks_what_it_reads(running: World) -> None:
    running.declare((*MEMBERS, PRICE_JOB))  # joins with the next barrier, without a history
    running.committed(3)
    top = late(TOP_JOB)
    running.declare((*MEMBERS, PRICE_JOB, top))
    with pytest.raises(
        RevisionRefusedError, match=r"job top reads shop\.price by now, which barrier 1 .* does not have"
    ):
        begin(running, top)
    swapped(running, begin(running, top, first_barrier=3, predecessor=2, window_end=3), "top")
    assert TOP not in running.tables(2)
    assert TOP in running.tables(3)


def test_the_decision_names_main_of_the_tables_that_join(running: World) -> None:
    revision = begin(running)
    for number in (1, 2):
        running.process(number, "price", line=revision.revision)
    with pytest.raises(ConfigurationError, match=PRICE):
        running.begin_swap(revision)


@pytest.mark.kills("revises-what-was-planned")
def test_only_jobs_that_wait_join_by_a_revision(running: World) -> None:
    with pytest.raises(
        RevisionRefusedError, match=r"expected jobs amount to wait for the history of .*, found that of"
    ):
        begin(running, AMOUNT_JOB)
    assert running.meta.revisions.newest(running.name, 1) == []
