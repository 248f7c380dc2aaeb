"""The sink's server is killed in the middle of a delivery, and comes back; a pooler loses its session."""

from __future__ import annotations

import struct

import pytest

from tests.delivering.feed import Feed, Reporting, reporting_on
from tests.delivering.lane import Lane
from tests.delivering.pairs import BEGIN, COMMIT, COPY, DAYS, LEDGER, make_pair, place
from tests.support.cases import cases
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Cut, Hold, Proxy
from tests.support.waiting import patience

#: Seconds: a server is back before a deliverer has tried for the last time.
_PAUSE = 0.5


def test_the_server_is_killed_and_the_delivery_ends_right(feed: Feed, own_postgresql: PostgreSQL, warm: Lane) -> None:
    for day in DAYS:
        feed.commit(day)
    with reporting_on(own_postgresql) as reporting, Proxy(own_postgresql.port) as proxy, cases() as case:
        for number, (at, answered) in enumerate([(COPY, True), (LEDGER, True), (COMMIT, False), (COMMIT, True)]):
            with case((at, answered)):
                pair = make_pair(feed, reporting, f"pair{number}")
                pair.deliver(1)
                hold = Hold(place(pair, proxy, at), answered)
                with proxy.watching(hold):
                    child = warm.start(pair.order(3, proxy.port, pause=_PAUSE))
                    assert hold.come.wait(patience())
                    own_postgresql.kill()
                    own_postgresql.start()
                    hold.go_on.set()
                    assert warm.end(child).delivered == [2, 3]
                pair.check(1, 2, 3)


def fatal(code: str, message: str) -> bytes:
    body = f"SFATAL\0VFATAL\0C{code}\0M{message}\0\0".encode()
    return b"E" + struct.pack("!I", len(body) + 4) + body


@pytest.mark.parametrize("at", [BEGIN, COPY, COMMIT])
def test_a_pooler_says_twice_that_its_session_has_ended(
    feed: Feed, reporting: Reporting, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """As PgBouncer does, if somebody ends the session: what the server said, and its own."""
    monkeypatch.setattr("airflow_barrier.coordinator.delivering._PAUSE", 0.001)
    for day in DAYS:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    pair.deliver(1)
    said = fatal("57P01", "terminating connection due to administrator command")
    said += fatal("08P01", "server conn crashed?")
    with proxy.watching(Cut(place(pair, proxy, at), answered=False, last_words=said)) as seen:
        assert pair.deliver(2, proxy.port) == [2]
    assert seen.happened
    pair.check(1, 2)
