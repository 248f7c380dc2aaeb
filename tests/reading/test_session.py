"""Sessions: one barrier from beginning to end, never back, held until the end and not longer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.versions import EXPECTED
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    LeaseLostError,
    StaleAnswerError,
    UnknownTableError,
    UnpinnableError,
    WentBackError,
)
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.reading.duckdb_views import running
from airflow_barrier.reading.session import ConsistentSession, FellBack, consistent_session, this_process
from tests.support.shop import AMOUNT, JOBS, PRICE, SHOPPING, Shop, make_shop
from tests.support.waiting import patience, wait_for

ROWS = [{"amount": 25, "price": 250}]
LONG_AGO = timedelta(days=365)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.embedded(str(tmp_path))


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    shop = make_shop(settings)
    yield shop
    shop.deployment.close()


def bring(shop: Shop, day: int) -> None:
    """One more barrier, COMMIT."""
    barrier = shop.open(day)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)


def totals(shop: Shop, session: ConsistentSession) -> dict[str, int]:
    return {table: shop.total(table, snapshot) for table, snapshot in session.snapshots.items()}


def barriers_held(shop: Shop) -> list[int]:
    return [lease.barrier_id for lease in shop.deployment.meta.leases.of("shopping")]


@pytest.mark.kills("closed-session-reads-nothing")
def test_a_session_reads_one_barrier_whatever_is_committed_meanwhile(shop: Shop) -> None:
    bring(shop, 1)
    with consistent_session(shop.deployment, "shopping", holder="report of ada") as session:
        bring(shop, 2)
        assert totals(shop, session) == {SHOPPING: 250, AMOUNT: 25, PRICE: 250}
        (lease,) = shop.deployment.meta.leases.of("shopping")
        assert (lease.barrier_id, lease.holder) == (1, "report of ada")
        assert session.tags == dict.fromkeys((SHOPPING, AMOUNT, PRICE), "barrier_shopping_b1_r0")
        assert session.refresh().barrier_id == 2
        assert session.fell_back is None
        assert totals(shop, session) == {SHOPPING: 500, AMOUNT: 50, PRICE: 500}
        assert barriers_held(shop) == [2]
    assert barriers_held(shop) == []
    with pytest.raises(LeaseLostError, match="expected an open session, found one that is closed"):
        assert session.snapshots


def test_a_barrier_of_the_past_by_id_and_by_time(shop: Shop) -> None:
    for day in (1, 2, 3):
        bring(shop, day)
    second = shop.deployment.meta.barriers.get("shopping", 2)
    for at in (2, second.timestamp, second.timestamp + timedelta(hours=5)):
        with consistent_session(shop.deployment, "shopping", at=at, tables=[AMOUNT]) as session:
            assert totals(shop, session) == {AMOUNT: 50}
            assert session.refresh() == session.resolution
            assert session.resolution.barrier_id == 2


def test_a_read_committed_session_is_told_that_it_fell_back(shop: Shop) -> None:
    bring(shop, 1)
    second = shop.open(2)
    shop.process_all(second, ROWS)
    with consistent_session(shop.deployment, "shopping", level="ReadCommitted") as session:
        assert session.resolution.barrier_id == 2
        before = totals(shop, session)
        assert before == {SHOPPING: 500, AMOUNT: 50, PRICE: 500}
        shop.begin(second, "amount", generation="cleared")
        # what it reads is still there, and held
        assert totals(shop, session) == before
        assert session.refresh().barrier_id == 1
        assert session.fell_back == FellBack("shopping", 2, 1)
        assert str(session.fell_back) == (
            "topology shopping: work that was read was rolled back; this session fell back from barrier 2 back to 1"
        )
        assert set(session.tags.values()) == {"barrier_shopping_b1_r0"}


def test_staged_anew_before_anybody_looks_is_the_same_barrier_with_other_snapshots(shop: Shop) -> None:
    bring(shop, 1)
    second = shop.open(2)
    shop.process_all(second, ROWS)
    with consistent_session(shop.deployment, "shopping", level=Level.READ_COMMITTED) as session:
        before = session.snapshots
        shop.process(second, "amount", [{"amount": 1, "price": 0}], generation="cleared")
        assert session.refresh().barrier_id == 2
        assert session.fell_back == FellBack("shopping", 2, 2)
        assert session.snapshots != before
        assert session.refresh().barrier_id == 2
        assert session.fell_back is None


def test_work_that_is_staged_anew_and_was_not_read_is_no_fall_back(shop: Shop) -> None:
    bring(shop, 1)
    second = shop.open(2)
    shop.process_all(second, ROWS)
    with consistent_session(shop.deployment, "shopping", level="ReadCommitted", tables=[SHOPPING]) as session:
        before = session.snapshots
        shop.process(second, "amount", [{"amount": 1, "price": 0}], generation="cleared")
        assert session.refresh().barrier_id == 2
        assert (session.snapshots, session.fell_back) == (before, None)


@pytest.mark.parametrize("again", [False, True])
def test_what_is_rolled_back_while_a_session_looks_is_told_as_well(shop: Shop, again: bool) -> None:
    """Between its question whether work was rolled back, and its new answer."""
    bring(shop, 1)
    second = shop.open(2)
    shop.process_all(second, ROWS)
    meta = shop.deployment.meta
    with consistent_session(shop.deployment, "shopping", level="ReadCommitted") as session:
        resolve = meta.answers.resolve

        def overtaken(*asked: Any, **how: Any) -> Resolution:
            ready = shop.begin(second, "amount", generation="cleared")
            if again:
                shop.close(ready, shop.write(ready, ROWS))
            return resolve(*asked, **how)

        meta.answers.resolve = overtaken  # type: ignore[method-assign]
        assert session.refresh().barrier_id == (2 if again else 1)
        assert session.fell_back == FellBack("shopping", 2, 2 if again else 1)
        meta.answers.resolve = resolve  # type: ignore[method-assign]


@pytest.mark.kills("sessions-never-go-back")
def test_going_back_for_no_reason_is_refused(shop: Shop, settings: Settings) -> None:
    """As after a backup was restored that knows less."""
    bring(shop, 1)
    bring(shop, 2)
    with consistent_session(shop.deployment, "shopping") as session:
        _forget_the_newest_commit(settings)
        with pytest.raises(WentBackError, match="expected barrier 2 or a newer one, which this session has read, foun"):
            session.refresh()
        assert session.resolution.barrier_id == 2
        assert barriers_held(shop) == [2]


def _forget_the_newest_commit(settings: Settings) -> None:
    with closing(sqlite3.connect(settings.metaservice_url.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE barrier_barrier SET state = 'PRECOMMIT' WHERE barrier_id = 2")
        database.commit()


@pytest.mark.kills("old-answer-is-told")
def test_an_answer_that_is_too_old_is_an_error_and_holds_nothing(shop: Shop) -> None:
    bring(shop, 1)
    with (
        pytest.raises(StaleAnswerError, match=r"not older than 0:05:00, found barrier 1 of 2026-01-06 .* old; wait"),
        consistent_session(shop.deployment, "shopping", not_older_than=timedelta(minutes=5)),
    ):
        pass
    assert barriers_held(shop) == []
    with consistent_session(shop.deployment, "shopping", not_older_than=20 * LONG_AGO) as session:
        assert session.resolution.barrier_id == 1


def test_an_empty_baseline_is_never_new_enough(shop: Shop) -> None:
    shop.open(1)
    with (
        pytest.raises(StaleAnswerError, match="found that no barrier is there yet; wait for the next"),
        consistent_session(shop.deployment, "shopping", not_older_than=LONG_AGO),
    ):
        pass


def test_it_waits_for_an_answer_that_is_new_enough(shop: Shop, settings: Settings) -> None:
    bring(shop, 1)
    found: list[int | None] = []

    def wait() -> None:
        age = shop.deployment.meta.now() - shop.deployment.meta.barriers.get("shopping", 1).timestamp
        with consistent_session(
            shop.deployment,
            "shopping",
            not_older_than=age - timedelta(hours=1),
            wait=timedelta(seconds=patience()),
        ) as session:
            found.append(session.resolution.barrier_id)

    reader = threading.Thread(target=wait)
    reader.start()
    bring(shop, 2)
    reader.join(patience())
    assert found == [2]


def test_what_cannot_be_asked_is_refused_at_once(shop: Shop) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"at": 1, "not_older_than": LONG_AGO}, r"either at=\.\.\. or not_older_than=\.\.\., found both; a barrier of"),
        (
            {"wait": LONG_AGO},
            r"wait=\.\.\. with not_older_than=\.\.\., which says what is waited for, found it without",
        ),
        ({"wait": LONG_AGO, "at": 1}, "which says what is waited for, found it without; say how old"),
        (
            {"not_older_than": LONG_AGO, "level": "ReadUncommitted"},
            "level that reads one barrier, found read_uncommitt",
        ),
        ({"not_older_than": 300}, r"not_older_than: expected a timedelta, found 300; pass timedelta\(seconds="),
        ({"not_older_than": LONG_AGO, "wait": 30}, "wait: expected a timedelta, found 30"),
        ({"not_older_than": LONG_AGO, "wait": None}, "wait: expected a timedelta, found None"),
        (
            {"at": "2026-01-05"},
            "number or a datetime to read at, found '2026-01-05'; pass an int, or an aware datetime",
        ),
        ({"at": date(2026, 1, 5)}, r"a datetime to read at, found datetime\.date\(2026, 1, 5\)"),
        ({"tables": PRICE}, f"a list of tables, found the text '{PRICE}'; write \\['{PRICE}'\\]"),
    ]
    for question, expected in cases:
        with (
            pytest.raises(ConfigurationError, match=expected),
            consistent_session(shop.deployment, "shopping", **question),
        ):
            pass


def test_a_lease_that_was_taken_away_ends_the_reading(shop: Shop) -> None:
    bring(shop, 1)
    with ExitStack() as stack:
        session = stack.enter_context(consistent_session(shop.deployment, "shopping", lease_seconds=0.6))
        shop.deployment.meta.leases.release(session.lease.lease_id)
        wait_for("the loss to be noticed", lambda: _is_lost(session))
        with pytest.raises(LeaseLostError, match="expected it to live, found that it has ended"):
            assert session.snapshots
        with pytest.raises(LeaseLostError, match="resolve anew and read again"):
            session.refresh()
        with pytest.raises(LeaseLostError, match="found that it has ended"):
            stack.close()


@pytest.mark.kills("lost-lease-ends-reading")
def test_the_last_look_does_not_wait_for_a_heartbeat(shop: Shop) -> None:
    bring(shop, 1)
    with ExitStack() as stack:
        session = stack.enter_context(consistent_session(shop.deployment, "shopping"))
        session.check()
        shop.deployment.meta.leases.release(session.lease.lease_id)
        assert session.snapshots  # as far as it knows
        with pytest.raises(LeaseLostError, match="expected it to live, found that it has ended"):
            session.check()
        with pytest.raises(LeaseLostError, match="expected it to live, found that it has ended"):
            stack.close()


@pytest.mark.kills("reading-ends-with-a-look")
def test_a_loss_that_no_heartbeat_noticed_is_told_at_the_end(shop: Shop) -> None:
    bring(shop, 1)
    with (
        pytest.raises(LeaseLostError, match="expected it to live, found that it has ended"),
        consistent_session(shop.deployment, "shopping") as session,
    ):
        shop.deployment.meta.leases.release(session.lease.lease_id)


def _is_lost(session: ConsistentSession) -> bool:
    try:
        assert session.lease
    except LeaseLostError:
        return True
    return False


def test_a_session_outlives_its_first_lease(shop: Shop) -> None:
    bring(shop, 1)
    with consistent_session(shop.deployment, "shopping", lease_seconds=1) as session:
        first = session.lease.expires_at
        wait_for("two renewals", lambda: session.lease.expires_at > first + timedelta(seconds=0.5))
        wait_for("the first lease to be over", lambda: shop.deployment.meta.now() > first)
        assert barriers_held(shop) == [1]


@pytest.mark.kills("silence-ends-reading")
def test_a_metaservice_that_is_silent_ends_the_reading(
    shop: Shop, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then whether the lease still lives."""
    bring(shop, 1)
    database = Path(settings.metaservice_url.removeprefix("sqlite:///"))
    aside, nowhere = database.with_name("aside.db"), database.with_name("nowhere.db")
    nowhere.symlink_to(database.with_name("no such folder") / "barrier.db")
    with ExitStack() as stack:
        session = stack.enter_context(consistent_session(shop.deployment, "shopping", lease_seconds=1))
        # each in one step, so that nobody who connects meanwhile makes a new database there
        os.link(database, aside)
        nowhere.replace(database)
        shop.deployment.meta.close()
        over = time.monotonic() + 1
        wait_for("its time to be over", lambda: time.monotonic() > over)
        with pytest.raises(LeaseLostError, match="the MetaService did not answer for as long as it lives"):
            assert session.snapshots
        aside.replace(database)
        with pytest.raises(LeaseLostError, match="found that it has ended"):
            stack.close()


