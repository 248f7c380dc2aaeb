"""Metadata as tables: the seeds' own columns and query, in the database itself and for engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timezone

import pytest
from sqlalchemy import create_engine, text

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import Position
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.metadata import METADATA_TABLES
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_deliveries import B1, B3, PRICES, delivered, register
from tests.metaservice.test_leases import kill, leased
from tests.metaservice.test_maintenance import compact, maintain
from tests.metaservice.world import AMOUNT, FILES, PRICE, SHOPPING, World
from tests.support.postgresql import with_driver

#: As it stands in the seeds, down to the capitals; they ask for `Table1`, which is a table of the topology here.
SEEDS_QUERY = """
SELECT T.table_name
 FROM __META_JOB_SOURCE S
 JOIN __META_JOB_Sink T ON S.job_id=T.job_id
 WHERE S.table_name='shop.shopping'
"""
OTHER_SPELLING = SEEDS_QUERY.replace("__META_JOB_SOURCE", "__META_ETL_SOURCE").replace("_JOB_Sink", "_ETL_SINK")
QUOTED = OTHER_SPELLING.replace("__META_ETL_SOURCE", '"__META_ETL_SOURCE"').replace(
    "__META_ETL_SINK", '"__META_ETL_SINK"'
)
SEEDS_JOBS = (
    Job("load", "dag", outlets=(SHOPPING,), externals=(FILES,)),
    Job("amount", "dag", inlets=(SHOPPING,), outlets=(AMOUNT,)),
    Job("price", "dag", inlets=(SHOPPING,), outlets=(PRICE,)),
)
LOAD_JOB_BESIDE = Job("load", "dag", outlets=("c.shopping",))


@pytest.fixture
def seeds(meta: MetaService) -> World:
    """The seeds' topology, and one beside it whose jobs and tables bear similar names."""
    other = [
        Job("load", "dag", outlets=("b.shopping",)),
        Job("amount", "dag", inlets=("b.shopping",), outlets=("b.amount",)),
    ]
    World(meta, "other", other)
    return World(meta, jobs=SEEDS_JOBS)


def answers(url: str, query: str) -> list[tuple[object, ...]]:
    """Straight from the database."""
    engine = create_engine(with_driver(url))
    with engine.connect() as connection:
        rows = sorted(tuple(row) for row in connection.execute(text(query)))
    engine.dispose()
    return rows


def rows(world: World, name: str, topology: str | None = "shopping") -> list[tuple[object, ...]]:
    return world.meta.audit.metadata(name, topology)[1]


@pytest.mark.parametrize("query", [SEEDS_QUERY, OTHER_SPELLING, QUOTED], ids=["job", "etl", "quoted"])
def test_the_seeds_own_query_answers_right(seeds: World, url: str, query: str) -> None:
    assert answers(url, query) == [(AMOUNT,), (PRICE,)]
    assert answers(url, query.replace(SHOPPING, "b.shopping")) == [("b.amount",)]
    assert answers(url, query.replace(SHOPPING, AMOUNT)) == []


def test_jobs_with_their_tables(seeds: World) -> None:
    assert rows(seeds, "__META_ETL_SOURCE") == [
        ("shopping.amount", SHOPPING, "shopping", "amount"),
        ("shopping.price", SHOPPING, "shopping", "price"),
    ]
    assert rows(seeds, "__META_ETL_SINK", None) == [
        ("other.amount", "b.amount", "other", "amount"),
        ("other.load", "b.shopping", "other", "load"),
        ("shopping.amount", AMOUNT, "shopping", "amount"),
        ("shopping.load", SHOPPING, "shopping", "load"),
        ("shopping.price", PRICE, "shopping", "price"),
    ]
    assert rows(seeds, "__meta_job_sink") == rows(seeds, "__META_ETL_SINK")
    seeds.declare(SEEDS_JOBS[:2])
    assert [row[0] for row in rows(seeds, "__META_ETL_SINK")] == ["shopping.amount", "shopping.load"]


def test_the_version_of_a_table_is_the_newest_committed_barrier(seeds: World) -> None:
    kinds = {AMOUNT: "Intermediate", PRICE: "Intermediate", SHOPPING: "Root"}
    at = [[(name, number, kind, "shopping") for name, kind in kinds.items()] for number in (0, 1)]
    assert rows(seeds, "__META_TABLE_VERSION") == at[0]
    assert rows(seeds, "__META_TABLE_VERSION", "other") == [
        ("b.amount", 0, "Intermediate", "other"),
        ("b.shopping", 0, "Root", "other"),
    ]
    seeds.committed(1)
    seeds.open(2)
    seeds.process_all(2)
    assert rows(seeds, "__META_TABLE_VERSION") == at[1]


def test_all_tables_have_the_columns_that_are_promised(seeds: World, url: str) -> None:
    seeds.committed(1)
    seeds.committed(2)
    seeds.meta.expiry.expire("shopping", [1], "test")
    seeds.revise(2, "load", mode=RevisionMode.FULL)
    kill(url, leased(seeds))
    seeds.meta.answers.resolve("shopping", Level.REPEATABLE_READ, hold=Hold("reader", 60))
    register(seeds)
    delivered(seeds, B1)
    seeds.meta.deliveries.failed("shopping", "prices", "no answer", "test")
    for name, table in METADATA_TABLES.items():
        columns, found = seeds.meta.audit.metadata(name)
        assert columns == table.columns
        assert found, name
        keys = [row[: table.key] for row in found]
        assert len(set(keys)) == len(found)
        assert None not in keys[0]
        here = [row for row in found if row[[column.name for column in columns].index("topology")] == "shopping"]
        assert seeds.meta.audit.metadata(name, "shopping")[1] == here
        for row in found:
            for column, value in zip(columns, row, strict=True):
                kind = {"string": str, "bigint": int}.get(column.type)
                assert value is None or (isinstance(value, kind) if kind else value.tzinfo is timezone.utc), column


