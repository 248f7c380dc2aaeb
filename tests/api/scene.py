"""A topology of two DAGs of which a caller may read one, and all that can be there to tell of it."""

from __future__ import annotations

from sqlalchemy import bindparam, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.schema import DatabaseLater
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import Counts, Position, SinkDeclaration
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import Revision, RevisionMode
from airflow_barrier.protocol.topology import ExternalSource, Job
from tests.metaservice.world import World, changed_by_hand
from tests.support.runs import run_of

#: Nothing of it may reach who may not read DAG `secret`.
SECRET = "veiled"
HOSTILE = f"</script><b>{SECRET}</b>\x00\u202e\n'\"; DROP TABLE barrier_topology"
ORDERS = ExternalSource("orders", "files", {"path": "/landing"})
JOBS = {
    "shop": (
        Job("load", "shop", outlets=("shop.orders",), externals=(ORDERS,)),
        Job("ratio", "shop", inlets=("shop.orders", "veiled.prices"), outlets=("shop.ratio", "shop.rest")),
    ),
    "secret": (
        Job("veiled_load", "secret", outlets=("veiled.prices",), externals=(ExternalSource("veiled_in", "files", {}),)),
    ),
}


def declared(meta: MetaService) -> World:
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
    with changed_by_hand(world.meta) as connection:
        for table, columns in ((schema.barrier, ["opened_at"]), (schema.table_progress, ["processed_at"])):
            here = (table.c.topology == world.name, table.c.barrier_id == barrier_id)
            for column in columns:
                there = (*here, table.c[column].is_not(None))
                connection.execute(update(table).where(*there).values({column: ago}), {"seconds": -seconds})


def joining(world: World) -> None:
    """A job of DAG `stats` joins by revision 1, which computes its table over barrier 1."""
    mean = Job("mean", "stats", inlets=("shop.orders",), outlets=("stats.mean",), start_from={"shop.orders": "history"})
    world.declare([mean], "stats")
    world.meta.revisions.begin(
        NewRevision(
            topology="shop", mode=RevisionMode.HISTORY, first_barrier=1, predecessor=0, window_end=1,
            tables=["stats.mean"], jobs=["mean"], changed=["mean"],
            topology_version=world.meta.topologies.version("shop"), reason="new", actor="person",
            joining={"stats.mean": None},
        )
    )  # fmt: skip


def everything(world: World) -> Revision:
    """Barriers that are COMMIT, OPEN with an attempt that failed and one that waits, and ABORTED; sinks, a lease and a
    revision. What is of DAG `secret` has SECRET in its name.
    """
    meta = world.meta
    for dag, table in (("secret", "veiled.prices"), ("shop", "shop.ratio")):
        name = f"{dag if dag == 'shop' else SECRET}_sink"
        meta.deliveries.register("shop", SinkDeclaration(name, dag, "files", {table: "x", "veiled.prices": "y"}), "me")
        meta.deliveries.claim("shop", name, "task", None)
    opened(world, 1)
    world.process_all(1)
    world.commit(1)
    for name in ("veiled_sink", "shop_sink"):
        meta.deliveries.delivered("shop", name, Position(1, 0), counts=Counts(1), seconds=1.0, actor="task")
    meta.answers.resolve("shop", Level.REPEATABLE_READ, hold=Hold(f"reader {SECRET}", 600))
    opened(world, 2)
    world.process(2, "load")
    failed = world.start(2, "veiled_load")
    meta.attempts.start(world.request(2, "ratio").attempt_id)
    meta.attempts.abort(failed.attempt_id, HOSTILE, "test")
    revision = world.revise(1, "veiled_load", reason=HOSTILE)
    opened(world, 3)
    meta.barriers.abort("shop", 3, HOSTILE, "test")
    age(world, 2, 3600)
    return revision
