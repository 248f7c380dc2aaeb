"""Who joins the targets in PostgreSQL reads one barrier, whatever becomes of deliverers meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

import psycopg

from tests.delivering.feed import Feed, Reporting, State
from tests.delivering.lane import Lane
from tests.delivering.pairs import COMMIT, COPY, Pair, make_pair, place
from tests.support.proxy import Hold, Proxy
from tests.support.reporting import report
from tests.support.waiting import patience, wait_for

#: Each barrier inserts, updates and deletes some.
DAYS: list[State] = [
    {(user, item): 100 * day + item for user in range(day, day + 8) for item in range(1, 4)} for day in range(1, 8)
]


class Reader:
    """Joins both targets of a pair, again and again, by single statements and by transactions, in turns."""

    def __init__(self, pair: Pair) -> None:
        amount, price = pair.targets.values()
        self.join = (
            f'SELECT "userId", "itemId", a.value, p.value '
            f'FROM {amount} a FULL JOIN {price} p USING ("userId", "itemId")'
        )
        self._pair = pair
        self._stop = Event()
        self.seen: Counter[int] = Counter()
        self.torn: list[Any] = []

    def run(self) -> None:
        with self._pair.reporting.connect() as connection:
            while not self._stop.is_set():
                self._look(connection)
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    (ledger,) = connection.execute(f"SELECT barrier_id FROM {self._pair.ledger}").fetchall()
                    if self._look(connection) != (ledger[0] or 0):
                        self.torn.append(("the ledger says", ledger))

    def stop(self) -> None:
        self._stop.set()

    def _look(self, connection: psycopg.Connection[Any]) -> int | None:
        """Which barrier; 0: before the first one."""
        rows = connection.execute(self.join).fetchall()
        barrier = self.barrier_of(rows)
        if barrier is None:
            self.torn.append(rows)
        else:
            self.seen[barrier] += 1
        return barrier

    def barrier_of(self, rows: list[tuple[Any, ...]]) -> int | None:
        both = {(user, item): (one, other) for user, item, one, other in rows}
        states = {0: {}, **self._pair.feed.states}
        return next(
            (number for number, state in states.items() if both == {key: (v, v) for key, v in state.items()}), None
        )


@contextmanager
def reading(pair: Pair) -> Iterator[Reader]:
    reader = Reader(pair)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(reader.run)
        try:
            yield reader
        finally:
            reader.stop()
        done.result(patience())
    assert reader.torn == []


def test_who_joins_both_targets_reads_one_barrier(feed: Feed, reporting: Reporting, proxy: Proxy, warm: Lane) -> None:
    for day in DAYS:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    first, later = place(pair, proxy, COPY, 1), place(pair, proxy, COMMIT, 2)
    making = 5  # statements of the first deliverer, who makes the ledger
    holds = [die(pair, proxy, warm, 1, first)]
    with reading(pair) as reader:
        wait_for("a reader who has seen empty targets", lambda: reader.seen[0])
        before = 0
        for through, deaths in ((1, (first - making,)), (2, (later,)), (7, (later, later + 30, later))):
            with reporting.connect() as old:
                old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                old.execute("SELECT 1")  # from now on it sees what there is now
                for number in deaths:
                    holds.append(die(pair, proxy, warm, through, number))
                pair.deliver(through)
                assert reader.barrier_of(old.execute(reader.join).fetchall()) == before
            before = through
            wait_for("a reader of that barrier", partial(reader.seen.get, through))
    for hold in holds:
        hold.go_on.set()
    pair.check(*range(1, 8))
    report(f"deliveries: {sum(reader.seen.values())} joins of {len(reader.seen)} states, none torn")


def die(pair: Pair, proxy: Proxy, warm: Lane, through: int, at: int) -> Hold:
    """A deliverer that dies before that statement, and whose session stays until its successor comes."""
    hold = Hold(at)
    with proxy.watching(hold):
        child = warm.start(pair.order(through, proxy.port))
        assert hold.come.wait(patience())
        warm.kill(child)
    return hold
