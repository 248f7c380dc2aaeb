"""Topologies as unions of what DAGs declare, and which one a table belongs to."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    SecondWriterError,
    TableClaimedError,
    TopologyError,
    UnknownTableError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.topology import ExternalSource, Job
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, JOBS, LOAD_JOB, PRICE, PRICE_JOB, SHOPPING, TOP, World

PRICING = (dataclasses.replace(PRICE_JOB, owner="pricing"),)


def test_the_same_again_writes_nothing(world: World) -> None:
    entries = len(world.meta.audit("shopping"))
    assert world.declare(list(reversed(JOBS))) == 1
    assert len(world.meta.audit("shopping")) == entries


def test_options_that_are_the_same_as_json_are_the_same(meta: MetaService) -> None:
    def jobs(options: dict[str, object]) -> list[Job]:
        return [Job("load", "dag", sinks=("t.a",), externals=(ExternalSource("files", "files", options),))]

    meta.register("shopping", "dag", jobs({"columns": ("a", "b"), "path": "/x"}), "test")
    assert meta.register("shopping", "dag", jobs({"path": "/x", "columns": ["a", "b"]}), "test") == 1
    assert meta.register("shopping", "dag", jobs({"path": "/y", "columns": ["a", "b"]}), "test") == 2


def test_fragments_of_several_dags_make_one_topology(meta: MetaService) -> None:
    assert meta.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test") == 1
    assert meta.register("shopping", "pricing", PRICING, "test") == 2
    assert meta.topology("shopping").tables == (AMOUNT, PRICE, SHOPPING)
    assert meta.topology("shopping", 1).tables == (AMOUNT, SHOPPING)
    assert meta.topology("shopping").job("price").owner == "pricing"
    assert (meta.topology_version("shopping"), meta.topologies()) == (2, ["shopping"])


def test_a_dag_that_declares_less_takes_its_jobs_out(meta: MetaService) -> None:
    meta.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    meta.register("shopping", "pricing", PRICING, "test")
    assert meta.register("shopping", "pricing", [], "test") == 3
    assert meta.topology("shopping").tables == (AMOUNT, SHOPPING)


def test_the_union_is_what_has_to_be_valid_and_a_refusal_changes_nothing(meta: MetaService) -> None:
    meta.register("shopping", "dag", [LOAD_JOB, AMOUNT_JOB], "test")
    with pytest.raises(SecondWriterError, match=r"shop\.amount.*DAG dag.*DAG other"):
        meta.register("shopping", "other", [Job("mine", "other", sinks=(AMOUNT,))], "test")
    with pytest.raises(UnknownTableError, match=r"job amount .*reads table shop\.shopping"):
        meta.register("shopping", "dag", [AMOUNT_JOB], "test")
    assert meta.topology_version("shopping") == 1
    assert meta.topology("shopping").tables == (AMOUNT, SHOPPING)


def test_a_dag_registers_only_jobs_of_its_own(meta: MetaService) -> None:
    with pytest.raises(TopologyError, match="DAG other registers job load, whose owner is DAG dag"):
        meta.register("shopping", "other", [LOAD_JOB], "test")


def test_two_topologies_cannot_have_one_table(world: World) -> None:
    with pytest.raises(TableClaimedError, match=r"topology pricing: table shop\.price .*belongs to topology shopping"):
        World(world.meta, "pricing", [Job("mine", "dag", sinks=(PRICE,))])
    assert world.meta.topologies() == ["shopping"]


def test_a_table_can_be_taken_once_its_topology_has_let_it_go(world: World) -> None:
    world.open(1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    mine = [Job("mine", "dag", sinks=(TOP,))]
    with pytest.raises(TableClaimedError, match="let its open barriers commit"):
        world.meta.register("pricing", "dag", mine, "test")
    world.process_all(1)
    world.commit(1)
    assert world.meta.register("pricing", "dag", mine, "test") == 1
    with pytest.raises(TableClaimedError, match="belongs to topology pricing"):
        world.declare(JOBS)


def test_asking_for_a_topology_that_nobody_registered_names_those_there_are(world: World) -> None:
    with pytest.raises(UnknownTopologyError, match=r"'shoping'.*found only: shopping"):
        world.meta.topology("shoping")
    with pytest.raises(UnknownTopologyError, match="expected version 9, found versions up to 1"):
        world.meta.topology("shopping", 9)
    with pytest.raises(UnknownTopologyError):
        world.meta.barrier("shoping", 1)
