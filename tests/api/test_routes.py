"""What the routes tell, to whom, on each kind of database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.schema import DatabaseLater
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import ExternalSource, Job
from tests.api.asking import Asking
from tests.metaservice.world import World
from tests.support.runs import run_of

#: Nothing of it may reach who may not read DAG `secret`.
SECRET = "hidden"
HOSTILE = f"</script><b>{SECRET}</b>\x00\u202e\n'\"; DROP TABLE barrier_topology"
ORDERS = ExternalSource("orders", "files", {"path": "/landing"})
JOBS = {
    "shop": (
        Job("load", "shop", outlets=("shop.orders",), externals=(ORDERS,)),
        Job("ratio", "shop", inlets=("shop.orders", "hidden.prices"), outlets=("shop.ratio", "shop.rest")),
    ),
    "secret": (
        Job("hidden_load", "secret", outlets=("hidden.prices",), externals=(ExternalSource("hidden_in", "files", {}),)),
    ),
}


@pytest.fixture
def shop(meta: MetaService) -> World:
    """Two DAGs, and no barrier."""
    world = World(meta, "shop", ())
    for dag in ("secret", "shop"):
        world.declare(JOBS[dag], dag)
    return world


def opened(world: World, number: int) -> int:
    return world.open(number, run=run_of(f"secret/scheduled__{SECRET}__{number}")).barrier_id


def age(world: World, barrier_id: int, seconds: float) -> None:
    """So long ago was the barrier opened, and whatever was done for it."""
    ago = DatabaseLater(bindparam("seconds"))
    with world.meta._db.transaction(write=True) as connection:
        for table, columns in ((schema.barrier, ["opened_at"]), (schema.table_progress, ["processed_at"])):
            here = (table.c.topology == world.name, table.c.barrier_id == barrier_id)
            for column in columns:
                there = (*here, table.c[column].is_not(None))
                connection.execute(update(table).where(*there).values({column: ago}), {"seconds": -seconds})


def cells(grid: dict[str, Any]) -> dict[str, list[str]]:
    return {row["table"]: row["cells"] for row in grid["rows"]}


def test_a_barrier_from_opening_to_commit(shop: World, asking: Asking) -> None:
    assert asking.told("shop")["health"] == "empty"
    assert cells(asking.told("shop/grid")) == {
        "hidden.prices": [], "shop.orders": [], "shop.ratio": [], "shop.rest": []
    }  # fmt: skip
    opened(shop, 1)
    assert set(map(tuple, cells(asking.told("shop/grid")).values())) == {("pending",)}
    shop.process(1, "load")
    shop.start(1, "hidden_load")
    shop.meta.attempts.start(shop.request(1, "ratio").attempt_id)  # it learns what it waits for
    told = asking.told("shop/grid")
    assert cells(told) == {
        "hidden.prices": ["running"], "shop.orders": ["processed"], "shop.ratio": ["waiting"], "shop.rest": ["waiting"]
    }  # fmt: skip
    assert {note["table"]: (note["summary"], note["tries"]) for note in told["notes"]} == {
        "hidden.prices": ("running", 1),
        "shop.ratio": ("waits for hidden.prices at barrier 1 (job hidden_load)", 1),
        "shop.rest": ("waits for hidden.prices at barrier 1 (job hidden_load)", 1),
    }
    assert (told["repeatable_read"], told["read_committed"]) == (0, 0)


def test_all_routes_answer(shop: World, asking: Asking) -> None:
    shop.committed(1)
    opened(shop, 2)
    for path in ("", "/grid", "/barriers", "/barriers/1", "/barriers/0", "/sources", "/sinks", "/leases", "/revisions"):
        asking.told(f"shop{path}")
    assert asking.get("").json() == {"deployments": [{"deployment": "prod"}]}
    assert asking.get("/prod/topologies").json()["topologies"][0]["readable"]["barrier_id"] == 1
