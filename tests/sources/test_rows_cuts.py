"""Rows of a database are cut by the time in a column of them: each version that is read is in one epoch."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
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
from airflow_barrier.sources.postgresql.database import Database as Session
from airflow_barrier.sources.postgresql.rows import PostgreSQLRows
from airflow_barrier.sources.postgresql.segments import Segments, files_of
from tests.races.racers import PROCESSES
from tests.sources.databases import Beside, Database, Image
from tests.sources.landing import Cutter, day
from tests.support.waiting import patience

pytestmark = [pytest.mark.drawn("databases"), pytest.mark.touches("sources/postgresql/row_cuts.py")]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, at TIMESTAMPTZ NOT NULL)"


def put(database: Database, key: int, value: int, at: float, table: str = "t") -> None:
    """Write a row as of a day."""
    database.run(
        f"INSERT INTO {table} VALUES ({key}, {value}, '{day(at):%Y-%m-%d %H:%M:%S.%f}+00') "
        "ON CONFLICT (id) DO UPDATE SET a = excluded.a, at = excluded.at"
    )


def read(image: Image, table: str = "public.t") -> list[tuple[Any, ...]]:
    """Keys and values."""
    return [row[:2] for row in image.rows(table)]


def mark(cut: Any) -> datetime:
    return datetime.fromisoformat(cut.end["mark"])


# --- which rows are in an epoch -------------------------------------------------------------------


def test_each_version_that_is_there_is_in_the_epoch_of_its_time(database: Database, beside: Beside) -> None:
    """Of two tables, of which one has times without a zone. The bounds belong to the earlier epoch."""
    database.run(TABLE, "CREATE TABLE u (id INT PRIMARY KEY, a INT, changed TIMESTAMP NOT NULL)")
    database.run(f"ALTER DATABASE {database.name} SET timezone = 'America/New_York'")
    put(database, 1, 1, 1)
    put(database, 2, 1, 1.5)
    database.run("INSERT INTO u VALUES (1, 1, '2017-01-02 00:00:00'), (2, 1, '2017-01-02 00:00:00.000001')")
    source = database.rows_source("public.t", "public.u", by={"public.t": "at", "public.u": "changed"})
    barriers, image = Cutter(source, beside), Image(upserts=True)
    image.take(barriers.cut(day(1)))
    assert read(image) == read(image, "public.u") == [(1, 1)]
    put(database, 1, 2, 1.9)
    put(database, 3, 1, 2.1)
    cut = barriers.cut(day(2))
    assert (cut.start, mark(cut)) == ({"mark": "2017-01-02T00:00:00+00:00", "last": 2}, day(2))
    image.take(cut)
    assert (read(image), read(image, "public.u")) == ([(1, 2), (2, 1)], [(1, 1), (2, 1)])
    image.take(barriers.cut(day(2)))  # a mark does not move back, and at the same mark there is nothing more
    image.take(barriers.cut(day(1.5)))
    assert mark(barriers.cuts[-1][1]) == day(2)
    assert read(image) == [(1, 2), (2, 1)]
    image.take(barriers.cut(day(3)))
    assert read(image) == [(1, 2), (2, 1), (3, 1)]


def test_what_it_does_not_see(database: Database, beside: Beside) -> None:
    """As its docstring says: deletions, changes that do not move the time, and earlier versions."""
    database.run(TABLE)
    for key in (1, 2, 3):
        put(database, key, 1, 1)
    barriers, image = Cutter(database.rows_source("public.t"), beside), Image(upserts=True)
    image.take(barriers.cut(day(1)))
    database.run("DELETE FROM t WHERE id = 1", "UPDATE t SET a = 2 WHERE id = 2")
    put(database, 3, 2, 1.5)
    put(database, 3, 3, 2.5)  # moves on from the epoch that it would have been in
    image.take(barriers.cut(day(2)))
    assert read(image) == [(1, 1), (2, 1), (3, 1)]
    image.take(barriers.cut(day(3)))
    assert read(image) == [(1, 1), (2, 1), (3, 3)]


@pytest.mark.kills("rows-that-may-still-come")
def test_a_transaction_that_is_open_for_less_than_the_margin(database: Database, beside: Beside) -> None:
    """It is not seen when the barrier opens, and its rows are later than the mark."""
    database.run(TABLE)
    barriers, image = Cutter(database.rows_source("public.t"), beside), Image(upserts=True)
    with database.connect(autocommit=False) as across:
        across.execute("INSERT INTO t VALUES (1, 1, now())")
        before = datetime.now(timezone.utc)
        cut = barriers.cut(day(9_999))
        assert (
            before - timedelta(minutes=1, seconds=30) < mark(cut) <= datetime.now(timezone.utc) - timedelta(minutes=1)
        )
        image.take(cut)
        across.commit()
    barriers.source = database.rows_source("public.t", margin=timedelta(0))
    image.take(barriers.cut(day(9_999)))
    assert read(image) == [(1, 1)]


@pytest.mark.timeout(300)
def test_eight_clients_whose_transactions_are_shorter_than_the_margin(database: Database, beside: Beside) -> None:
    """In the end all rows are as the database has them."""
    tables = ("t", "u")
    for table in tables:
        database.run(TABLE.replace(" t ", f" {table} "), f"CREATE INDEX ON {table} (at)")
    source = database.rows_source(*(f"public.{table}" for table in tables), margin=timedelta(milliseconds=500))
    barriers, image, enough = Cutter(source, beside), Image(upserts=True), threading.Event()
    clients = [threading.Thread(target=_write, args=(database, number, enough)) for number in range(8)]
    for client in clients:
        client.start()
    try:
        while image.last < 3_000 or len(barriers.cuts) < 5:
            image.take(barriers.cut(day(9_999)))
    finally:
        enough.set()
        for client in clients:
            client.join(patience())
    at_once = Cutter(database.rows_source("public.t", "public.u", margin=timedelta(0)), beside, barriers.cuts)
    image.take(at_once.cut(day(9_999)))
    for table in tables:
        assert read(image, f"public.{table}") == sorted(database.rows(f"SELECT id, a FROM {table}"))


def _write(database: Database, client: int, enough: threading.Event) -> None:
    draw = random.Random(client)
    with database.connect(autocommit=False) as connection:
        while not enough.is_set():
            for table in draw.choices(("t", "u"), k=3):
                connection.execute(
                    f"INSERT INTO {table} VALUES (%s, 0, clock_timestamp()) "
                    f"ON CONFLICT (id) DO UPDATE SET a = {table}.a + 1, at = excluded.at",
                    [client * 1_000 + draw.randrange(1_000)],
                )
            connection.rollback() if draw.random() < 0.2 else connection.commit()


def test_tables_that_come_later_and_columns_that_are_replaced(database: Database, beside: Beside) -> None:
    """Then all rows of the table come once more."""
    database.run(TABLE, "ALTER TABLE t ADD made TIMESTAMPTZ NOT NULL DEFAULT '2017-01-01 12:00:00+00'")
    database.run(TABLE.replace(" t ", " u "))
    put(database, 1, 1, 0.5)
    put(database, 1, 1, 0.5, "u")
    barriers, image = Cutter(database.rows_source("public.t"), beside), Image(upserts=True)
    image.take(barriers.cut(day(1)))
    barriers.source = database.rows_source("public.t", "public.u")
    image.take(barriers.cut(day(2)))
    assert (image.last, read(image, "public.u")) == (2, [(1, 1)])
    barriers.source = database.rows_source("public.t", "public.u", by={"public.t": "made", "public.u": "at"})
    image.take(barriers.cut(day(3)))
    assert image.last == 3


def test_a_source_that_begins_anew(database: Database, beside: Beside) -> None:
    """It has all rows, also those after the mark, after a sign that all rows went."""
    database.run(TABLE)
    put(database, 1, 1, 0.5)
    put(database, 2, 1, 0.5)
    source, image = database.rows_source("public.t"), Image(upserts=True)
    barriers = Cutter(source, beside)
    image.take(barriers.cut(day(1)))
    database.run("DELETE FROM t WHERE id = 1", "UPDATE t SET a = 2")
    put(database, 3, 1, 2.5)
    barriers.cuts[-1] = day(1), barriers.cuts[-1][1].then_anew("rows were deleted")
    for _ in range(2):  # a barrier that is aborted, and the next one
        cut = barriers.cut(day(2))
        barriers.abort()
    barriers.cuts.append((day(2), cut))
    image.take(cut)
    assert read(image) == [(2, 2), (3, 1)]
    last = barriers.cut(day(3))
    assert [file.rows for file in files_of(last)] == [1]
    image.take(last)
    assert read(image) == [(2, 2), (3, 1)]


@pytest.mark.kills("times-go-on")
def test_a_clock_that_was_put_back(database: Database, beside: Beside) -> None:
    """Its rows get times that were read already. The source begins anew, and goes on from the present."""
    database.run(TABLE, "INSERT INTO t VALUES (1, 1, now() - interval '1 hour')")
    source, image = database.rows_source("public.t"), Image(upserts=True)
    barriers = Cutter(source, beside)
    image.take(barriers.cut(day(9_999)))
    ahead = {**barriers.cuts[0][1].end, "mark": "2100-01-01T00:00:00+00:00"}
    barriers.cuts[0] = day(9_999), replace(barriers.cuts[0][1], end=ahead)
    with pytest.raises(SourceDataError, match=r"the mark of the barrier before, 2100-01-01T00.*source resnapshot"):
        barriers.cut(day(9_999))
    barriers.cuts[0] = day(9_999), barriers.cuts[0][1].then_anew("the clock was put back")
    cut = barriers.cut(day(9_999))
    assert mark(cut) < datetime.now(timezone.utc)
    image.take(cut)
    assert read(image) == [(1, 1)]
    barriers.cut(day(9_999))


def test_tables_that_were_loaded_by_other_means(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    for number in (1, 2, 3):
        put(database, number, 1, number - 0.5)
    source = database.rows_source("public.t")
    request = Cutter(source, beside).request(day(3))
    image = Image(upserts=True)
    image.take(source.cut(replace(request, already=day(2))))
    assert read(image) == [(3, 1)]
    assert source.cut(replace(request, already=day(3))).end["files"] == []
    latest = source.cut(replace(request, until=day(9_999), already=day(9_999)))
    assert (latest.end["files"], mark(latest) < datetime.now(timezone.utc)) == ([], True)
    with pytest.raises(ConfigurationError, match=r"expected start_from to be 'earliest', 'latest'.*found \{'lsn'"):
        source.cut(replace(request, already={"lsn": "0/1"}))


def test_a_rehearsal_has_files_of_its_own(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    put(database, 1, 1, 0.5)
    source = database.rows_source("public.t")
    request = Cutter(source, beside).request(day(1))
    name = rehearsal_name("shopping", "shopping", "by hand")
    rehearsed, cut = source.cut(replace(request, topology=name)), source.cut(request)
    assert rehearsed.end["folder"] != cut.end["folder"]
    assert {file.uri for file in files_of(rehearsed)}.isdisjoint(file.uri for file in files_of(cut))


# --- who dies, and who tries again ----------------------------------------------------------------


def _die_at(step: str, at: Any, start: Any, until: datetime, warehouse: str) -> None:
    """In a process of its own, which is killed before or after it writes its description."""
    real = Segments.put

    def deadly(*args: Any) -> None:
        if step.startswith("after"):
            real(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    Segments.put = deadly  # type: ignore[method-assign]
    source = PostgreSQLRows("shop_db", "shop", ["public.t"], by="at").within(Limits(), at)
    source.cut(replace(Cutter(source, Beside(Path(warehouse))).request(until), start=start))


@pytest.mark.parametrize("step", ["before put", "after put"])
def test_a_worker_that_is_killed(step: str, database: Database, beside: Beside, tmp_path: Path) -> None:
    """The next one has the same files if they were described, and else reads again."""
    database.run(TABLE)
    image = Image(upserts=True)
    barriers = Cutter(database.rows_source("public.t"), beside)
    for barrier in (1, 2):
        put(database, barrier, 1, barrier - 0.5)
        start = barriers.cuts[-1][1].end if barriers.cuts else None
        arguments = (step, database.credentials, start, day(barrier), str(tmp_path))
        worker = PROCESSES.Process(target=_die_at, args=arguments, daemon=True)
        worker.start()
        worker.join(patience())
        assert worker.exitcode == -signal.SIGKILL
        database.run(f"UPDATE t SET a = 2 WHERE id = {barrier}")
        image.take(barriers.cut(day(barrier)))
    value = 1 if step == "after put" else 2
    assert read(image) == [(1, value), (2, value)]
    database.rows_source("public.t").let_go(barriers.cuts[1][1], beside)
    (first,) = files_of(barriers.cuts[0][1])
    assert not Path(first.uri).parent.exists(), "with all that the killed worker left"


def test_a_barrier_that_is_tried_again_reads_the_same_files(database: Database, beside: Beside) -> None:
    database.run(TABLE, "ALTER TABLE t ADD made TIMESTAMPTZ NOT NULL DEFAULT '2017-01-01 12:00:00+00'")
    put(database, 1, 1, 0.5)
    barriers = Cutter(database.rows_source("public.t"), beside)
    cut = barriers.cut(day(1))
    barriers.abort()
    put(database, 2, 1, 0.6)
    assert barriers.cut(day(1)) == cut
    barriers.abort()
    for asked in ({"by": "made"}, {"as_text": ["public.t.a"]}):  # who asks for something else does not get them
        other = Cutter(database.rows_source("public.t", **asked), beside).cut(day(1))  # type: ignore[arg-type]
        assert [file.rows for file in files_of(other)] == [2]
    later = barriers.cut(day(2))
    assert [file.rows for file in files_of(later)] == [2]


def test_one_worker_at_a_time_reads(database: Database, beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_barrier.sources.postgresql.database._LOCK", 1)
    database.run(TABLE)
    barriers = Cutter(database.rows_source("public.t"), beside)
    cut = barriers.cut(day(1))
    with Session("another", database.credentials) as other:
        other.lock(cut.end["folder"])
        with pytest.raises(SourceUnavailableError, match="found that another task takes its changes out"):
            barriers.cut(day(2))
    barriers.cut(day(2))


def test_a_value_that_its_type_does_not_hold(database: Database, beside: Beside) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, due DATE, at TIMESTAMPTZ NOT NULL)")
    database.run("INSERT INTO t VALUES (1, 'infinity', '2017-01-01 00:00:00+00')")
    with pytest.raises(SourceDataError, match=r"as_text=\['public\.t\.due'\]"):
        Cutter(database.rows_source("public.t"), beside).cut(day(1))
    cut = Cutter(database.rows_source("public.t", as_text=["public.t.due"]), beside).cut(day(1))
    image = Image(upserts=True)
    image.take(cut)
    assert read(image) == [(1, "infinity")]


def test_epochs_are_kept_as_they_were(database: Database, beside: Beside) -> None:
    database.run(TABLE)
    source = database.rows_source("public.t")
    barriers = Cutter(source, beside)
    cuts = []
    for number in (1, 2, 3):
        put(database, number, 1, number - 0.5)
        cuts.append(barriers.cut(day(number)))
    database.run("DROP TABLE t")
    source.keep_up(cuts[-1], beside)
    source.leave("shopping", beside)
    assert source.lag(cuts[-1], day(3)) is None
    with pytest.raises(RevisionRefusedError, match="found a database"):
        source.recut(cuts, lambda _: set())
    for _ in range(2):  # again is fine
        source.let_go(cuts[1], beside)
    for kept in cuts[1:]:
        source.check_held(kept, beside)
    with pytest.raises(SourceDataError, match="found that 1 files are gone"):
        source.check_held(cuts[0], beside)
    assert source.size(source.whole(cuts[1:])) == sum(file.bytes for cut in cuts[1:] for file in files_of(cut))
