"""A sink's ledger: whose it is, and from where it may be moved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.protocol.errors import LedgerError, SinkBehindError
from airflow_barrier.protocol.retention import Retention
from tests.delivering.feed import Feed, Reporting, make_feed
from tests.delivering.pairs import COMMIT, DAYS, Pair, make_pair, place
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Hold, Proxy
from tests.support.waiting import patience


@pytest.fixture
def pair(feed: Feed, reporting: Reporting) -> Pair:
    """One that has received the first barrier of two."""
    for day in DAYS[:2]:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    pair.deliver(1)
    return pair


@pytest.mark.kills("ledger-of-this-place")
def test_a_copy_of_the_database_is_told(pair: Pair, postgresql: PostgreSQL) -> None:
    with postgresql.database(like=pair.reporting.url) as url:
        copied = replace(pair, reporting=Reporting(url))
        with pytest.raises(LedgerError, match=r"found a copy of it .*, which was delivered up to b1\.r0"):
            copied.deliver(2)
        copied.check_rows(1)
    pair.deliver(2)
    pair.check(1, 2)


def test_a_clone_that_is_refused_disturbs_nobody(
    pair: Pair, proxy: Proxy, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    hold = Hold(place(pair, proxy, COMMIT))
    folder = tmp_path / "clone"
    folder.mkdir()
    with settings_on("sqlite", folder, postgresql) as settings, ThreadPoolExecutor(1) as threads, proxy.watching(hold):
        delivering = threads.submit(pair.deliver, 2, proxy.port)
        try:
            assert hold.come.wait(patience())
            clone = replace(pair, feed=make_feed(settings))
            clone.feed.commit(DAYS[2])
            with pytest.raises(
                LedgerError, match="If it is a clone of one that still delivers, give this sink another"
            ):
                clone.deliver(1)
        finally:
            hold.go_on.set()
        assert delivering.result(patience()) == [2]
        clone.feed.deployment.close()
    assert pair.reporting.run(f"SELECT number FROM {pair.ledger}") == [(2,)], "it did not have to begin again"
    pair.check(1, 2)


@pytest.mark.kills("sink-beyond-history")
def test_what_was_delivered_last_can_be_read_no_more(pair: Pair) -> None:
    pair.feed.deployment.meta.deliveries.hold("shopping", pair.name, 0, "test")
    assert expire(pair.feed.deployment, "shopping", Retention(1), lambda *_: "", actor="test").barriers == (1,)
    with pytest.raises(SinkBehindError, match=r"expected to read barrier b1\.r0, .*sink redeliver shopping pair"):
        pair.deliver(2)
    pair.check_rows(1)
