"""Several deliver at once: to one sink, which fences one of them; to sinks that share a ledger and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.delivering.feed import Feed, Reporting, make_feed
from tests.delivering.lane import Lane
from tests.delivering.pairs import DAYS, make_pair
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL

#: How one of two may end that deliver to one sink; nothing: it delivered.
_ENDS = ("", "FencedDelivererError", "SinkTakenError", "SinkUnavailableError")


def test_two_processes_deliver_to_one_sink(feed: Feed, reporting: Reporting, warm: Lane) -> None:
    for day in DAYS:
        feed.commit(day)
    for number in range(6):
        pair = make_pair(feed, reporting, f"pair{number}")
        children = [warm.start(pair.order(3, request_key=key)) for key in ("one", "other")]
        ended = [warm.end(child) for child in children]
        assert all(each.error in _ENDS for each in ended), ended
        pair.deliver(3)
        history = feed.deployment.meta.deliveries.history("shopping", pair.name)
        assert [each.barrier_id for each in history] == [3], "the first delivery is of the newest, whole"
        pair.check(3)
        feed.commit(DAYS[0])
        feed.commit(DAYS[1])
        newest = len(feed.states)
        children = [warm.start(pair.order(newest, request_key=key)) for key in ("one", "other")]
        ended = [warm.end(child) for child in children]
        assert all(each.error in _ENDS for each in ended), ended
        pair.deliver(newest)
        pair.check(*range(3, newest + 1))


def test_sinks_of_several_topologies_share_a_ledger(
    feed: Feed, reporting: Reporting, postgresql: PostgreSQL, warm: Lane, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with settings_on("sqlite", folder, postgresql) as settings:
        other = make_feed(settings)
        for day in DAYS:
            feed.commit(day)
            other.commit({key: value + 1000 for key, value in day.items()})
        pairs = [
            make_pair(whose, reporting, f"{name}_{number}", ledger="shared")
            for number, whose in enumerate((feed, other))
            for name in ("one", "two")
        ]
        for through in (1, 3):
            children = [warm.start(pair.order(through)) for pair in pairs]
            ended = [warm.end(child) for child in children]
            assert [each.delivered for each in ended] == [list(range(max(through - 1, 1), through + 1))] * 4
        for pair in pairs:
            pair.check(1, 2, 3)
        other.deployment.close()
    assert reporting.run("SELECT count(*), max(number) FROM shared") == [(4, 2)], "none had to begin again"
