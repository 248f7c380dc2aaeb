"""Which barriers an expiry keeps, and what it says about each."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_barrier.protocol.deliveries import Position, SinkDeclaration, SinkRecord, SinkState
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.retention import Retention, barrier_verdicts, window_start
from airflow_barrier.protocol.states import BarrierState
from tests.support.runs import run_of

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
DAY = timedelta(days=1)


def committed(count: int) -> list[Barrier]:
    """Barriers 1 to ``count``, one a day, the newest just now."""
    return [
        Barrier(
            topology="shopping",
            barrier_id=number,
            computed_in=0,
            timestamp=NOW - DAY * (count - number),
            state=BarrierState.COMMIT,
            predecessor=number - 1,
            topology_version=1,
            kind=BarrierKind.EPOCH,
            run=run_of(f"run {number}"),
            timestamp_from="test",
            opened_at=NOW,
            commit_at=NOW - DAY * (count - number),
        )
        for number in range(1, count + 1)
    ]


def test_what_is_neither_new_nor_young_nor_held_nor_used_goes() -> None:
    verdicts = barrier_verdicts(
        committed(9),
        Retention(barriers=2, age=DAY * 4),
        NOW,
        held={2: ["report", "bi"], 9: ["bi"]},
        in_use={3: "open barrier 10 stands on it"},
        sinks=[],
    )
    assert {verdict.barrier.barrier_id: (verdict.keep, verdict.reason) for verdict in verdicts} == {
        1: (False, "beyond the newest 2 barriers and those of the last 4 days, and nobody holds it"),
        2: (True, "leased by bi, report"),
        3: (True, "open barrier 10 stands on it"),
        4: (False, "beyond the newest 2 barriers and those of the last 4 days, and nobody holds it"),
        5: (False, "beyond the newest 2 barriers and those of the last 4 days, and nobody holds it"),
        6: (True, "committed 2026-01-28 12:00, within 4 days"),
        7: (True, "committed 2026-01-29 12:00, within 4 days"),
        8: (True, "among the newest 2"),
        9: (True, "among the newest 2"),
    }
    start = window_start(verdicts)
    assert start is not None
    assert start.barrier_id == 6


def test_what_a_sink_holds_belongs_to_the_window() -> None:
    held, in_use = {1: ["report"], 2: ["report"]}, {2: "open barrier 10 stands on it"}
    sinks = [sink("files", Position(4, 1)), sink("prices", Position(3, 0)), sink("new", None)]
    verdicts = barrier_verdicts(committed(6), Retention(barriers=1), NOW, held, in_use, sinks)
    assert [(verdict.reason, verdict.recent) for verdict in verdicts] == [
        ("leased by report", False),
        ("leased by report", False),
        ("sink prices is at b3.r0", True),
        ("sink files is at b4.r1; sink prices is at b3.r0", True),
        ("sink files is at b4.r1; sink prices is at b3.r0", True),
        ("among the newest 1", True),
    ]


def sink(name: str, position: Position | None) -> SinkRecord:
    return SinkRecord(
        topology="shopping",
        name=name,
        owner="dag",
        definition=SinkDeclaration(name, "dag", "files", {"shop.price": "price"}),
        state=SinkState.ACTIVE,
        barrier_id=position and position.barrier_id,
        revision=position and position.revision,
        delivered_at=position and NOW,
        deliverer=None,
        error=None,
        failed_at=None,
        failures=0,
        hold_seconds=60,
        remedy=None,
        created_at=NOW,
    )


def test_fewer_barriers_than_are_to_be_kept() -> None:
    assert all(v.keep for v in barrier_verdicts(committed(2), Retention(barriers=5), NOW, {}, {}, []))
    assert barrier_verdicts([], Retention(barriers=5), NOW, {}, {}, []) == []
    assert window_start([]) is None


@pytest.mark.parametrize("barriers", [0, -1])
def test_to_keep_nothing_is_refused(barriers: int) -> None:
    with pytest.raises(ConfigurationError, match=f"expected to keep 1 barrier or more, found {barriers}"):
        Retention(barriers)


def test_a_negative_age_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected an age of zero or more, found -1 day"):
        Retention(1, -DAY)
