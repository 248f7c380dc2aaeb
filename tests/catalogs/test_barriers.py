"""Whole barriers through the coordinator, on catalogs that publish table by table, and on an object store."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ConfigurationError, ForeignWriteError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.tables import Table
from tests.support.metastores import METASTORES, settings_in
from tests.support.object_store import ObjectStore
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, COLUMNS, FRAGMENT, JOBS, PRICE, SHOPPING, Shop, make_shop
from tests.support.waiting import patience

ROWS = [{"amount": 100, "price": 1000}]
MORE = [{"amount": 200, "price": 1500}]
FIRST = {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}
BOTH = {SHOPPING: 2500, AMOUNT: 300, PRICE: 2500}

#: A committer that is killed as soon as the server has taken the commit of so many tables, by this method.
COMMITTER = """
import importlib, json, os, signal, sys
from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings

settings, barrier_id, left = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
module, owner, method = sys.argv[4].split()
owner = getattr(importlib.import_module(f"airflow_barrier.tables.{module}"), owner)
commit = getattr(owner, method)

def killed_afterwards(*arguments):
    global left
    location = commit(*arguments)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return location

setattr(owner, method, killed_afterwards)
settings["catalog_properties"] = tuple(map(tuple, settings["catalog_properties"]))
commit_barrier(Deployment.connect(Settings(**settings)), "shopping", barrier_id, actor="killed")
"""


#: What commits to one table.
COMMITS = {
    "rest": "_rest_server RestServer commit",
    "hive": "_hive_catalog HivePointers move",
    "old_hive": "_hive_catalog HivePointers move",
    "glue": "_glue_catalog GluePointers move",
}


@pytest.fixture(params=["rest", *METASTORES])
def catalog(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def settings(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if catalog != "rest":
        return settings_in(request.getfixturevalue(catalog), tmp_path)
    server = request.getfixturevalue("rest_server")
    return Settings(f"sqlite:///{tmp_path}/meta.db", server.uri, str(tmp_path / "warehouse"))


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    shop = make_shop(settings)
    yield shop
    for table in COLUMNS:
        shop.deployment.tables.catalog.drop_table(table)
    shop.deployment.close()


def totals_at(shop: Shop, level: Level) -> dict[str, int]:
    resolution = shop.deployment.meta.answers.resolve("shopping", level)
    return {name: shop.total(name, table.snapshot_id) for name, table in resolution.tables.items()}


def test_barriers_that_are_published_table_by_table(shop: Shop) -> None:
    assert not shop.deployment.shares_database
    assert not shop.deployment.tables.atomic
    first = shop.open(1)
    assert shop.process_all(first, ROWS).state is BarrierState.PRECOMMIT
    assert set(shop.main_totals().values()) == {0}
    second = shop.open(2)
    shop.commit(first)
    assert shop.main_totals() == totals_at(shop, Level.REPEATABLE_READ) == FIRST
    shop.process_all(second, MORE)
    shop.commit(second)
    assert shop.main_totals() == BOTH
    shop.deployment.tables.catalog.load_table(AMOUNT).append(
        shop.deployment.tables.load(AMOUNT).scan().to_arrow().slice(0, 1)
    )
    with pytest.raises(ForeignWriteError, match=f"table {AMOUNT}: expected main at snapshot"):
        shop.commit(shop.process_all(shop.open(3), ROWS))
    assert totals_at(shop, Level.REPEATABLE_READ) == BOTH


def test_declared_tables_are_made_in_the_catalog(shop: Shop) -> None:
    """By one of several who open at once; another one's columns are told."""
    tables = shop.deployment.tables
    for table in COLUMNS:
        tables.catalog.drop_table(table)
    declared = [Table(table, ", ".join(f"{column} BIGINT" for column in COLUMNS[table])) for table in COLUMNS]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: tables.create(declared[0]), range(4)))
    assert sorted(made) == [False, False, False, True]
    shop.commit(shop.process_all(shop.open(1, replace(FRAGMENT, tables=tuple(declared))), ROWS))
    assert shop.main_totals() == FIRST
    assert tables.wap_enabled(list(COLUMNS)) == dict.fromkeys(COLUMNS, True)
    assert tables.differences(Table(AMOUNT, "amount STRING")) == ["column amount is long, declared string"]
    fresh = Table(f"n{uuid4().hex[:8]}.a", "id BIGINT NOT NULL, at TIMESTAMP", partitioned_by=["days(at)"])
    assert tables.create(fresh), "with its namespace"
    assert [str(field.transform) for field in tables.load(fresh.name).spec().fields] == ["day"]