def test_a_deploy_under_way_ends_no_reading(shop: Shop, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Its lease is renewed once the database is of the reader's version again, if that is soon enough."""
    bring(shop, 1)
    with consistent_session(shop.deployment, "shopping", lease_seconds=3600) as session:
        _set_version(settings, "newer")
        session._heartbeat._renew()
        assert "was not renewed, which is tried again: MetaService database" in caplog.text
        _set_version(settings, EXPECTED)
        session.check()
        assert session.snapshots
        _set_version(settings, "newer")
    assert "was not released and ends by itself: MetaService database" in caplog.text
    _set_version(settings, EXPECTED)


def _set_version(settings: Settings, version: str) -> None:
    with closing(sqlite3.connect(settings.metaservice_url.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE barrier_schema_version SET version_num = ?", [version])
        database.commit()


READER = """
import os, signal, sys
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.reading.session import consistent_session

with consistent_session(Deployment.connect(Settings.embedded(sys.argv[1])), "shopping", lease_seconds=1.0):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_reader_held_is_free_after_its_time(shop: Shop, tmp_path: Path) -> None:
    bring(shop, 1)
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=False, timeout=patience()
    )
    assert done.returncode == -9, done.stderr
    wait_for("the lease to end by itself", lambda: barriers_held(shop) == [])


def test_duckdb_and_pyiceberg_read_the_same_barrier(shop: Shop) -> None:
    bring(shop, 1)
    with consistent_session(shop.deployment, "shopping") as session:
        bring(shop, 2)
        with session.duckdb() as connection:
            assert connection.sql("SELECT sum(price), sum(amount) FROM shop.shopping").fetchall() == [(250, 25)]
            assert connection.sql("SELECT a.amount FROM lake.shop.user_item_amount a").fetchall() == [(25,)]
        assert session.table(PRICE).scan().to_arrow().to_pylist() == [{"price": 250}]
        with pytest.raises(UnknownTableError, match=r"expected tables that it has, which are .*; found shop\.prices"):
            session.table("shop.prices")
        rewritten = session.sql("SELECT * FROM shop.user_item_price p", "spark")
        snapshot = session.snapshots[PRICE]
        assert rewritten.sql == f"SELECT * FROM shop.user_item_price VERSION AS OF {snapshot} p"


def test_a_table_that_joined_later_is_refused_and_its_first_barrier_named(shop: Shop) -> None:
    bring(shop, 1)
    total = "shop.total"
    shop.deployment.tables.catalog.create_table(total, shop.deployment.tables.load(AMOUNT).schema())
    shop.open(2, Fragment("shopping", "shopping_dag", (*JOBS, Job("total", "shopping_dag", outlets=(total,)))))
    query = f"SELECT * FROM lake.{total}"
    joined = r"expected tables that it has, found shop\.total, which joined with barrier 2"
    with consistent_session(shop.deployment, "shopping") as session, session.duckdb() as connection:
        assert session.unresolved == (total,)
        for dialect in ("spark", "trino", "duckdb"):
            with pytest.raises(UnknownTableError, match=joined):
                session.sql(query, dialect)
        for sql in (query, "SELECT * FROM total"):
            with pytest.raises(UnknownTableError, match=joined), running(session, connection, sql):
                pass
        with (
            pytest.raises(ConfigurationError, match="found that Catalog Error"),
            running(session, connection, "FROM x"),
        ):
            pass
    with (
        consistent_session(shop.deployment, "shopping", tables=[PRICE]) as session,
        pytest.raises(UnpinnableError, match="which is of the same topology; resolve with it"),
    ):
        session.sql(f"SELECT * FROM {AMOUNT}", "spark")


def test_who_reads_is_said() -> None:
    assert "process" in this_process()


def test_the_deployment_says_the_level_of_sessions_that_choose_none(shop: Shop, settings: Settings) -> None:
    bring(shop, 1)
    shop.process_all(shop.open(2), ROWS)
    other = Deployment.connect(replace(settings, consistency="ReadCommitted"))
    with consistent_session(other, "shopping") as session, consistent_session(shop.deployment, "shopping") as usual:
        assert (session.resolution.level, session.resolution.barrier_id) == (Level.READ_COMMITTED, 2)
        assert (usual.resolution.level, usual.resolution.barrier_id) == (Level.REPEATABLE_READ, 1)
    other.close()
    with pytest.raises(ConfigurationError, match="consistency level 'serializable': expected one of read_uncommitted"):
        replace(settings, consistency="serializable")
