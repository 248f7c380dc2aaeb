"""A deliverer sleeps in the middle of a delivery, holding locks, and wakes after another one has taken over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from airflow_barrier.protocol.errors import FencedDelivererError, SinkUnavailableError
from tests.delivering.feed import Feed, Reporting
from tests.delivering.lane import AFTER_TELLING, Lane
from tests.delivering.pairs import BEGIN, COMMIT, DAYS, INSERT, LEDGER, Pair, by_stranger, make_pair, place
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Hold, Proxy
from tests.support.waiting import patience


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_barrier.coordinator.delivering._PAUSE", 0.001)


@pytest.fixture
def pair(feed: Feed, reporting: Reporting) -> Pair:
    """One that has received the first barrier of three."""
    for day in DAYS:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    pair.deliver(1)
    return pair


@contextmanager
def asleep(
    pair: Pair, proxy: Proxy, beginning: str, through: int = 2, request_key: str = "zombie"
) -> Iterator[tuple[Hold, Future[list[int]]]]:
    """A deliverer in a thread whose connection stands still before that statement."""
    hold = Hold(place(pair, proxy, beginning, through))
    with ThreadPoolExecutor(1) as threads, proxy.watching(hold):
        try:
            zombie = threads.submit(pair.deliver, through, proxy.port, request_key=request_key)
            assert hold.come.wait(patience())
            yield hold, zombie
        finally:
            hold.go_on.set()


def sessions(reporting: Reporting) -> list[int]:
    found = reporting.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'airflow_b%'"
    )
    return [pid for (pid,) in found]


@pytest.mark.kills("opened-by-whom-it-is-claimed", case="COMMIT")
@pytest.mark.parametrize("at", [COMMIT, LEDGER, INSERT])
def test_a_session_that_stands_still_is_ended(pair: Pair, proxy: Proxy, at: str) -> None:
    with asleep(pair, proxy, at) as (hold, zombie):
        assert pair.deliver(3, request_key="successor") == [2, 3]
        hold.go_on.set()
        with pytest.raises(FencedDelivererError, match="claimed it since"):
            zombie.result(patience())
    pair.check(1, 2, 3)
    assert pair.record.failures == 0, "it is none of the sink's"


def test_a_session_that_makes_the_ledger_is_ended(feed: Feed, reporting: Reporting, proxy: Proxy) -> None:
    """Nobody else could make it: that waits for the one who has begun to."""
    feed.commit(DAYS[0])
    pair = make_pair(feed, reporting, "pair")
    hold = Hold(place(pair, proxy, "COMMENT", 1) + 1)
    with ThreadPoolExecutor(1) as threads, proxy.watching(hold) as seen:
        zombie = threads.submit(pair.deliver, 1, proxy.port, request_key="zombie")
        try:
            assert hold.come.wait(patience())
            assert seen.statements[-1] == "COMMIT"
            assert pair.deliver(1, request_key="successor") == [1]
        finally:
            hold.go_on.set()
        with pytest.raises(FencedDelivererError):
            zombie.result(patience())
    pair.check(1)


def test_one_that_wakes_in_the_middle_does_not_disturb_its_successor(
    pair: Pair, proxy: Proxy, postgresql: PostgreSQL, warm: Lane
) -> None:
    hold = Hold(place(pair, proxy, COMMIT))
    with proxy.watching(hold), ThreadPoolExecutor(1) as threads, Proxy(postgresql.port) as other:
        zombie = warm.start(pair.order(2, proxy.port))
        assert hold.come.wait(patience())
        middle = Hold(hold.number)
        with other.watching(middle):
            successor = threads.submit(pair.deliver, 3, other.port, request_key="successor")
            try:
                assert middle.come.wait(patience())
                hold.go_on.set()
                assert warm.end(zombie).error == "FencedDelivererError"
                assert not successor.done()
            finally:
                middle.go_on.set()
            assert successor.result(patience()) == [2, 3]
    assert pair.reporting.run(f"SELECT number FROM {pair.ledger}") == [(3,)], "each has opened it once"
    pair.check(1, 2, 3)


def test_one_that_wakes_takes_no_files_away_from_its_successor(pair: Pair, proxy: Proxy, warm: Lane) -> None:
    zombie = warm.start(pair.order(2, suspended=AFTER_TELLING))
    warm.suspended(zombie)
    with asleep(pair, proxy, BEGIN, 3, "successor") as (hold, successor):  # which has written, and not yet read
        os.kill(zombie, signal.SIGCONT)
        assert warm.end(zombie).delivered == [2]
        hold.go_on.set()
        assert successor.result(patience()) == [3]
    pair.check(1, 2, 3)


# --- of another role, whose sessions may not be ended -----------------------------------------------


def test_a_strangers_session_that_is_about_to_commit_is_named_and_may_commit(
    pair: Pair, proxy: Proxy, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_barrier.sinks.postgresql.channel._LOCK", 1)
    with asleep(pair, proxy, COMMIT) as (hold, zombie):
        (session,) = sessions(pair.reporting)
        with pytest.raises(SinkUnavailableError, match=rf"longer than 1 s.*process {session} \(airflow_barrier \w+, b"):
            by_stranger(pair, postgresql).deliver(3, request_key="successor")
        hold.go_on.set()
        assert zombie.result(patience()) == [2]
    assert by_stranger(pair, postgresql).deliver(3) == [3]
    pair.check(1, 2, 3)


@pytest.mark.kills("ledger-fences-deliverers")
def test_a_strangers_session_that_has_not_moved_the_ledger_is_named_and_fenced(
    pair: Pair, proxy: Proxy, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_barrier.sinks.postgresql.channel._LOCK", 1)
    with asleep(pair, proxy, LEDGER) as (hold, zombie):
        (session,) = sessions(pair.reporting)
        with pytest.raises(SinkUnavailableError, match=rf"longer than 1 s.*process {session} \(airflow_barrier \w+, b"):
            by_stranger(pair, postgresql).deliver(3, request_key="successor")
        hold.go_on.set()
        with pytest.raises(FencedDelivererError, match="claimed it since"):
            zombie.result(patience())
    pair.check_rows(1)
    assert by_stranger(pair, postgresql).deliver(3) == [2, 3]
    pair.check(1, 2, 3)


@pytest.mark.parametrize("through", [1, 2])
def test_one_that_has_not_begun_finds_its_successors_rows_and_says_fenced(
    feed: Feed, reporting: Reporting, proxy: Proxy, postgresql: PostgreSQL, through: int
) -> None:
    """Not that a row is in the way, others have changed its target, or files are gone: nobody has to do anything."""
    for day in DAYS:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    if through == 2:
        pair.deliver(1)
    with asleep(pair, proxy, BEGIN, through) as (hold, zombie):
        assert by_stranger(pair, postgresql).deliver(3, request_key="successor")[-1] == 3
        hold.go_on.set()
        with pytest.raises(FencedDelivererError, match="claimed it since"):
            zombie.result(patience())
    pair.check_rows(3)
    assert pair.record.failures == 0
