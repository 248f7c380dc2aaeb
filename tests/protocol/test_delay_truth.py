"""Who is blamed for a delay, against twenty histories of which it is known what had happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from airflow_barrier.protocol.delay import BarrierMoments, critical_path
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology
from tests.protocol.test_delay import at, attempt, barrier, only, sure

#: a makes x of a topic; b makes y of x, in another DAG.
PAIR = Topology.of(
    "shop",
    [
        Job("a", "shop", outlets=("shop.x",), externals=(ExternalSource("clicks", "files", {"path": "/clicks"}),)),
        Job("b", "crm", inlets=("shop.x",), outlets=("shop.y",)),
    ],
)
_ABORTED, _VOIDED, _REQUESTED = AttemptState.ABORTED, AttemptState.VOIDED, AttemptState.REQUESTED


def failed(job: str, requested: float, started: float | None, ended: float, again: float | None = None):
    """A try that failed, the next of which comes ``again``; None: none does."""
    lost = attempt(job, requested, started, ended=ended, state=_ABORTED)
    return lost._replace(tried=1, again_at=at(again))


def pair(number: int, opened: float, x: float | None, y: float | None, committed: float | None, *attempts, **more):
    """A barrier of both tables; all of ``more`` as in BarrierMoments and Barrier."""
    decided = more.pop("decided", y)
    sources, aborted = more.pop("sources", {}), more.pop("aborted", ())
    made = barrier(number, opened, y, committed, {"shop.x": x, "shop.y": y}, *attempts, timestamp=more.pop("ts", 0))
    record = replace(made.barrier, committing_at=at(decided), **more)
    return replace(made, barrier=record, topology=PAIR, sources=sources, aborted=aborted)


def aborted(number: int, opened: float, ended: float, *attempts, ts: float = 0) -> BarrierMoments:
    lost = pair(number, opened, None, None, None, *attempts, ts=ts, state=BarrierState.ABORTED)
    return replace(lost, barrier=replace(lost.barrier, aborted_at=sure(ended)))


def usual(number: int, opened: float, before: float = 0, **more) -> BarrierMoments:
    """Half a minute, after the barrier before was done at ``before``."""
    begin = max(opened, before)
    return pair(
        number,
        opened,
        begin + 10,
        begin + 20,
        begin + 22,
        attempt("a", opened, begin, begin + 10),
        attempt("b", opened, begin + 10, begin + 20),
        **more,
    )


#: Barrier 1 hangs for an hour in a; another one is to be opened each 5 minutes, and four may be open.
HUNG = [pair(1, 0, 3600, 3610, 3612, attempt("a", 0, 0, 3600), attempt("b", 0, 3600, 3610), max_open=4)]
for _number in range(2, 11):
    _opens = 300 * (_number - 1) if _number <= 4 else HUNG[_number - 5].barrier.commit_at
    _opens = _opens if isinstance(_opens, int) else (_opens - sure(0)).total_seconds() + 1
    _before = (HUNG[-1].barrier.commit_at - sure(0)).total_seconds()
    HUNG.append(usual(_number, _opens, _before, ts=300 * (_number - 1), max_open=4))

A, B = attempt("a", 0, 0, 20), attempt("b", 0, 20, 40)


@dataclass(frozen=True)
class History:
    """``truth``: the seconds of whatever took the time, by part, job and barrier; what took less than ``small`` of them
    is not told.
    """

    truth: Mapping[tuple[str, str | None, int], float]
    moments: Sequence[BarrierMoments]
    now: float = 99_999
    small: float = 4


HISTORIES = {
    "a job waits for a full pool": History(
        {("spark", "a", 1): 60, ("not asked for", "b", 1): 40, ("spark", "b", 1): 10},
        [pair(1, 0, 60, 110, 112, attempt("a", 0, 0, 60), attempt("b", 100, 100, 110))],
    ),
    "a job that has asked already waits for a full pool": History(
        {("spark", "a", 1): 60, ("waking", "b", 1): 40, ("spark", "b", 1): 10},
        [pair(1, 0, 60, 110, 112, attempt("a", 0, 0, 60), attempt("b", 0, 100, 110))],
    ),
    "a job hangs, and no barrier can open": History(
        # it was to open at 1500, and did once barrier 2 was committed, which had waited for a at barrier 1
        {("spark", "a", 1): 3600 - 1500},
        HUNG[:6],
        small=15,
    ),
    "as many barriers again cannot open": History(
        {("spark", "a", 1): 3600 - 2700},
        HUNG,
        small=15,
    ),
    "a job fails twice, and is repeated after 5 minutes": History(
        {("failed tries", "a", 1): 40, ("between tries", "a", 1): 600, ("spark", "a", 1): 20, ("spark", "b", 1): 10},
        [
            pair(
                1,
                0,
                660,
                670,
                672,
                failed("a", 0, 0, 20, 320),
                failed("a", 320, 320, 340, 640),
                attempt("a", 640, 640, 660),
                attempt("b", 0, 660, 670),
            )
        ],
    ),
    "a job has failed for good": History(
        {("failed tries", "a", 1): 20, ("failed, not repeated", "a", 1): 4580},
        [pair(1, 0, None, None, None, failed("a", 0, 0, 20), attempt("b", 0, None, state=_REQUESTED))],
        now=4600,
    ),
    "a job has failed for good, and was cleared": History(
        {
            ("failed tries", "a", 1): 20,
            ("failed, not repeated", "a", 1): 280,
            ("spark", "a", 1): 20,
            ("spark", "b", 1): 10,
        },
        [pair(1, 0, 320, 330, 332, failed("a", 0, 0, 20), attempt("a", 300, 300, 320), attempt("b", 0, 320, 330))],
    ),
    "the DAG of a member is paused": History(
        {("spark", "a", 1): 20, ("not asked for", "b", 1): 2400, ("spark", "b", 1): 10},
        [pair(1, 0, 20, 2430, 2432, A, attempt("b", 2420, 2420, 2430))],
    ),
    "a source is away": History(
        {("source away", "a", 1): 600, ("spark", "a", 1): 20, ("spark", "b", 1): 10},
        [pair(1, 0, 620, 630, 632, attempt("a", 0, 600, 620), attempt("b", 0, 620, 630), sources={"clicks": at(600)})],
    ),
    "a source is still away": History(
        {("source away", "a", 1): 598},
        [pair(1, 0, None, None, None, attempt("a", 2, None, state=_REQUESTED), sources={"clicks": None})],
        now=600,
    ),
    "nobody has asked for the source that is away": History(
        {("not asked for", "a", 1): 600},
        [pair(1, 0, None, None, None, sources={"clicks": None})],
        now=600,
    ),
    "the commit task waits for a slot": History(
        {("spark", "a", 1): 20, ("spark", "b", 1): 20, ("decision", None, 1): 240},
        [pair(1, 0, 20, 40, 283, A, B, decided=280)],
    ),
    "to publish takes long": History(
        {("spark", "a", 1): 20, ("spark", "b", 1): 20, ("commit", None, 1): 240},
        [pair(1, 0, 20, 40, 283, A, B, decided=43)],
    ),
    "somebody else changed a table": History(
        {("spark", "a", 1): 20, ("spark", "b", 1): 20, ("blocked", None, 1): 7160},
        [pair(1, 0, 20, 40, None, A, B, decided=40, state=BarrierState.BLOCKED)],
        now=7200,
    ),
    "a sensor comes before the job": History(
        {("not asked for", "a", 1): 600, ("spark", "a", 1): 20, ("spark", "b", 1): 10},
        [pair(1, 0, 620, 630, 632, attempt("a", 600, 600, 620), attempt("b", 0, 620, 630))],
    ),
    "Airflow was down": History(
        {("schedule", None, 1): 1800, ("spark", "a", 1): 20, ("spark", "b", 1): 20},
        [pair(1, 1800, 1820, 1840, 1842, attempt("a", 1800, 1800, 1820), attempt("b", 1800, 1820, 1840), max_open=4)],
    ),
    "a barrier was aborted, and the next has its epoch": History(
        {("failed tries", "a", 1): 1800, ("schedule", None, 2): 60, ("spark", "a", 2): 10, ("spark", "b", 2): 10},
        [usual(2, 1860, ts=1850, aborted=[aborted(1, 0, 1800, attempt("a", 0, 0, ended=1800, state=_VOIDED))])],
    ),
    "two were aborted at once": History(
        {("failed tries", "a", 1): 1800, ("spark", "a", 3): 10, ("spark", "b", 3): 10},
        [
            usual(
                3,
                1800,
                ts=1790,
                aborted=[
                    aborted(1, 0, 1800, attempt("a", 0, 0, ended=1800, state=_VOIDED)),
                    aborted(2, 300, 1800, attempt("a", 300, None, ended=1800, state=_VOIDED), ts=300),
                ],
            )
        ],
    ),
    "a task gave up before it began": History(
        {("failed tries", "a", 1): 300, ("between tries", "a", 1): 60, ("spark", "a", 1): 20, ("spark", "b", 1): 10},
        [
            pair(
                1,
                0,
                380,
                390,
                392,
                failed("a", 0, None, 300, 360),
                attempt("a", 360, 360, 380),
                attempt("b", 0, 380, 390),
            )
        ],
    ),
    "days of years ago are caught up with": History(
        {("schedule", None, 20): 1_000_000, ("spark", "a", 20): 10, ("spark", "b", 20): 10},
        [usual(number, 1_000_000 - 100 * (20 - number), ts=0, max_open=1) for number in range(1, 21)],
        now=9_999_999,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_who_took_the_time(name: str) -> None:
    history = HISTORIES[name]
    *_, last = history.moments
    path = critical_path(last, only(*history.moments), sure(history.now))
    spent: dict[tuple[str, str | None, int], float] = defaultdict(float)
    for each in path:
        spent[each.part.value, each.job, each.barrier_id] += each.seconds
    told = {whose: seconds for whose, seconds in spent.items() if seconds > history.small}
    assert told == history.truth
    assert sum(spent.values()) == (path[-1].end - last.since).total_seconds()
