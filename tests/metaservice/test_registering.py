"""Topologies as unions of what DAGs declare, and which one a table belongs to."""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from airflow_barrier.metaservice import rows
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    SecondWriterError,
    StillReadError,
    TableClaimedError,
    TopologyError,
    UnknownTableError,
    UnknownTopologyError,
    WithdrawnError,
)
from airflow_barrier.protocol.topology import ExternalSource, Job
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, JOBS, LOAD_JOB, PRICE, PRICE_JOB, SHOPPING, TOP, World

PRICING = (dataclasses.replace(PRICE_JOB, owner="pricing"),)


def test_the_same_again_writes_nothing(world: World) -> None:
    entries = len(world.meta.audit.newest("shopping"))
    assert world.declare(list(reversed(JOBS))) == 1
    assert len(world.meta.audit.newest("shopping")) == entries


def test_options_that_are_the_same_as_json_are_the_same(meta: MetaService) -> None:
    def jobs(options: dict[str, object]) -> list[Job]:
        return [Job("load", "dag", outlets=("t.a",), externals=(ExternalSource("files", "files", options),))]

    meta.topologies.register("shopping", "dag", jobs({"columns": ("a", "b"), "path": "/x"}), "test")
    assert meta.topologies.register("shopping", "dag", jobs({"path": "/x", "columns": ["a", "b"]}), "test") == 1
    assert meta.topologies.register("shopping", "dag", jobs({"path": "/y", "columns": ["a", "b"]}), "test") == 2


def test_fragments_of_several_dags_make_one_topology(meta: MetaService) -> None:
    assert meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test") == 1
    assert meta.topologies.register("shopping", "pricing", PRICING, "test") == 2
    assert meta.topologies.get("shopping").tables == (AMOUNT, PRICE, SHOPPING)
    assert meta.topologies.get("shopping", 1).tables == (AMOUNT, SHOPPING)
    assert meta.topologies.get("shopping").job("price").owner == "pricing"
    assert (meta.topologies.version("shopping"), meta.topologies.names()) == (2, ["shopping"])


