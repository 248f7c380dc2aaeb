"""A database as a source, through the coordinator: what is taken out is kept, let go of, and taken anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.cuts import begin_anew
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.coordinator.next import next_opening
from airflow_barrier.coordinator.waiting import Wait
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.sources.port import text_of
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.sources.postgresql.rows import PostgreSQLRows
from tests.coordinator.test_next import run_of_day
from tests.sources.databases import Database, Image, database_of
from tests.support.postgresql import PostgreSQL as Server
from tests.support.scheduling import Scheduled
from tests.support.shop import JOBS, MONDAY, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 1}]
SOURCE = PostgreSQL("shop_db", "shop", ["public.t"])
LOAD = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(SOURCE.declare(),))
FRAGMENT = Fragment("shopping", "shopping_dag", (LOAD, *JOBS[1:]))
SLOTS = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def database(postgresql: Server) -> Iterator[Database]:
    with database_of(postgresql) as database:
        database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (0, 0)")
        yield database


@pytest.fixture
def shop(embedded: Shop, database: Database) -> Shop:
    return Shop(replace(embedded.deployment, credentials=lambda *_: database.credentials))


def cut_of(shop: Shop, barrier_id: int) -> Cut:
    return shop.deployment.meta.cuts.of("shopping", barrier_id)["shop_db"]


def rows(shop: Shop, *barriers: int) -> list[tuple[Any, ...]]:
    image = Image()
    for barrier in barriers:
        image.take(cut_of(shop, barrier))
    return image.rows("public.t")


def test_what_an_aborted_barrier_had_is_in_the_next_one(shop: Shop, database: Database, caplog: Any) -> None:
    caplog.set_level("INFO")
    for day in (1, 2):
        database.run(f"INSERT INTO t VALUES ({day}, 0)")
        shop.open(day, FRAGMENT)
    abort_barrier(shop.deployment, "shopping", 2, reason="again", actor="test")
    database.run("INSERT INTO t VALUES (3, 0)")
    shop.open(3, FRAGMENT)
    assert rows(shop, 1, 3) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert f"shop_db up to position {cut_of(shop, 3).end['lsn']}, with 2 changes" in caplog.text


def test_while_no_barrier_may_open_the_slot_goes_on(shop: Shop, database: Database, caplog: Any) -> None:
    shop = Shop(replace(shop.deployment, max_open_barriers=1))
    shop.open(1, FRAGMENT)
    for number in (1, 2):
        database.run(f"INSERT INTO t VALUES ({number}, 0)")
        before = database.rows(SLOTS)
        wait = next_opening(shop.deployment, run_of_day(2), FRAGMENT, Scheduled(), actor="test", triggered=False)
        assert isinstance(wait, Wait)
        assert wait.look_again == 300
        assert database.rows(SLOTS) != before
    broken = replace(shop.deployment, credentials=lambda *_: replace(database.credentials, password="wrong"))
    next_opening(broken, run_of_day(2), FRAGMENT, Scheduled(), actor="test", triggered=False)
    assert "source shop_db cannot keep up while no barrier may open" in caplog.text
    abort_barrier(shop.deployment, "shopping", 1, reason="again", actor="test")
    shop.open(2, FRAGMENT)
    assert rows(shop, 2) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.kills("begins-anew-after-a-cut")
def test_a_source_begins_anew_with_its_next_cut(shop: Shop, database: Database) -> None:
    """Where its cut was put off, too, since the slot was gone: it is made when its job begins."""
    deployment, barrier = shop.deployment, shop.open(1, FRAGMENT)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)
    database.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE active_pid IS NULL "
                 "AND database = current_database()", "DELETE FROM t", "INSERT INTO t VALUES (7, 7)")  # fmt: skip
    second = shop.open(2, FRAGMENT)
    assert "is gone" in (cut_of(shop, 2).put_off or "")
    with pytest.raises(SourceDataError, match="airflow-barrier source resnapshot TOPOLOGY shop_db"):
        shop.begin(second, "load")
    assert begin_anew(deployment, "shopping", "shop_db", reason="the slot is gone", actor="me").barrier_id == 1
    (told,) = [each for each in deployment.meta.audit.newest("shopping") if each.event == "begins anew"]
    assert (told.actor, told.detail["reason"]) == ("me", "the slot is gone")
    shop.begin(second, "load")
    assert rows(shop, 1, 2) == [(7, 7)]
    database.run("INSERT INTO t VALUES (8, 8)")
    shop.open(3, FRAGMENT)
    assert rows(shop, 1, 2, 3) == [(7, 7), (8, 8)]
    with pytest.raises(ConfigurationError, match=r"expected a source that can begin anew \(shop_db\)"):
        begin_anew(deployment, "shopping", "other", reason="why not", actor="me")
    fresh = Job("copy", "shopping_dag", outlets=("shop.copy",), externals=(replace(SOURCE, name="fresh").declare(),))
    deployment.meta.topologies.register("fresh", "shopping_dag", [fresh], "test")
    with pytest.raises(SourceDataError, match="expected source fresh to have been cut"):
        begin_anew(deployment, "fresh", "fresh", reason="why not", actor="me")


def test_the_command(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.open(1, FRAGMENT)
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", "")
    monkeypatch.setattr("airflow_barrier.cli.commands.source.connected", lambda _: Given(shop.deployment))
    assert main(["source", "resnapshot", "shopping", "shop_db", "--reason", "restored"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "its next cut, after barrier 1 of shopping, has what is there then" in said
    assert cut_of(shop, 1).anew == "restored"


class Given:
    def __init__(self, deployment: Any) -> None:
        self._deployment = deployment

    def __enter__(self) -> Any:
        return self._deployment

    def __exit__(self, *_: object) -> None: ...


def test_files_go_with_the_barriers_that_expire(shop: Shop, database: Database) -> None:
    tables = shop.deployment.tables
    for day in range(1, 5):
        database.run(f"INSERT INTO t VALUES ({day}, 0)")
        barrier = shop.open(day, FRAGMENT)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
    there = [SOURCE.check_held(cut_of(shop, barrier), tables) for barrier in range(1, 5)]
    assert there == [None] * 4
    expire(shop.deployment, "shopping", Retention(2), lambda *_: None, actor="test")
    for kept in (3, 4):
        SOURCE.check_held(cut_of(shop, kept), tables)
    for gone in (1, 2):
        with pytest.raises(SourceDataError, match="its barrier expired, or somebody deleted them"):
            SOURCE.check_held(cut_of(shop, gone), tables)


def test_rows_by_their_times_from_the_first_barrier_until_their_job_leaves(shop: Shop, database: Database) -> None:
    """A barrier that was aborted, one whose files expired, and a source that begins anew."""
    source, deployment = PostgreSQLRows("shop_db", "shop", ["public.t"], by="at"), shop.deployment
    fragment = Fragment("shopping", "shopping_dag", (replace(LOAD, externals=(source.declare(),)), *JOBS[1:]))
    database.run(f"ALTER TABLE t ADD at timestamptz NOT NULL DEFAULT '{MONDAY}'", "CREATE INDEX ON t (at)")
    image = Image(upserts=True)
    for day in range(1, 6):
        at = MONDAY + timedelta(days=day, hours=-1)
        database.run(f"INSERT INTO t VALUES ({day}, {day}, '{at}')", f"UPDATE t SET a = 9, at = '{at}' WHERE id = 0")
        if day == 5:
            database.run("DELETE FROM t WHERE id = 1")
            begin_anew(deployment, "shopping", "shop_db", reason="rows were deleted", actor="me")
        barrier = shop.open(day, fragment)
        if day == 2:
            abort_barrier(deployment, "shopping", 2, reason="again", actor="test")
            continue
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
        image.take(cut_of(shop, day))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))
    assert cut_of(shop, 3).words == f"times up to {text_of(MONDAY + timedelta(days=3))}, with 3 rows"
    expire(deployment, "shopping", Retention(1), lambda *_: None, actor="test")
    source.check_held(cut_of(shop, 5), deployment.tables)
    with pytest.raises(SourceDataError, match="its barrier expired, or somebody deleted them"):
        source.check_held(cut_of(shop, 1), deployment.tables)
    leave(deployment, "shopping", "shopping_dag", None, reason="moves", actor="me")


def test_who_leaves_takes_the_slot_along(shop: Shop, database: Database, caplog: Any) -> None:
    other = IcebergTable("shop.user_item_price").declare()
    fragment = Fragment("shopping", "shopping_dag", (replace(LOAD, externals=(*LOAD.externals, other)), *JOBS[1:]))
    barrier = shop.open(1, fragment)
    abort_barrier(shop.deployment, "shopping", barrier.barrier_id, reason="leaves", actor="test")
    shop.open(2, fragment)
    abort_barrier(shop.deployment, "shopping", 2, reason="leaves", actor="test")
    assert len(database.rows(SLOTS)) == 1
    leave(shop.deployment, "shopping", "shopping_dag", None, reason="moves", actor="me")
    assert database.rows(SLOTS) == []
