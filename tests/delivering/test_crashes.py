"""A deliverer dies, or replies of the sink are lost; another one finds out what was delivered, and goes on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.delivering.feed import PRICE, Feed, Reporting
from tests.delivering.lane import AFTER_TELLING, BEFORE_TELLING, Lane
from tests.delivering.pairs import BEGIN, COMMIT, COPY, DAYS, make_pair
from tests.support.cases import cases
from tests.support.computing import a_core
from tests.support.drawing import drawn
from tests.support.proxy import Cut, Hold, Proxy
from tests.support.waiting import patience

_ATTACKED = ("sinks/postgresql/channel.py", "coordinator/delivering.py")


@dataclass(frozen=True)
class Point:
    """Before the statement of that number of a delivery, or after it: the server has done it, and nobody heard so.

    ``behind``: the statement is on its way still, and comes to the server after the next deliverer has been there; or
    else it never does.
    """

    barrier: int
    number: int
    answered: bool
    behind: bool


#: Where a delivery dies: a statement's beginning, ``answered`` and ``behind``.
_DEATHS = (
    (BEGIN, False, False),
    (COPY, False, True),
    (COMMIT, False, False),
    (COMMIT, False, True),
    (COMMIT, True, False),
)


def points_of(feed: Feed, reporting: Reporting, proxy: Proxy) -> list[Point]:
    """Points of a first load and of a delivery of changes, in which nothing goes wrong."""
    pair = make_pair(feed, reporting, "recorded")
    found = []
    for barrier in (1, 2):
        with proxy.watching() as seen:
            assert pair.deliver(barrier, proxy.port) == [barrier]
        for beginning, answered, behind in _DEATHS:
            numbers = [number for number, text in enumerate(seen.statements) if text.lstrip().startswith(beginning)]
            found.append(Point(barrier, numbers[-1], answered, behind))
    return found


def test_a_deliverer_dies_and_the_next_one_makes_it_good(
    feed: Feed, reporting: Reporting, proxy: Proxy, warm: Lane
) -> None:
    """Dying at each statement is played for the sink by itself (`tests/sinks/test_postgresql.py`)."""
    for day in DAYS[:2]:
        feed.commit(day)
    with cases() as case:
        for number, point in enumerate(points_of(feed, reporting, proxy)):
            with case(point):
                pair = make_pair(feed, reporting, f"pair{number}")
                if point.barrier == 2:
                    pair.deliver(1)
                hold = Hold(point.number, answered=point.answered)
                with a_core(), proxy.watching(hold):
                    child = warm.start(pair.order(point.barrier, proxy.port))
                    assert hold.come.wait(patience())
                    warm.kill(child)
                    if point.behind:  # its session is alive, as where a cable was pulled
                        again = pair.deliver(point.barrier)
                        hold.go_on.set()
                    else:
                        proxy.cut_all()
                        hold.go_on.set()
                        again = pair.deliver(point.barrier)
                    assert again == [point.barrier]
                pair.check(*range(1, point.barrier + 1))


@pytest.mark.parametrize("suspended", [BEFORE_TELLING, AFTER_TELLING])
@pytest.mark.parametrize("barrier", [1, 2])
def test_death_between_the_sinks_commit_and_the_metaservices_record(
    feed: Feed, reporting: Reporting, warm: Lane, barrier: int, suspended: str
) -> None:
    for day in DAYS:
        feed.commit(day)
    pair = make_pair(feed, reporting, "pair")
    if barrier == 2:
        pair.deliver(1)
    child = warm.start(pair.order(barrier, suspended=suspended))
    warm.suspended(child)
    assert reporting.rows(pair.targets[PRICE]) == feed.states[barrier]
    warm.kill(child)
    before = [barrier] if suspended == BEFORE_TELLING else []
    assert pair.deliver(3) == [*before, *range(barrier + 1, 4)]
    pair.check(1, 2, 3)


@pytest.mark.every_landing
def test_lost_replies(feed: Feed, reporting: Reporting, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are cut at each statement of a first load and of a delivery of changes, which ends all the same."""
    monkeypatch.setattr("airflow_barrier.coordinator.delivering._PAUSE", 0.001)
    for day in DAYS[:2]:
        feed.commit(day)
    first = make_pair(feed, reporting, "recorded")
    cuts: list[tuple[int, Cut]] = []
    for barrier in (1, 2):
        with proxy.watching() as seen:
            first.deliver(barrier, proxy.port)
        cuts += [(barrier, cut) for cut in seen.worth_cutting if isinstance(cut, Cut)]
    for number, (barrier, cut) in enumerate(drawn(cuts, "lost replies of sinks", touches=lambda _: _ATTACKED)):
        pair = make_pair(feed, reporting, f"pair{number}")
        if barrier == 2:
            pair.deliver(1)
        with proxy.watching(cut) as seen:
            assert pair.deliver(barrier, proxy.port) == [barrier], cut
        assert seen.happened
        pair.check(*range(1, barrier + 1))
