"""A database's log is cut: each change is in one epoch, whoever dies in between, and what is gone is told."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.protocol.errors import (
    ConfigurationError,
    RevisionRefusedError,
    SourceDataError,
    SourceUnavailableError,
)
from airflow_barrier.protocol.names import rehearsal_name
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.sources.postgresql.database import Database as Session
from airflow_barrier.sources.postgresql.extraction import Snapshot
from airflow_barrier.sources.postgresql.segments import Segments
from tests.races.racers import PROCESSES
from tests.sources.databases import Beside, Database, Image, database_of
from tests.sources.landing import Cutter, day
from tests.support.postgresql import PostgreSQL as Server
from tests.support.waiting import patience, wait_for

pytestmark = [
    pytest.mark.drawn("databases"),
    pytest.mark.touches("sources/postgresql/cuts.py", "sources/postgresql/extraction.py"),
]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT)"


def refused(source: PostgreSQL, start: dict[str, Any], beside: Beside) -> str:
    request = replace(Cutter(source, beside).request(day(9)), start=start)
    with pytest.raises(SourceDataError, match=r"source shop_db: expected to go on") as error:
        source.cut(request)
    return str(error.value)


# --- the first epoch ------------------------------------------------------------------------------


def test_what_is_in_the_copy_is_not_among_the_changes(database: Database, beside: Beside) -> None:
    """The slot was there before; transactions end before the copy, or are open while it is made."""
    database.run(TABLE, "CREATE PUBLICATION p FOR TABLE t", "INSERT INTO t VALUES (1, 1)")
    database.run("SELECT pg_create_logical_replication_slot('s" + str(os.getpid()) + "', 'pgoutput')")
    source = database.source("public.t", slot=f"s{os.getpid()}", publication="p")
    database.run("INSERT INTO t VALUES (2, 2)", "UPDATE t SET a = 3 WHERE id = 1")
    with database.connect(autocommit=False) as across:
        across.execute("INSERT INTO t VALUES (4, 4)")
        barriers, image = Cutter(source, beside), Image()
        image.take(barriers.cut(day(1)))
        assert image.rows("public.t") == [(1, 3), (2, 2)]
        across.commit()
    image.take(barriers.cut(day(2)))
    assert image.rows("public.t") == [(1, 3), (2, 2), (4, 4)]


def test_a_snapshot_tells_who_is_in_it() -> None:
    seen = Snapshot.of("4294967290:4294967300:4294967292,4294967298")
    inside = [4294967289, 4294967291, 4294967295, 1, 3]  # as the messages have them: 32 bits
    assert [seen.sees(xid % 2**32) for xid in inside] == [True] * 5
    assert [seen.sees(xid % 2**32) for xid in (4294967292, 4294967298, 4294967300, 4294967301)] == [False] * 4


def test_tables_that_were_loaded_by_other_means(database: Database, beside: Beside) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1, 1)")
    source, image = database.source("public.t"), Image()
    barriers = Cutter(source, beside)
    latest = replace(barriers.request(day(1)), already=day(1))
    barriers.cuts.append((day(1), source.cut(latest)))
    database.run("INSERT INTO t VALUES (2, 2)")
    for _, cut in [*barriers.cuts, (None, barriers.cut(day(2)))]:
        image.take(cut)
    assert image.rows("public.t") == [(2, 2)]
    for already in (day(0), {"offset": 1}, {"lsn": "first"}):
        with pytest.raises(ConfigurationError, match="expected start_from to be 'earliest', 'latest'"):
            Cutter(source, beside).source.cut(replace(latest, already=already))


@pytest.mark.kills("begins-where-the-slot-can")
def test_the_log_is_read_from_a_position_that_the_slot_has(database: Database, beside: Beside) -> None:
    slot = f"loaded{os.getpid()}"
    database.run(TABLE, "CREATE PUBLICATION p FOR TABLE t")
    database.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", "INSERT INTO t VALUES (1, 1)")
    ((at,),) = database.rows("SELECT pg_current_wal_flush_lsn()::text")
    database.run("INSERT INTO t VALUES (2, 2)")
    source, image = database.source("public.t", slot=slot, publication="p"), Image()
    request = Cutter(source, beside).request(day(1))
    with pytest.raises(SourceDataError, match=r"expected slot loaded.* found that it begins at"):
        source.cut(replace(request, already={"lsn": "0/1"}))
    image.take(source.cut(replace(request, already={"lsn": at})))
    assert image.rows("public.t") == [(2, 2)]


def test_a_rehearsal_takes_nothing_away(database: Database, beside: Beside) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1, 1)")
    source = database.source("public.t")
    barriers, image, rehearsed = Cutter(source, beside), Image(), Image()
    name = rehearsal_name("shopping", "shopping", "by hand")
    rehearsed.take(source.cut(replace(barriers.request(day(1)), topology=name)))
    assert rehearsed.rows("public.t") == [(1, 1)]
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    image.take(barriers.cut(day(1)))
    database.run("INSERT INTO t VALUES (2, 2)")
    rehearsed.take(source.cut(replace(barriers.request(day(2)), topology=name)))
    image.take(barriers.cut(day(2)))
    assert rehearsed.rows("public.t") == image.rows("public.t") == [(1, 1), (2, 2)]


# --- who dies in between --------------------------------------------------------------------------


def _die_at(step: str, at: Any, topology: str, start: Any, warehouse: str) -> None:
    """In a process of its own, which is killed before or after it writes a segment, or lets go."""
    owner, name = {"put": (Segments, "put"), "advance": (Session, "advance"), "slot": (Session, "make_slot")}[
        step.partition(" ")[2]
    ]
    real = getattr(owner, name)

    def deadly(*args: Any) -> None:
        if step.startswith("after"):
            real(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, deadly)
    source = PostgreSQL("shop_db", "shop", ["public.t"]).within(Limits(), at)
    source.cut(replace(Cutter(source, Beside(Path(warehouse))).request(day(1)), topology=topology, start=start))


@pytest.mark.parametrize("step", ["before put", "after put", "before advance", "after advance", "after slot"])
def test_a_worker_that_is_killed(step: str, database: Database, beside: Beside, tmp_path: Path) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1, 1)")
    source, image = database.source("public.t"), Image()
    barriers = Cutter(source, beside)
    for barrier in range(1, 3):
        start = barriers.cuts[-1][1].end if barriers.cuts else None
        database.run(f"INSERT INTO t VALUES ({barrier + 10}, 0)")
        if barrier == 1 or step != "after slot":
            arguments = (step, database.credentials, "shopping", start, str(tmp_path))
            worker = PROCESSES.Process(target=_die_at, args=arguments, daemon=True)
            worker.start()
            worker.join(patience())
            assert worker.exitcode == -signal.SIGKILL
        database.run(f"INSERT INTO t VALUES ({barrier + 1}, 0)", "UPDATE t SET a = a + 1")
        image.take(barriers.cut(day(barrier)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))


def test_a_server_that_is_killed(own_postgresql: Server, beside: Beside) -> None:
    """Its slots may go back a little, since they are written now and then only."""
    with database_of(own_postgresql) as database:
        database.run(TABLE)
        source, image = database.source("public.t"), Image()
        barriers = Cutter(source, beside)
        for barrier in range(4):
            database.run(f"INSERT INTO t VALUES ({barrier}, 0)", "UPDATE t SET a = a + 1")
            image.take(barriers.cut(day(barrier + 1)))
            if barrier % 2:
                own_postgresql.kill()
                with pytest.raises(SourceUnavailableError, match="expected PostgreSQL at"):
                    barriers.cut(day(9))
                own_postgresql.start()
        image.take(barriers.cut(day(9)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))


@pytest.mark.timeout(600)
def test_twenty_clients_over_three_tables(database: Database, beside: Beside) -> None:
    """At each barrier no order is there without its items, nor with a total that is not theirs."""
    deferred = "DEFERRABLE INITIALLY DEFERRED"
    database.run(
        "CREATE TABLE buyers (id INT PRIMARY KEY, spent INT)",
        f"CREATE TABLE orders (id INT PRIMARY KEY, buyer INT REFERENCES buyers {deferred}, total INT)",
        f"CREATE TABLE items (id INT PRIMARY KEY, ord INT REFERENCES orders {deferred}, price INT)",
        "INSERT INTO buyers SELECT g, 0 FROM generate_series(1, 50) g",
    )
    tables = ("buyers", "orders", "items")
    source, image = database.source(*(f"public.{table}" for table in tables)), Image()
    barriers, enough = Cutter(source, beside), threading.Event()
    clients = [threading.Thread(target=_buy, args=(database, number, enough)) for number in range(20)]
    for client in clients:
        client.start()
    try:
        while image.last < 20_000 or len(barriers.cuts) < 5:
            image.take(barriers.cut(day(len(barriers.cuts) + 1)))
            _check_whole(image)
    finally:
        enough.set()
        for client in clients:
            client.join(patience())
    image.take(barriers.cut(day(len(barriers.cuts) + 1)))
    for table in tables:
        assert image.rows(f"public.{table}") == sorted(database.rows(f"SELECT * FROM {table}"))


def _buy(database: Database, client: int, enough: threading.Event) -> None:
    draw, made = random.Random(client), 0
    with database.connect(autocommit=False) as connection:
        while not enough.is_set():
            for _ in range(draw.randint(1, 3)):
                made += 1
                order, buyer = client * 1_000_000 + made, draw.randint(1, 50)
                prices = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
                connection.execute("SAVEPOINT s")
                for number, price in enumerate(prices):
                    connection.execute("INSERT INTO items VALUES (%s, %s, %s)", [order * 5 + number, order, price])
                connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", [order, buyer, sum(prices)])
                if draw.random() < 0.2:
                    connection.execute("ROLLBACK TO s")
                elif draw.random() < 0.2:
                    connection.execute("DELETE FROM items WHERE ord = %s", [order])
                    connection.execute("DELETE FROM orders WHERE id = %s", [order])
            connection.rollback() if draw.random() < 0.2 else connection.commit()


def _check_whole(image: Image) -> None:
    sums: dict[int, int] = {}
    for _, order, price in image.rows("public.items"):
        sums[order] = sums.get(order, 0) + price
    orders = {id_: total for id_, _, total in image.rows("public.orders")}
    assert sums == orders
    assert {buyer for _, buyer, _ in image.rows("public.orders")} <= {id_ for id_, _ in image.rows("public.buyers")}


# --- what is gone ---------------------------------------------------------------------------------


@pytest.mark.kills("slot-is-there", "no-changes-are-skipped", "same-history")
def test_what_is_gone_is_told_and_nothing_is_skipped(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    source = database.source("public.t")
    cut = Cutter(source, beside).cut(day(1))
    assert "another database system" in refused(source, {**cut.end, "history": "7.1"}, beside)
    assert "of history" in refused(source, {**cut.end, "lsn": "FFFF/0"}, beside)
    database.run("INSERT INTO t VALUES (1, 1)")
    slot = cut.end["slot"]
    database.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")
    assert f"slot {slot} was advanced to" in refused(source, dict(cut.end), beside)
    database.run(f"SELECT pg_drop_replication_slot('{slot}')")
    assert f"slot {slot} is gone" in refused(source, dict(cut.end), beside)


def test_a_slot_that_was_lost(beside: Beside) -> None:
    """The source begins anew: it has all rows, after a sign that all rows went."""
    server = Server(max_slot_wal_keep_size="1MB", wal_keep_size="0", max_wal_size="32MB", min_wal_size="32MB")
    with server, database_of(server) as database:
        database.run(TABLE, "INSERT INTO t VALUES (-1, 0), (-2, 0)")
        source, image = database.source("public.t"), Image()
        barriers = Cutter(source, beside)
        cut = barriers.cut(day(1))
        image.take(cut)
        database.run("DELETE FROM t WHERE id = -1")
        for _ in range(4):
            server.run("SELECT pg_switch_wal()")
            database.run("INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g ON CONFLICT DO NOTHING")
        server.run("CHECKPOINT")
        wait_for(
            "the slot to be lost",
            lambda: database.rows("SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost'"),
        )
        assert f"slot {cut.end['slot']} is lost" in refused(source, dict(cut.end), beside)
        lag = source.lag(cut, day(1))
        assert lag is not None
        assert lag.is_urgent
        barriers.cuts[-1] = day(1), cut.then_anew("the slot was lost")
        image.take(barriers.cut(day(2)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))
        database.run("UPDATE t SET a = 1 WHERE id = -2")
        last = barriers.cut(day(3))
        image.take(last)
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))
        source.check_held(cut, beside)
        source.let_go(last, beside)
        with pytest.raises(SourceDataError, match="files are gone"):
            source.check_held(cut, beside)


def test_a_slot_that_fills_is_urgent_before_it_is_lost(beside: Beside, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(max_slot_wal_keep_size="96MB", wal_keep_size="0", max_wal_size="1GB")
    with server, database_of(server) as database:
        database.run(TABLE)
        source, image = database.source("public.t"), Image()
        with caplog.at_level(logging.WARNING, "airflow_barrier"):
            source.look(beside)
        assert "max_slot_wal_keep_size = 96MB: a slot that holds more of the log is lost" in caplog.text
        barriers = Cutter(source, beside)
        cut = barriers.cut(day(1))
        image.take(cut)

        def urgent() -> bool:
            lag = source.lag(cut, day(1))
            assert lag is not None
            return lag.is_urgent

        status = "SELECT wal_status FROM pg_replication_slots"
        told = [(server.run(status)[0][0], urgent())]
        for number in range(12):  # a file of 16 MB each
            database.run(f"INSERT INTO t VALUES ({number}, 0)")
            server.run("SELECT pg_switch_wal()")
            told.append((server.run(status)[0][0], urgent()))
        assert [*dict.fromkeys(told)] == [("reserved", False), ("reserved", True), ("unreserved", True)]
        for number in range(2, 5):
            # so that a list of open transactions is in the log, as it is every 15 seconds: the slot moves to such a one
            server.run("SELECT pg_create_logical_replication_slot('other', 'pgoutput', true)")
            cut = barriers.cut(day(number))
            image.take(cut)
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))
        assert not urgent()


@pytest.mark.kills("same-history")
def test_a_disk_that_was_put_back(beside: Beside) -> None:
    """The server does not know: its history has the same name, and its log has grown past where it was cut."""
    with Server() as server, database_of(server) as database:
        database.run(TABLE, "INSERT INTO t VALUES (1, 1)")
        source, image = database.source("public.t"), Image()
        barriers = Cutter(source, beside)
        for number in range(2, 4):
            image.take(barriers.cut(day(number)))
            database.run(f"INSERT INTO t VALUES ({number}, 1)")
        with server.copied_disk() as put_back:
            database.run("INSERT INTO t VALUES (10, 1)")
            lost = barriers.cut(day(4))
            image.take(lost)
            put_back()
        database.run("INSERT INTO t SELECT g, 0 FROM generate_series(100, 200) g", "DELETE FROM t WHERE id = 1")
        with pytest.raises(
            SourceDataError, match=r"expected slot .* to have transaction .*airflow-barrier source resnap"
        ):
            barriers.cut(day(5))
        barriers.cuts[-1] = day(4), lost.then_anew("the disk was put back")
        image.take(barriers.cut(day(5)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t"))


def test_a_database_that_was_restored(postgresql: Server, beside: Beside) -> None:
    """Its log is at a lower position than the one that was cut at."""
    with database_of(postgresql) as database, Server() as other, database_of(other) as restored:
        for each in (database, restored):
            each.run(TABLE, "INSERT INTO t VALUES (1, 1)")
        database.run("INSERT INTO t VALUES (2, 2)")
        image, source = Image(), database.source("public.t")
        barriers = Cutter(source, beside)
        image.take(barriers.cut(day(1)))
        now = restored.source("public.t")
        ((_, cut),) = barriers.cuts
        assert "another database system" in refused(now, dict(cut.end), beside)
        high = {**cut.end, "lsn": "FFFF/0"}
        barriers = Cutter(now, beside, [(day(1), replace(cut, end=high).then_anew("restored"))])
        for number in range(2, 4):
            image.take(barriers.cut(day(number)))
            assert image.rows("public.t") == sorted(restored.rows("SELECT * FROM t"))
            restored.run(f"INSERT INTO t VALUES ({number + 10}, 0)")
        now.let_go(barriers.cuts[1][1], beside)
        now.check_held(barriers.cuts[2][1], beside)


@pytest.mark.kills("copied-or-after-the-slot")
def test_a_transaction_that_is_committed_and_not_seen_yet(beside: Beside) -> None:
    """It waits for a standby: its commit is in the log, before where the slot is, and in no snapshot."""
    standby = {"max_wal_senders": "2", "synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with Server(**standby) as server, database_of(server) as database:
        database.run(TABLE)
        source, image = database.source("public.t"), Image()
        barriers = Cutter(source, beside)
        image.take(barriers.cut(day(1)))
        insert = "SET synchronous_commit = 'on'", "INSERT INTO t VALUES (1, 1)"
        waiting = threading.Thread(target=database.run, args=insert, daemon=True)
        waiting.start()
        waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_for("the commit to wait for a standby", lambda: server.run(f"SELECT 1 {waits}"))
        barriers.cuts[-1] = day(1), barriers.cut(day(2)).then_anew("while somebody waits")
        image.last = barriers.cuts[-1][1].end["last"]
        copying = threading.Thread(target=barriers.cut, args=(day(3),), daemon=True)
        copying.start()
        asks = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%pg_snapshot_xip%'"
        wait_for("the copy to wait", lambda: server.run(asks) or not copying.is_alive())
        assert copying.is_alive()
        server.run(f"SELECT pg_cancel_backend(pid) {waits}")  # that is the end of its wait, not of its commit
        for thread in (copying, waiting):
            thread.join(patience())
        image.take(barriers.cuts[-1][1])
        assert image.rows("public.t") == [(1, 1)]


@pytest.mark.kills("tables-that-were-copied")
def test_a_table_that_comes_later_comes_with_a_copy_of_all(database: Database, beside: Beside) -> None:
    database.run(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    barriers = Cutter(database.source("public.t"), beside)
    barriers.cut(day(1))
    both = Cutter(database.source("public.t", "public.u"), beside, barriers.cuts)
    database.run("INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1)")
    with pytest.raises(SourceDataError, match=r"found public\.u besides.*or have this one begin anew"):
        both.cut(day(2))
    both.cuts[-1] = day(1), barriers.cuts[-1][1].then_anew("another table")
    with pytest.raises(SourceDataError, match=r"expected publication .* to have public\.u") as error:
        both.cut(day(2))
    database.run(str(error.value).partition("found them missing: ")[2])
    image = Image()
    image.take(both.cut(day(2)))
    assert image.tables == {"public.t": {1: (1, 1)}, "public.u": {1: (1,)}}


@pytest.mark.kills("positions-are-not-cut-anew", "taken-changes-are-kept")
def test_epochs_are_kept_as_they_were(database: Database, beside: Beside) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1, 1)")
    source = database.source("public.t")
    barriers = Cutter(source, beside)
    cuts = []
    for number in range(2, 5):
        cuts.append(barriers.cut(day(number)))
        database.run(f"INSERT INTO t VALUES ({number}, 0)")
    assert source.repin(cuts[0]) == cuts[0]
    with pytest.raises(RevisionRefusedError, match="found a database"):
        source.recut(cuts, lambda _: set())
    Path(cuts[0].end["files"][0]["uri"]).with_name("left.parquet").touch()
    source.let_go(cuts[1], beside)
    for kept in cuts[1:]:
        source.check_held(kept, beside)
    with pytest.raises(SourceDataError, match=r"found that 1 files are gone"):
        source.check_held(cuts[0], beside)
    source.let_go(cuts[1], beside)  # again is fine
    (file,) = cuts[0].end["files"]
    assert not Path(file["uri"]).parent.exists(), "with all that somebody left who died over it"


def test_who_leaves_takes_the_slot_along(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    source = database.source("public.t")
    Cutter(source, beside).cut(day(1))
    for _ in range(2):
        source.leave("shopping", beside)
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    assert database.rows("SELECT 1 FROM pg_publication") == []


def test_the_slot_holds_nothing_that_was_taken_out(database: Database, beside: Beside) -> None:
    """Twenty barriers, none of which is committed."""
    database.run(TABLE)
    source = database.source("public.t")
    barriers = Cutter(source, beside)
    for number in range(20):
        database.run(f"INSERT INTO t SELECT g, 0 FROM generate_series({number * 1000 + 1}, {number * 1000 + 1000}) g")
        cut = barriers.cut(day(number + 1))
        lag = source.lag(cut, day(1))
        assert lag is not None
        ((behind,),) = database.rows(
            f"SELECT '{cut.end['lsn']}'::pg_lsn - confirmed_flush_lsn FROM pg_replication_slots "
            f"WHERE slot_name = '{cut.end['slot']}'"
        )
        assert behind == 0
        assert not lag.is_urgent


@pytest.mark.kills("ahead-up-to-a-limit")
def test_what_has_come_is_taken_out_while_no_barrier_may_open(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    source, image = database.source("public.t"), Image()
    barriers = Cutter(source, beside)
    newest = barriers.cut(day(1))
    for number in range(3):
        database.run(f"INSERT INTO t VALUES ({number}, 0)")
        source.keep_up(newest, beside)
        ((confirmed,),) = database.rows(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
        )
        assert confirmed > newest.end["lsn"]
    database.run("INSERT INTO t VALUES (9, 9)")
    narrow = database.source("public.t", max_ahead_bytes=10)
    with pytest.raises(SourceDataError, match=r"expected at most 10 bytes.*until its disk is full or the slot is lost"):
        narrow.keep_up(newest, beside)
    for cut in (newest, barriers.cut(day(2))):
        image.take(cut)
    assert image.rows("public.t") == [(0, 0), (1, 0), (2, 0), (9, 9)]


def test_one_worker_at_a_time_takes_changes_out(
    database: Database, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_barrier.sources.postgresql.database._LOCK", 1)
    database.run(TABLE)
    source = database.source("public.t")
    barriers = Cutter(source, beside)
    cut = barriers.cut(day(1))
    with Session("another", database.credentials) as other:
        other.lock(cut.end["slot"])
        with pytest.raises(SourceUnavailableError, match="found that another task takes its changes out"):
            barriers.cut(day(2))
    barriers.cut(day(2))