def test_a_dag_that_declares_less_takes_its_jobs_out(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    meta.topologies.register("shopping", "pricing", PRICING, "test")
    assert meta.topologies.register("shopping", "pricing", [], "test") == 3
    assert meta.topologies.get("shopping").tables == (AMOUNT, SHOPPING)


@pytest.mark.kills("one-writer-a-table")
def test_the_union_is_what_has_to_be_valid_and_a_refusal_changes_nothing(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    with pytest.raises(SecondWriterError, match=r"shop\.amount.*DAG dag.*DAG other"):
        meta.topologies.register("shopping", "other", [Job("mine", "other", outlets=(AMOUNT,))], "test")
    with pytest.raises(UnknownTableError, match=r"job amount .*reads table shop\.shopping"):
        meta.topologies.register("shopping", "dag", [AMOUNT_JOB], "test")
    assert meta.topologies.version("shopping") == 1
    assert meta.topologies.get("shopping").tables == (AMOUNT, SHOPPING)


def test_a_dag_registers_only_jobs_of_its_own(meta: MetaService) -> None:
    with pytest.raises(TopologyError, match="DAG other registers job load, whose owner is DAG dag"):
        meta.topologies.register("shopping", "other", [LOAD_JOB], "test")


@pytest.mark.kills("table-of-one-topology", "claimed-while-declared")
def test_two_topologies_cannot_have_one_table(world: World) -> None:
    with pytest.raises(TableClaimedError, match=r"topology pricing: table shop\.price .*belongs to topology shopping"):
        World(world.meta, "pricing", [Job("mine", "dag", outlets=(PRICE,))])
    assert world.meta.topologies.names() == ["shopping"]


@pytest.mark.kills("claimed-while-in-flight")
def test_a_table_can_be_taken_once_its_topology_has_let_it_go(world: World) -> None:
    world.open(1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    mine = [Job("mine", "dag", outlets=(TOP,))]
    with pytest.raises(TableClaimedError, match="let its open barriers commit"):
        world.meta.topologies.register("pricing", "dag", mine, "test")
    world.process_all(1)
    world.commit(1)
    assert world.meta.topologies.register("pricing", "dag", mine, "test") == 1
    with pytest.raises(TableClaimedError, match="belongs to topology pricing"):
        world.declare(JOBS)


def test_asking_for_a_topology_that_nobody_registered_names_those_there_are(world: World) -> None:
    with pytest.raises(UnknownTopologyError, match=r"'shoping'.*found only: shopping"):
        world.meta.topologies.get("shoping")
    with pytest.raises(UnknownTopologyError, match="expected version 9, found versions up to 1"):
        world.meta.topologies.get("shopping", 9)
    with pytest.raises(UnknownTopologyError):
        world.meta.barriers.get("shoping", 1)


# --- members, whose jobs join one by one ------------------------------------------------------------

PAIR = (PRICING[0], Job("ratio", "pricing", inlets=(AMOUNT, PRICE), outlets=("shop.ratio",)))


def names(meta: MetaService) -> list[str]:
    return [job.name for job in meta.topologies.get("shopping").jobs]


@pytest.mark.kills("only-started-jobs", "old-runs-register-nothing")
def test_a_job_is_registered_when_its_own_task_has_started(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == 2
    assert names(meta) == ["amount", "load", "price"]
    entries = len(meta.audit.newest("shopping"))
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == 2
    assert len(meta.audit.newest("shopping")) == entries
    assert meta.topologies.join("shopping", "pricing", "ratio", PAIR, "test") == 3
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == 3, "what has started stays"
    assert meta.topologies.join("shopping", "pricing", "price", PAIR[:1], "test") == 4, (
        "what is no longer declared leaves"
    )
    assert names(meta) == ["amount", "load", "price"]


def test_a_job_that_reads_what_nobody_writes_yet_is_told_so_and_nothing_is_registered(meta: MetaService) -> None:
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == (SHOPPING,)
    assert meta.topologies.names() == []
    meta.topologies.register("shopping", "dag", [LOAD_JOB], "test")
    assert meta.topologies.join("shopping", "pricing", "ratio", PAIR, "test") == (AMOUNT, PRICE)
    assert meta.topologies.version("shopping") == 1
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == 2


def test_fragments_that_contradict_each_other_are_refused_naming_both_dags(meta: MetaService) -> None:
    files = ExternalSource("files", "files", {"path": "/in"})
    meta.topologies.register("shopping", "dag", [dataclasses.replace(LOAD_JOB, externals=(files,)), AMOUNT_JOB], "test")
    meta.topologies.register("shopping", "pricing", PAIR[:1], "test")
    other = ExternalSource("files", "files", {"path": "/elsewhere"})
    for job, told in (
        (Job("mine", "late", outlets=(PRICE,)), r"DAG late.*DAG pricing"),
        (Job("price", "late", outlets=("shop.x",)), r"by DAG (pricing|late) and by DAG (pricing|late)"),
        (
            Job("mine", "late", outlets=("shop.x",), externals=(other,)),
            r"DAG (dag|late)\) .*DAG (dag|late)\) declare external",
        ),
    ):
        with pytest.raises(TopologyError, match=told):
            meta.topologies.join("shopping", "late", job.name, [job], "test")
    meta.topologies.register(
        "shopping", "dag", [LOAD_JOB, AMOUNT_JOB, Job("back", "dag", inlets=(PRICE,), outlets=(TOP,))], "test"
    )
    with pytest.raises(TopologyError, match=r"circle.*of DAGs dag, pricing"):
        meta.topologies.join("shopping", "pricing", "price", [dataclasses.replace(PAIR[0], inlets=(TOP,))], "test")
    assert meta.topologies.join("shopping", "pricing", "price", PAIR, "test") == 3, "the others go on undisturbed"


# --- leaving ----------------------------------------------------------------------------------------


@pytest.mark.kills("withdrawn-stays-away")
def test_what_left_does_not_come_back_until_it_is_let(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    for job in PAIR:
        meta.topologies.join("shopping", "pricing", job.name, PAIR, "test")
    gone = meta.topologies.leave("shopping", "pricing", "ratio", "moves away", "me")
    assert (gone.jobs, gone.job, gone.actor, gone.reason) == ((PAIR[1],), "ratio", "me", "moves away")
    assert meta.topologies.leave("shopping", "pricing", "ratio", "again", "somebody") == gone
    assert names(meta) == ["amount", "load", "price"]
    with pytest.raises(WithdrawnError, match=r"job ratio of DAG pricing has left.*me: moves away.*join shopping --dag"):
        meta.topologies.join("shopping", "pricing", "ratio", PAIR, "test")
    meta.topologies.register("shopping", "pricing", PAIR, "test")
    assert names(meta) == ["amount", "load", "price"], "nor does a start task bring it back"
    assert meta.topologies.withdrawal("shopping", "pricing", "price") is None
    assert meta.topologies.readmit("shopping", "pricing", "ratio", "me")
    assert not meta.topologies.readmit("shopping", "pricing", "ratio", "me")
    meta.topologies.join("shopping", "pricing", "ratio", PAIR, "test")
    assert names(meta) == ["amount", "load", "price", "ratio"]


def test_a_dag_leaves_as_a_whole(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    meta.topologies.register("shopping", "pricing", PAIR, "test")
    assert meta.topologies.leave("shopping", "pricing", None, "moves away", "me").jobs == PAIR
    assert names(meta) == ["amount", "load"]
    with pytest.raises(WithdrawnError, match="DAG pricing has left"):
        meta.topologies.join("shopping", "pricing", "price", PAIR, "test")
    with pytest.raises(TopologyError, match="the whole DAG has left"):
        meta.topologies.readmit("shopping", "pricing", "price", "me")
    assert meta.topologies.readmit("shopping", "pricing", None, "me")
    meta.topologies.join("shopping", "pricing", "price", PAIR, "test")
    assert names(meta) == ["amount", "load", "price"]
    events = [entry.event for entry in meta.audit.newest("shopping")]
    assert [event for event in events if event in ("left", "readmitted")] == ["left", "readmitted"]


@pytest.mark.kills("leaves-no-readers-behind")
def test_a_job_whose_tables_are_read_cannot_leave(meta: MetaService) -> None:
    meta.topologies.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    meta.topologies.register("shopping", "pricing", PAIR, "test")
    with pytest.raises(StillReadError, match=r"shop\.amount is read by job ratio \(DAG pricing\)"):
        meta.topologies.leave("shopping", "dag", "amount", "why not", "me")
    with pytest.raises(StillReadError, match=r"shop\.price is read by job ratio \(DAG pricing\)"):
        meta.topologies.leave("shopping", "pricing", "price", "why not", "me")
    with pytest.raises(TopologyError, match=r"found registered only: .*load \(DAG dag\)"):
        meta.topologies.leave("shopping", "pricing", "load", "not mine", "me")
    assert names(meta) == ["amount", "load", "price", "ratio"]


def test_a_topology_is_read_while_other_threads_read_many(meta: MetaService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each line of one thread's reading, unless it keeps others out, these have read so many that what was kept
    is gone.
    """
    monkeypatch.setattr(rows, "_TOPOLOGIES_KEPT", 16)
    names = [f"topology_{number}" for number in range(rows._TOPOLOGIES_KEPT + 1)]
    for name in names:
        meta.topologies.register(name, "dag", [Job(name, "dag", outlets=(f"shop.{name}",))], "test")
    monkeypatch.setattr(rows, "_topologies", {})

    def before_each_line(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not rows.topology_of.__code__:
            return None
        if event == "line" and not rows._topologies_lock.locked():
            with ThreadPoolExecutor(1) as another:
                another.submit(lambda: [meta.topologies.get(name) for name in names]).result()
        return before_each_line

    meta.topologies.get(names[0])  # it is kept now
    sys.settrace(before_each_line)
    try:
        topology = meta.topologies.get(names[0])
    finally:
        sys.settrace(None)
    assert topology.name == names[0]
    assert len(rows._topologies) <= rows._TOPOLOGIES_KEPT
