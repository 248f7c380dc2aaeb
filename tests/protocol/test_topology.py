"""What a topology derives, and each thing it refuses by an error of its own that names jobs and tables."""

from __future__ import annotations

import json
import re

import pytest

from airflow_barrier.protocol.codec import decode, digest, encode
from airflow_barrier.protocol.errors import (
    CycleError,
    DuplicateJobError,
    JobWithoutOutletsError,
    SecondWriterError,
    TopologyError,
    UnknownTableError,
)
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology, downstream_jobs

FILES = ExternalSource("files", "files", {"path": "/landing"})
TOPIC = ExternalSource("purchases", "kafka", {"dead_letters": "t.letters"})
LOAD = Job("load", "shopping_dag", outlets=("shop.shopping",), externals=(FILES,))
AMOUNT = Job("amount", "shopping_dag", inlets=("shop.shopping",), outlets=("shop.amount",))
PRICE = Job("price", "pricing_dag", inlets=("shop.shopping",), outlets=("shop.price",))
TOP = Job("top", "pricing_dag", inlets=("shop.amount", "shop.price"), outlets=("shop.top",))
DIAMOND = (LOAD, AMOUNT, PRICE, TOP)


def test_what_is_derived() -> None:
    topology = Topology.of("shopping", DIAMOND)
    assert topology.tables == ("shop.amount", "shop.price", "shop.shopping", "shop.top")
    assert topology.root_tables == {"shop.shopping"}
    assert topology.externals == (FILES,)
    assert topology.writer("shop.top") == TOP
    assert topology.readers("shop.shopping") == (AMOUNT, PRICE)
    assert topology.job("price") == PRICE


def test_letters_may_be_another_jobs_to_write() -> None:
    jobs = [Job(f"load {table}", "dag", outlets=(table,), externals=(TOPIC,)) for table in ("t.a", "t.letters")]
    assert Topology.of("shopping", jobs).externals == (TOPIC,)


def test_downstream_of_a_diamond_comes_once_and_after_its_writers() -> None:
    topology = Topology.of("shopping", DIAMOND)
    assert downstream_jobs(topology, "load") == ("load", "amount", "price", "top")
    assert downstream_jobs(topology, "price") == ("price", "top")
    assert downstream_jobs(topology, "top") == ("top",)


def test_the_order_of_declaration_is_no_part_of_a_topology() -> None:
    one, other = Topology.of("shopping", DIAMOND), Topology.of("shopping", reversed(DIAMOND))
    assert one == other
    assert digest(one) == digest(other)


def test_another_option_of_a_source_is_another_topology() -> None:
    moved = Job(
        "load", "shopping_dag", outlets=LOAD.outlets, externals=(ExternalSource("files", "files", {"path": "/b"}),)
    )
    assert digest(Topology.of("shopping", [LOAD])) != digest(Topology.of("shopping", [moved]))


def test_the_durable_form_gives_the_same_topology_back() -> None:
    topology = Topology.of("shopping", DIAMOND)
    again = decode(Topology, json.loads(json.dumps(encode(topology))))
    assert again == topology
    assert digest(again) == digest(topology)


@pytest.mark.kills("letters-have-a-table")
@pytest.mark.parametrize(
    ("jobs", "error", "named"),
    [
        pytest.param(
            [LOAD, Job("again", "other_dag", outlets=("shop.shopping",))],
            SecondWriterError,
            ["shop.shopping", "load", "shopping_dag", "again", "other_dag"],
            id="second writer",
        ),
        pytest.param(
            [Job("twice", "dag", outlets=("shop.a", "shop.a"))],
            SecondWriterError,
            ["shop.a", "twice"],
            id="outlet twice",
        ),
        pytest.param([AMOUNT], UnknownTableError, ["amount", "shop.shopping", "IcebergTable"], id="unknown table"),
        pytest.param([Job("idle", "dag")], JobWithoutOutletsError, ["idle", "dag"], id="no outlets"),
        pytest.param(
            [LOAD, Job("load", "other_dag", outlets=("shop.b",))],
            DuplicateJobError,
            ["load", "shopping_dag", "other_dag"],
            id="duplicate job",
        ),
        pytest.param(
            [Job("a", "dag", ("t.b",), ("t.a",)), Job("b", "dag", ("t.a",), ("t.b",))],
            CycleError,
            ["a", "b", "t.a", "t.b"],
            id="cycle of two",
        ),
        pytest.param([Job("self", "dag", ("t.a",), ("t.a",))], CycleError, ["self", "t.a"], id="cycle of one"),
        pytest.param(
            [
                LOAD,
                Job("b", "dag", outlets=("t.b",), externals=(ExternalSource("files", "files", {"path": "/other"}),)),
            ],
            TopologyError,
            ["load", "b", "files"],
            id="one source, two settings",
        ),
        pytest.param(
            [Job("load", "dag", outlets=("t.a",), externals=(TOPIC,))],
            TopologyError,
            ["load", "purchases", "found no job that writes it; add 't.letters' to the outlets"],
            id="letters without a table",
        ),
        pytest.param(
            [
                Job("load", "dag", outlets=("t.a",), externals=(TOPIC,)),
                Job("other", "dag", outlets=("t.letters",)),
            ],
            TopologyError,
            ["load", "purchases", "found job other, which does not read it"],
            id="letters in the table of another job",
        ),
    ],
)
def test_what_is_refused(jobs: list[Job], error: type[TopologyError], named: list[str]) -> None:
    with pytest.raises(error) as refused:
        Topology.of("shopping", jobs)
    assert type(refused.value) is error
    for name in ("shopping", *named):
        assert re.search(rf"\b{re.escape(name)}\b", str(refused.value)), name


def test_a_circle_is_told_in_the_direction_that_data_flows() -> None:
    jobs = [Job("a", "dag", ("t.c",), ("t.a",)), Job("b", "dag", ("t.a",), ("t.b",)),
            Job("c", "dag", ("t.b",), ("t.c",))]  # fmt: skip
    with pytest.raises(CycleError) as refused:
        Topology.of("shopping", jobs)
    circle = re.search(r"circle: (\S+) -> (\S+) -> (\S+) -> (\S+)", str(refused.value))
    assert circle is not None
    writes = {"a": "b", "b": "c", "c": "a"}
    names = circle.groups()
    assert [writes[name] for name in names[:-1]] == list(names[1:])


@pytest.mark.parametrize("name", ["", "1st", "with space", "a.b", "x" * 101, "übung"])
def test_a_topology_name_that_cannot_be_part_of_a_branch_name(name: str) -> None:
    with pytest.raises(TopologyError, match="branch and tag names"):
        Topology.of(name, DIAMOND)


def test_asking_for_what_is_not_there_names_what_is() -> None:
    topology = Topology.of("shopping", [LOAD])
    with pytest.raises(TopologyError, match=r"no job 'lode'; it has: load"):
        topology.job("lode")
    with pytest.raises(UnknownTableError, match=r"table shop\.x is not in topology shopping; .*shop\.shopping"):
        topology.writer("shop.x")
