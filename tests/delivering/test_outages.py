"""The sink's server is killed in the middle of a delivery, and comes back."""

from __future__ import annotations

from tests.delivering.feed import Feed, reporting_on
from tests.delivering.lane import Lane
from tests.delivering.pairs import COMMIT, COPY, DAYS, LEDGER, make_pair, place
from tests.support.cases import cases
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Hold, Proxy
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