def test_barriers_their_tables_and_what_can_be_read(seeds: World) -> None:
    for number in (1, 2):
        seeds.committed(number)
    seeds.meta.expiry.expire("shopping", [1], "test")
    columns = [column.name for column in seeds.meta.audit.metadata("__META_BARRIER")[0]]
    barriers = [dict(zip(columns, row, strict=True)) for row in rows(seeds, "__META_BARRIER")]
    assert [(each["barrier_id"], each["state"], each["timestamp"] is None) for each in barriers] == [
        (0, "COMMIT", True),
        (1, "COMMIT", False),
        (2, "COMMIT", False),
    ]
    assert [each["expiring_at"] is not None for each in barriers] == [False, True, False]
    assert barriers[2]["timestamp"] == seeds.barrier(2).timestamp
    tag = seeds.barrier(2).tag
    assert rows(seeds, "__META_SNAPSHOT") == [
        ("shopping", 0, 2, name, seeds.barrier(2).timestamp, snapshot, tag)
        for name, snapshot in seeds.snapshots(2).items()
    ]
    held = leased(seeds)
    assert rows(seeds, "__META_LEASE") == [
        (held.lease_id, "shopping", 0, 2, 2, "reader", held.granted_at, held.expires_at)
    ]


def test_what_a_revision_replaced_is_seen_no_more(seeds: World) -> None:
    for number in (1, 2):
        seeds.committed(number)
    seeds.revised(2, "load")
    assert [row[:4] for row in rows(seeds, "__META_REVISION")] == [("shopping", 1, "COMMIT", "incremental")]
    assert [row[:3] for row in rows(seeds, "__META_BARRIER")] == [
        ("shopping", r, b) for r, b in ((0, 0), (0, 1), (1, 2))
    ]
    snapshots = {(row[2], row[3]): row[5:] for row in rows(seeds, "__META_SNAPSHOT")}
    assert snapshots == {
        (number, name): (snapshot, seeds.barrier(number).tag)
        for number in (1, 2)
        for name, snapshot in seeds.snapshots(number).items()
    }
    progress = [row[2:4] for row in rows(seeds, "__META_TABLE_PROGRESS") if row[1] == 1]
    assert sorted(progress) == [(2, name) for name in sorted(seeds.tables(2))]


def test_how_far_each_sink_is_and_how_late(seeds: World, url: str) -> None:
    seeds.committed(1)
    early = register(seeds)
    register(World(seeds.meta, "beside", (LOAD_JOB_BESIDE,)), replace(PRICES, targets={"c.shopping": "c"}))
    register(seeds, replace(PRICES, name="amounts", owner="theirs", kind="files", targets={AMOUNT: "amounts"}))
    nothing = ("shopping", "prices", "dag", "postgresql", "ACTIVE", None, None, None, 0, None, None, None, 0)
    assert rows(seeds, "__META_DELIVERY")[1] == nothing
    assert early.position is None
    seeds.committed(2)
    seeds.committed(3)
    seeds.open(4)
    since = [seeds.barrier(number).commit_at for number in (2, 3)]
    assert rows(seeds, "__META_DELIVERY")[1] == (*nothing[:8], 2, since[0], None, None, 0), "since it was declared"
    sink = delivered(seeds, B1, name="amounts")
    assert rows(seeds, "__META_DELIVERY")[0] == (
        "shopping", "amounts", "theirs", "files", "ACTIVE", 1, 0, sink.delivered_at, 2, since[0], None, None, 0
    )  # fmt: skip
    sink = delivered(seeds, Position(2, 1), name="amounts")
    seeds.meta.deliveries.pause("shopping", "amounts", "test", "moves")
    failed = seeds.meta.deliveries.failed("shopping", "amounts", "no answer", "test")
    assert rows(seeds, "__META_DELIVERY")[0] == (
        "shopping", "amounts", "theirs", "files", "PAUSED", 2, 1, sink.delivered_at, 1, since[1], "no answer",
        failed.failed_at, 1,
    )  # fmt: skip
    delivered(seeds, B3, name="amounts")
    assert rows(seeds, "__META_DELIVERY")[0][8:10] == (0, None)
    seeds.abort(4)
    compaction = maintain(seeds)
    assert compaction is not None
    compact(seeds, compaction, AMOUNT)
    seeds.meta.maintenance.carry("shopping", compaction.barrier_id, "test")
    seeds.commit(compaction.barrier_id)
    assert rows(seeds, "__META_DELIVERY")[0][8:10] == (0, None), "there are no rows to deliver of that"
    assert (
        answers(url, 'SELECT topology, sink, lag_barriers FROM "__META_DELIVERY"')
        == answers(url, "SELECT topology, sink, lag_barriers FROM __META_DELIVERY")
        == [("beside", "prices", 0), ("shopping", "amounts", 0), ("shopping", "prices", 2)]
    )


def test_a_name_that_is_none(meta: MetaService) -> None:
    with pytest.raises(ConfigurationError, match="'__META_JOB': expected one of __META_ETL_SOURCE, __META_JOB_SOURCE"):
        meta.audit.metadata("__META_JOB")
