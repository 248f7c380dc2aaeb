"""Who took the time of a barrier, on a scenario whose sums were done by hand, and on any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_barrier.protocol.delay import (
    AttemptMoments,
    BarrierMoments,
    Before,
    Part,
    Segment,
    critical_path,
    job_paths,
    table_delays,
)
from airflow_barrier.protocol.records import NO_RUN, Barrier, BarrierKind
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Job, Topology

START = datetime(2026, 1, 5, 6, tzinfo=timezone.utc)
#: load makes a; price makes p of it; spend makes s of it, in another DAG; top makes t of p and s.
SHOP = Topology.of(
    "shop",
    [
        Job("load", "shop", outlets=("shop.a",)),
        Job("price", "shop", inlets=("shop.a",), outlets=("shop.p",)),
        Job("spend", "crm", inlets=("shop.a",), outlets=("shop.s",)),
        Job("top", "shop", inlets=("shop.p", "shop.s"), outlets=("shop.t",)),
    ],
)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else START + timedelta(seconds=seconds)


def sure(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(
    job: str,
    requested: float,
    started: float | None,
    processed: float | None = None,
    ended: float | None = None,
    state: AttemptState = AttemptState.PROCESSED,
) -> AttemptMoments:
    return AttemptMoments(job, state, sure(requested), at(started), at(processed), at(ended))


def barrier(
    number: int,
    opened: float,
    precommit: float | None,
    committed: float | None,
    staged: Mapping[str, float | None],
    *attempts: AttemptMoments,
    timestamp: float = 0,
) -> BarrierMoments:
    state = BarrierState.COMMIT if committed is not None else BarrierState.OPEN
    record = Barrier(
        "shop",
        number,
        0,
        sure(timestamp),
        state,
        number - 1,
        1,
        BarrierKind.EPOCH,
        NO_RUN,
        "test",
        sure(opened),
        precommit_at=at(precommit),
        committing_at=at(committed and precommit),
        commit_at=at(committed),
    )
    jobs: dict[str, list[AttemptMoments]] = {}
    for each in attempts:
        jobs.setdefault(each.job, []).append(each)
    return BarrierMoments(record, SHOP, {table: at(time) for table, time in staged.items()}, jobs)


#: Opened after 4 s. load runs from 6 to 40. price is asked for at 5, begins at 44. The DAG of spend comes at 50 only:
#: its first try fails from 52 to 60, the second runs from 63 to 80. top runs from 84 to 130. The commit takes 10 s.
FIRST = barrier(
    1,
    4,
    130,
    140,
    {"shop.a": 40, "shop.p": 74, "shop.s": 80, "shop.t": 130},
    attempt("load", 5, 6, 40),
    attempt("price", 5, 44, 74),
    attempt("spend", 50, 52, ended=60, state=AttemptState.ABORTED),
    attempt("spend", 62, 63, 80),
    attempt("top", 5, 84, 130),
)


def said(path: tuple[Segment, ...]) -> list[tuple[str, str | None, int, float]]:
    return [(each.part.value, each.job, each.barrier_id, each.seconds) for each in path]


def only(*moments: BarrierMoments) -> Before:
    return {each.barrier.barrier_id: each for each in moments}.get


def test_the_path_of_a_barrier_goes_back_from_what_came_last():
    assert said(critical_path(FIRST, only(), sure(999))) == [
        ("schedule", None, 1, 4),
        ("not asked for", "load", 1, 1),
        ("waking", "load", 1, 1),
        ("spark", "load", 1, 34),
        ("not asked for", "spend", 1, 10),
        ("waking", "spend", 1, 2),
        ("failed tries", "spend", 1, 8),
        ("between tries", "spend", 1, 2),
        ("waking", "spend", 1, 1),
        ("spark", "spend", 1, 17),
        ("waking", "top", 1, 4),
        ("spark", "top", 1, 46),
        ("commit", None, 1, 10),
    ]


def test_a_table_has_own_and_inherited_time():
    delays = {each.table: each for each in table_delays(FIRST, only(), sure(999))}
    price = {part.value: seconds for part, seconds in delays["shop.p"].parts.items() if seconds}
    assert price == {"schedule": 4, "inputs": 36, "waking": 4, "spark": 30, "siblings": 56, "commit": 10}
    assert (delays["shop.p"].own, delays["shop.p"].inherited, delays["shop.p"].seconds) == (34, 36, 140)
    spend = delays["shop.s"]
    assert (spend.own, spend.parts[Part.FAILED_TRIES], spend.inherited) == (40, 8, 36)
    # what holds up the barrier has no siblings to wait for
    assert delays["shop.t"].parts[Part.SIBLINGS] == 0


def test_one_table_is_held_up_by_its_own_jobs_first():
    path = critical_path(FIRST, only(), sure(999), table="shop.p")
    assert said(path)[4:7] == [("waking", "price", 1, 4), ("spark", "price", 1, 30), ("spark", "spend", 1, 6)]
    assert sum(each.seconds for each in path) == 140


def test_the_barrier_before_holds_up_its_successor():
    """The same job may still be at the barrier before, and what is staged waits until that one is committed."""
    second = barrier(
        2,
        14,
        135,
        150,
        {"shop.a": 60, "shop.p": 90, "shop.s": 95, "shop.t": 135},
        attempt("load", 14, 41, 60),
        attempt("price", 14, 75, 90),
        attempt("spend", 14, 81, 95),
        attempt("top", 14, 131, 135),
        timestamp=10,
    )
    path = critical_path(second, only(FIRST), sure(999))
    assert said(path) == [
        ("schedule", None, 2, 4),
        ("spark", "load", 1, 26),
        ("not asked for", "spend", 1, 10),
        ("waking", "spend", 1, 2),
        ("failed tries", "spend", 1, 8),
        ("between tries", "spend", 1, 2),
        ("waking", "spend", 1, 1),
        ("spark", "spend", 1, 17),
        ("waking", "top", 1, 4),
        ("spark", "top", 1, 46),
        ("waking", "top", 2, 1),
        ("spark", "top", 2, 4),
        ("commit", None, 1, 5),
        ("commit", None, 2, 10),
    ]
    top = {each.table: each for each in table_delays(second, only(FIRST), sure(999))}["shop.t"]
    assert (top.parts[Part.EARLIER], top.parts[Part.COMMIT], top.inherited, top.own) == (5, 10, 116, 5)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ((), ("not asked for", "spend", 1, 60)),
        ((attempt("spend", 50, None, state=AttemptState.REQUESTED),), ("waking", "spend", 1, 50)),
        ((attempt("spend", 50, 70, state=AttemptState.RUNNING),), ("spark", "spend", 1, 30)),
        ((attempt("spend", 50, 70, ended=95, state=AttemptState.ABORTED),), ("between tries", "spend", 1, 5)),
    ],
)
def test_what_is_not_there_yet_is_looked_for_up_to_now(
    attempts: tuple[AttemptMoments, ...], expected: tuple[str, str, int, float]
):
    waiting = barrier(
        1,
        4,
        None,
        None,
        {"shop.a": 40, "shop.p": 74, "shop.s": None, "shop.t": None},
        attempt("load", 5, 6, 40),
        attempt("price", 5, 44, 74),
        attempt("top", 5, None, state=AttemptState.REQUESTED),
        *attempts,
    )
    assert said(critical_path(waiting, only(), sure(100)))[-1] == expected
    delays = {each.table: each for each in table_delays(waiting, only(), sure(100))}
    assert all(each.seconds == 100 for each in delays.values())
    # top has done nothing yet: it waits for its inputs
    assert (delays["shop.t"].inherited, delays["shop.t"].own) == (96, 0)


def test_a_barrier_that_is_staged_waits_for_its_commit():
    open_now = {"commit_at": None, "committing_at": None, "state": BarrierState.PRECOMMIT}
    staged = replace(FIRST, barrier=replace(FIRST.barrier, **open_now))
    assert said(critical_path(staged, only(), sure(1130)))[-1] == ("decision", None, 1, 1000)


def test_of_a_trimmed_barrier_no_more_is_known_than_when_it_was_opened():
    trimmed = replace(FIRST, staged={}, attempts={})
    path = said(critical_path(trimmed, only(), sure(999)))
    assert path == [("schedule", None, 1, 4), ("not known any more", None, 1, 126), ("commit", None, 1, 10)]
    assert table_delays(trimmed, only(), sure(999)) == ()


_moments = st.one_of(st.none(), st.integers(-20, 200))


@st.composite
def histories(draw: st.DrawFn) -> tuple[BarrierMoments, BarrierMoments, int]:
    """Two barriers whose clocks and jobs did anything at all."""

    def one(number: int) -> BarrierMoments:
        staged = {table: draw(_moments) for table in SHOP.tables}
        attempts = [
            attempt(
                draw(st.sampled_from([job.name for job in SHOP.jobs])),
                draw(st.integers(-20, 200)),
                draw(_moments),
                draw(_moments),
                draw(_moments),
                draw(st.sampled_from(AttemptState)),
            )
            for _ in range(draw(st.integers(0, 6)))
        ]
        made = barrier(number, draw(st.integers(-20, 60)), draw(_moments), draw(_moments), staged, *attempts)
        more = {"timestamp": sure(draw(st.integers(0, 60))), "max_open": draw(st.sampled_from([None, 1, 2]))}
        return replace(made, barrier=replace(made.barrier, **more))

    def lost() -> BarrierMoments:
        given_up = {"commit_at": None, "state": BarrierState.ABORTED, "aborted_at": at(draw(_moments))}
        made = one(2)
        return replace(made, barrier=replace(made.barrier, **given_up))

    second = replace(one(3), aborted=[lost() for _ in range(draw(st.integers(0, 2)))])
    second = replace(second, barrier=replace(second.barrier, predecessor=1))
    return one(1), second, draw(st.integers(60, 300))


@given(histories())
@settings(max_examples=300, deadline=None)
def test_nothing_is_counted_twice_and_nothing_is_left_out(history: tuple[BarrierMoments, BarrierMoments, int]):
    first, second, now = history
    for each in (first, second):
        until = each.barrier.commit_at or sure(now)
        whole = max((until - each.since).total_seconds(), 0)
        for table in (None, *SHOP.tables):
            path = critical_path(each, only(first), sure(now), table)
            if whole:
                assert (path[0].begin, path[-1].end) == (each.since, until)
                assert all(a.end == b.begin for a, b in pairwise(path))
            else:
                assert not path
        for path in job_paths(each, only(first), sure(now)).values():
            assert all(a.end <= b.begin for a, b in pairwise(path))
        for delay in table_delays(each, only(first), sure(now)):
            assert delay.seconds == pytest.approx(whole)
            assert delay.own + delay.inherited <= delay.seconds
