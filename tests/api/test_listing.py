"""The list of topologies: the worst first, counted, in pages, and found by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking
from tests.api.scene import SECRET, age, declared
from tests.metaservice.world import World

LOAD = "load"


def world(meta: MetaService, name: str) -> World:
    return World(meta, name, [Job(LOAD, "dag", outlets=(f"{name}.orders",))])


@pytest.fixture
def many(meta: MetaService) -> dict[str, World]:
    """One or two of each health; their names are in another order. Of two that are ok readers of one have less."""
    worlds = {name: world(meta, name) for name in ("a_empty", "b_new", "c_old", "d_late", "e_fails", "f_blocked")}
    for name in ("b_new", "c_old"):
        for day in (1, 2) if name == "b_new" else (1,):
            worlds[name].committed(day)
    worlds["d_late"].open(1)
    age(worlds["d_late"], 1, 7200)
    worlds["e_fails"].open(1)
    failed = worlds["e_fails"].start(1, LOAD)
    meta.attempts.abort(failed.attempt_id, "ValueError: no", "test")
    worlds["f_blocked"].open(1)
    worlds["f_blocked"].process_all(1)
    worlds["f_blocked"].begin_commit(1)
    meta.publishing.block("f_blocked", 1, "moved", "commit")
    return worlds


def listed(asking: Asking, user: str = "admin", **query: Any) -> list[str]:
    return [each["topology"] for each in asking.get("/prod/topologies", user, **query).json()["topologies"]]


def pages(asking: Asking, **query: Any) -> Iterator[list[str]]:
    after = None
    while True:
        told = asking.get("/prod/topologies", limit=2, **query, **({} if after is None else {"after": after})).json()
        yield [each["topology"] for each in told["topologies"]]
        after = told["after"]
        if after is None:
            return


WORST_FIRST = ["f_blocked", "e_fails", "d_late", "c_old", "b_new", "a_empty"]


def test_the_worst_stand_first(many: dict[str, World], asking: Asking) -> None:
    told = asking.get("/prod/topologies").json()
    assert [each["topology"] for each in told["topologies"]] == WORST_FIRST
    assert list(told["counts"].items()) == [("blocked", 1), ("failing", 1), ("late", 1), ("ok", 2), ("empty", 1)]
    assert listed(asking, health="ok") == ["c_old", "b_new"]
    assert asking.get("/prod/topologies", health="ok").json()["counts"] == told["counts"]
    assert asking.get("/prod/topologies", health="well").status_code == 422


def test_pages_join_up_whatever_changes_meanwhile(many: dict[str, World], asking: Asking) -> None:
    assert list(pages(asking)) == [WORST_FIRST[:2], WORST_FIRST[2:4], WORST_FIRST[4:]]
    assert list(pages(asking, health="ok")) == [["c_old", "b_new"]]
    reading = pages(asking)
    assert next(reading) == WORST_FIRST[:2]
    many["e_fails"].abort(1)  # it is well now, and its readers have nothing at all
    assert [name for page in reading for name in page] == ["d_late", "e_fails", "c_old", "b_new", "a_empty"]


def test_it_is_found_by_the_name_of_what_it_has(meta: MetaService, many: dict[str, World], asking: Asking) -> None:
    declared(meta)
    reader = asking.may_read("reader", "shop")
    assert listed(asking, name="D_LATE") == ["d_late"]
    assert listed(asking, name="e_fails.ord") == ["e_fails"], "a table"
    assert listed(asking, name="RATIO") == listed(asking, reader, name="ratio") == ["shop"], "a job"
    assert listed(asking, name="nothing") == []
    # of jobs and tables of other DAGs nothing is told
    assert (listed(asking, name=SECRET), listed(asking, reader, name=SECRET)) == (["shop"], [])
    assert asking.get("/prod/topologies", name="late").json()["counts"] == {"late": 1}
    assert listed(asking, name="x" * 5000) == []


def test_a_revision_that_is_under_way(many: dict[str, World], asking: Asking) -> None:
    def found() -> dict[str, int]:
        told = asking.get("/prod/topologies").json()["topologies"]
        return {each["topology"]: each["revision"] for each in told if each["revision"] is not None}

    assert found() == {}
    revision = many["b_new"].revise(1, LOAD)
    assert found() == {"b_new": revision.revision}
    assert asking.told("b_new")["revision"] == revision.revision
    many["b_new"].meta.revisions.cancel("b_new", revision.revision, "no", "test")
    assert found() == {}