@pytest.mark.parametrize("published", [1, 2, 3])
def test_a_publish_that_died_halfway_is_resumed(shop: Shop, settings: Settings, catalog: str, published: int) -> None:
    """Readers by the MetaService's map see nothing of it, readers of `main` a mixture until somebody goes on."""
    shop.commit(shop.process_all(shop.open(1), ROWS))
    barrier = shop.process_all(shop.open(2), MORE)
    arguments = [json.dumps(dataclasses.asdict(settings)), str(barrier.barrier_id), str(published), COMMITS[catalog]]
    died = subprocess.run(
        [sys.executable, "-c", COMMITTER, *arguments], capture_output=True, text=True, timeout=patience(), check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert shop.deployment.meta.barriers.get("shopping", 2).state is BarrierState.COMMITTING
    mixture = shop.main_totals()
    in_order = sorted(COLUMNS)
    assert [mixture[table] == BOTH[table] for table in in_order] == [n < published for n in range(3)]
    assert totals_at(shop, Level.REPEATABLE_READ) == FIRST, "a whole barrier, the one before"
    before = shop.deployment.tables.metadata_locations(in_order[:published])
    committed = shop.commit(barrier)
    assert committed.barrier.state is BarrierState.COMMIT
    assert shop.main_totals() == totals_at(shop, Level.REPEATABLE_READ) == BOTH
    after = shop.deployment.tables.metadata_locations(in_order[:published])
    assert after == before, "what was published already is not sent again"


@pytest.mark.parametrize("catalog", ["rest"], indirect=True)
def test_a_catalog_that_says_it_is_atomic_and_is_not_is_refused_before_anything_happens(
    shop: Shop, settings: Settings
) -> None:
    said = Shop(type(shop.deployment).connect(dataclasses.replace(settings, catalog_publish="atomic")))
    with pytest.raises(ConfigurationError, match='Set catalog_publish to "roll-forward"'):
        said.open(1)
    assert said.deployment.meta.topologies.names() == []
    said.deployment.close()


def test_a_table_outside_the_topology_is_cut_and_held_in_the_catalog(shop: Shop) -> None:
    tables = shop.deployment.tables
    tables.catalog.create_namespace_if_not_exists("outside")
    rates = tables.catalog.create_table("outside.rates", pa.schema([("rate", pa.int64())]))
    source = IcebergTable("outside.rates").declare()
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source,))
    for barrier_id in (1, 2):
        rates.append(pa.table({"rate": [barrier_id]}))
        opened = open_barrier(
            shop.deployment,
            Fragment("shopping", "shopping_dag", (load, *JOBS[1:])),
            datetime.now(timezone.utc),
            timestamp_from="test",
            run=run_of(f"run-{barrier_id}"),
            actor="test",
        )
        assert isinstance(opened, Opened)
        cut = shop.deployment.meta.cuts.of("shopping", barrier_id)["outside.rates"]
        head = tables.mains(["outside.rates"])["outside.rates"]
        assert head in cut.end.values()
        held = {ref.snapshot_id for name, ref in tables.load("outside.rates").refs().items() if name != "main"}
        assert head in held, "nobody's expiry takes what an epoch reads"
        shop.commit(shop.process_all(opened.barrier, ROWS))
    tables.catalog.drop_table("outside.rates")


def test_barriers_on_an_object_store(s3: ObjectStore, tmp_path: Path) -> None:
    """Tables, journal and epoch specs, by the storage properties of the connection."""
    s3.make_bucket("lake")
    shop = make_shop(
        Settings(
            f"sqlite:///{tmp_path}/barrier.db",
            f"sqlite:///{tmp_path}/barrier.db",
            "s3://lake/warehouse",
            catalog_properties=tuple(s3.properties.items()),
        )
    )
    assert shop.deployment.shares_database
    shop.commit(shop.process_all(shop.open(1), ROWS))
    shop.commit(shop.process_all(shop.open(2), MORE))
    assert shop.main_totals() == totals_at(shop, Level.REPEATABLE_READ) == BOTH
    tables = shop.deployment.tables
    head = tables.location("_barrier", "shopping", "journal", "head.json")
    assert json.loads(tables.read_text(head))["barrier_id"] == 2
    uri = tables.location("a", "file with spaces.txt")
    assert not tables.exists(uri)
    with pytest.raises(FileNotFoundError):
        tables.read_text(uri)
    for text in ("first", "second, which is longer"):
        tables.write_text(uri, text)
        assert (tables.exists(uri), tables.read_text(uri)) == (True, text)
    tables.delete([uri, uri])
    assert not tables.exists(uri)
    shop.deployment.close()
