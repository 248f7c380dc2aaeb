"""A deliverer dies while the server is at its COMMIT: the ledger tells the next one what came of it.

So a delivery asks for no second witness (`pg_xact_status`): until the transaction has ended, that says "in progress",
and the ledger's row is locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.delivering.feed import Feed, reporting_on
from tests.delivering.lane import Lane
from tests.delivering.pairs import DAYS, STRANGER, Pair, by_stranger, make_pair
from tests.support.postgresql import USER, PostgreSQL
from tests.support.waiting import patience, wait_for

#: What COMMIT waits for, by the server's name of it -> how it is made to: before its record is in the log, and after.
_WAITS = {
    "advisory": "PERFORM pg_advisory_xact_lock(1)",
    "SyncRep": "PERFORM set_config('synchronous_commit', 'on', true)",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """One whose transactions wait for a standby that never comes, if they ask to."""
    options = {"max_wal_senders": "1", "synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with PostgreSQL(**options) as server:
        yield server


@contextmanager
def committing(pair: Pair, server: PostgreSQL, warm: Lane, wait: str) -> Iterator[Callable[[], None]]:
    """The server is at the COMMIT of barrier 2, whose deliverer was killed; what is yielded lets the COMMIT end."""
    database = pair.reporting.url
    server.run(
        "CREATE SEQUENCE deliveries",
        f"""
        CREATE FUNCTION wait() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$
        BEGIN IF nextval('deliveries') = 1 THEN {_WAITS[wait]}; END IF; RETURN NULL; END $$
        """,
        f"""
        CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON {pair.ledger} DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.number = OLD.number) EXECUTE FUNCTION wait()
        """,
        database=database,
    )
    waiting = f"SELECT pid, pg_xact_status(backend_xid::text::xid8) FROM pg_stat_activity WHERE wait_event = '{wait}'"
    with pair.reporting.connect() as lock:
        lock.execute("SELECT pg_advisory_lock(1)")
        child = warm.start(pair.order(2))
        wait_for("the server to be at its COMMIT", lambda: server.run(waiting, database=database))
        warm.kill(child)
        ((process, status),) = server.run(waiting, database=database)
        assert status == "in progress"

        def let_end() -> None:
            lock.execute("SELECT pg_advisory_unlock(1)")
            if wait == "SyncRep":  # to be told to stop ends the wait; what is in the log stays
                server.run(f"SELECT pg_cancel_backend({process})")

        yield let_end


@pytest.mark.parametrize("wait", _WAITS)
@pytest.mark.parametrize("successor", [USER, STRANGER])
def test_the_ledger_tells_what_became_of_a_commit(
    feed: Feed, server: PostgreSQL, warm: Lane, wait: str, successor: str
) -> None:
    """The same role ends the session, before it looks; another one waits for the ledger's row."""
    for day in DAYS:
        feed.commit(day)
    with reporting_on(server) as reporting, ThreadPoolExecutor(1) as threads:
        pair = make_pair(feed, reporting, "pair")
        pair.deliver(1)
        with committing(pair, server, warm, wait) as let_end:
            if successor == USER:
                assert pair.deliver(3) == [2, 3]
            else:
                going_on = threads.submit(by_stranger(pair, server).deliver, 3)
                waits = f"SELECT 1 FROM pg_stat_activity WHERE usename = '{STRANGER}' AND wait_event_type = 'Lock'"
                wait_for("the successor to wait for the ledger's row", lambda: server.run(waits))
                let_end()
                assert going_on.result(patience()) == [2, 3]
        pair.check(1, 2, 3)
    second = feed.deployment.meta.deliveries.history("shopping", "pair")[-2]
    rolled_back = (wait, successor) == ("advisory", USER)
    assert (second.inserted > 0) == rolled_back, "what was committed is not delivered again"
