"""By event time each record is in one epoch exactly, whatever order files and times come in."""

from __future__ import annotations

import gzip
import itertools
import json
import tempfile
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.files import Files
from tests.sources.landing import DAY, T0, Cutter, day, land, land_parquet

UTC_US = pa.timestamp("us", "UTC")


def by_event_time(folder: Path, **options: Any) -> Files:
    return Files(str(folder), schema="id BIGINT, at TIMESTAMP", attribute_by="event_time", event_time="at", **options)


def land_events(path: Path, times: list[datetime | None], modified: datetime = T0, **options: Any) -> Path:
    return land_parquet(path, {"id": list(range(len(times))), "at": pa.array(times, UTC_US)}, modified, **options)


# --- exactly once, against an oracle ----------------------------------------------------------------

HOURS = st.one_of(st.none(), st.integers(min_value=0, max_value=24 * 6))
ARRIVALS = st.lists(st.lists(st.lists(HOURS, min_size=1, max_size=4), max_size=3), min_size=1, max_size=6)


def records_read(source: Files, cut: Cut, after: datetime | None, until: datetime) -> list[str]:
    """The ids that the epoch reads, as :meth:`Files.load` would: parts by the same rule, rows by pyarrow."""
    ids = []
    for reading in source.readings(cut, after, until):
        assert reading.until is not None
        for name in reading.files:
            for row in pq.read_table(Path(source.path) / name).to_pylist():
                at = row["at"]
                if at is None:
                    due = reading.after is None
                else:
                    due = at <= reading.until and (reading.after is None or at > reading.after)
                if due:
                    ids.append(row["id"])
    return ids


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals=ARRIVALS, aborted=st.sets(st.integers(min_value=0, max_value=5)))
def test_each_record_is_in_one_epoch_exactly(arrivals: list[list[list[int | None]]], aborted: set[int]) -> None:
    """Files arrive before each barrier, with records early, in time and late; some barriers are aborted.

    Oracle: a record belongs to the first barrier that counts, was opened after it arrived, and is not before its time;
    one without a time goes with the first record of its file that has one.
    """
    with tempfile.TemporaryDirectory() as landing:
        folder = Path(landing)
        source = by_event_time(folder, idle_timeout=timedelta(0))
        barriers = Cutter(source)
        numbers = itertools.count()
        expected: dict[str, int] = {}
        waiting: dict[str, datetime] = {}
        epochs: dict[int, list[str]] = {}
        # one more barrier, long after all event times, takes what is still held
        for index, files in enumerate([*arrivals, []]):
            until = day(index + 1 if index < len(arrivals) else 30)
            arrived: dict[str, datetime] = {}
            for times in files:
                number = next(numbers)
                first = min((hour for hour in times if hour is not None), default=0)
                for position, hour in enumerate(times):
                    arrived[f"{number}/{position}"] = T0 + timedelta(hours=first if hour is None else hour)
                land_parquet(
                    folder / f"{number:03}.parquet",
                    {
                        "id": [f"{number}/{position}" for position in range(len(times))],
                        "at": pa.array(
                            [T0 + timedelta(hours=hour) if hour is not None else None for hour in times], UTC_US
                        ),
                    },
                    row_group_size=2,
                )
            waiting.update(arrived)
            after = barriers.cuts[-1][0] if barriers.cuts else None
            cut = barriers.cut(until, now=day(1000))
            if index in aborted and index < len(arrivals):
                barriers.abort()
                continue
            epochs[index] = records_read(source, cut, after, until)
            due = {record for record, at in waiting.items() if at <= until}
            expected.update(dict.fromkeys(due, index))
            for record in due:
                del waiting[record]
        assert not waiting
        found = Counter(record for epoch in epochs.values() for record in epoch)
        assert set(found.values()) <= {1}
        assert {record: index for index, epoch in epochs.items() for record in epoch} == expected


def test_late_records_are_counted_and_nulls_are_not_dropped(tmp_path: Path) -> None:
    source = by_event_time(tmp_path, idle_timeout=timedelta(0))
    barriers = Cutter(source)
    land_events(tmp_path / "a.parquet", [day(0.5), day(2.5)])
    first = barriers.cut(day(1), now=day(99))
    assert (first.items, first.end["late"]) == (("a.parquet",), 0)
    assert [entry["path"] for entry in first.end["held"]] == ["a.parquet"]
    land_events(tmp_path / "b.parquet", [day(0.1), day(0.2), None, day(1), day(1.5)], row_group_size=2)
    second = barriers.cut(day(2), now=day(99))
    assert (second.items, second.end["late"]) == (("b.parquet",), 3)
    assert second.start == {"time": day(1).isoformat(), "held": first.end["held"]}
    third = barriers.cut(day(3), now=day(99))
    assert (third.items, third.end["held"]) == ((), [])
    assert [reading.files for reading in source.readings(third, day(2), day(3))] == [("a.parquet",)]


def test_files_that_hold_only_early_records_are_left_for_later_cuts(tmp_path: Path) -> None:
    barriers = Cutter(by_event_time(tmp_path))
    for number in range(40):  # a whole history that landed at once
        land_events(tmp_path / f"{number:02}.parquet", [day(number) + timedelta(hours=1), day(number + 0.9)])
    first, second = barriers.cut(day(1)), barriers.cut(day(2))
    assert (first.items, second.items) == (("00.parquet",), ("01.parquet",))
    assert len(json.dumps(second.end)) < 300


def test_the_watermark_gates_the_timestamp(tmp_path: Path) -> None:
    barriers = Cutter(by_event_time(tmp_path, allowed_lateness=timedelta(hours=2)))
    assert barriers.waits(day(1)).watermark is None
    land_events(tmp_path / "a.parquet", [day(0.5), day(1)])
    waits = barriers.waits(day(1))
    assert waits.watermark == day(1) - timedelta(hours=2)
    assert waits.reason == (
        "its watermark is 2017-01-01T22:00:00+00:00, the barrier's timestamp 2017-01-02T00:00:00+00:00"
    )
    land_events(tmp_path / "b.parquet", [day(1) + timedelta(hours=2)])
    assert barriers.cut(day(1)).items == ("a.parquet",)
    # what has been seen is remembered, although b was left for a later epoch and a is used up
    assert barriers.waits(day(2)).watermark == day(1)


@pytest.mark.kills("the-future-ends-no-epoch")
@pytest.mark.parametrize("form", ["parquet", "without statistics", "csv", "json"])
def test_a_wrong_clock_opens_no_barrier(tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture) -> None:
    def land_them(name: str, *times: float) -> None:
        path = tmp_path / name
        if form in ("csv", "json"):
            line = "1,{}" if form == "csv" else '{{"id": 1, "at": "{}"}}'
            land(path, "".join(line.format(day(time).isoformat()) + "\n" for time in times))
        else:
            land_events(path, [day(time) for time in times], write_statistics=form == "parquet")

    barriers = Cutter(by_event_time(tmp_path, format=form if form in ("csv", "json") else "parquet"))
    land_them("a", 0.1, 300)
    waits = barriers.waits(day(1), now=day(1))
    assert waits.watermark == day(0.1)
    assert "1 files hold event times after 2017-01-02T00:05:00+00:00" in caplog.text
    assert caplog.text.count(f"the first of which is {(tmp_path / 'a').as_uri()}. That is the future") == 1
    land_them("b", 301)
    assert barriers.waits(day(1), now=day(1)).watermark == day(0.1)
    land_them("c", 1.1, 0.2)
    first = barriers.cut(day(1), now=day(1.2))
    assert (first.items, first.end["newest"]) == (("a", "c"), day(1.1).isoformat())
    # what it left for later epochs opens none of them, and what a release before this one remembered neither
    first.end["newest"] = day(300).isoformat()
    assert barriers.waits(day(1.15), now=day(1.2)).watermark == day(1.1)
    land_them("d", 2)
    assert barriers.cut(day(2), now=day(2)).items == ("d",)
    # the present has come: they are due, each once
    last = barriers.cut(day(300), now=day(300))
    assert (last.items, [reading.files for reading in barriers.source.readings(last, day(2), day(300))]) == (  # type: ignore[attr-defined]
        (),
        [("a",)],
    )
    assert barriers.cut(day(301), now=day(301)).items == ("b",)


def test_a_clock_may_be_wrong_by_more_years_than_python_has(tmp_path: Path) -> None:
    year_20000 = pa.scalar(569_000_000_000_000_000, UTC_US)
    times = pa.array([day(0.5), None, year_20000], UTC_US)
    land_parquet(tmp_path / "a.parquet", {"id": [1, 2, 3], "at": times})
    barriers = Cutter(by_event_time(tmp_path))
    assert barriers.waits(day(1), now=day(1)).watermark == day(0.5)
    land_events(tmp_path / "b.parquet", [day(1)])
    cut = barriers.cut(day(1), now=day(1))
    assert (cut.items, cut.end["unread"]) == (("a.parquet", "b.parquet"), {})
    assert [entry["path"] for entry in cut.end["held"]] == ["a.parquet"]


def test_an_idle_source_does_not_hold_the_barrier(tmp_path: Path) -> None:
    barriers = Cutter(by_event_time(tmp_path, idle_timeout=timedelta(hours=6)))
    land_events(tmp_path / "a.parquet", [day(0.5)], modified=day(1))
    barriers.waits(day(1), now=day(1) + timedelta(hours=5))
    assert barriers.cut(day(1), now=day(1) + timedelta(hours=6)).items == ("a.parquet",)
    # new data: no longer idle
    land_events(tmp_path / "b.parquet", [day(1.5)], modified=day(2))
    barriers.waits(day(2), now=day(2) + timedelta(hours=1))


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}, {"use_deprecated_int96_timestamps": True}])
def test_event_times_of_parquet_files_with_and_without_statistics(tmp_path: Path, options: dict[str, Any]) -> None:
    source = by_event_time(tmp_path)
    barriers = Cutter(source)
    land_events(tmp_path / "a.parquet", [day(0.2), day(1), day(2), None], row_group_size=1, **options)
    cut = barriers.cut(day(1))
    assert cut.end["newest"] == day(2).isoformat()
    source.check(cut)
    land_events(tmp_path / "b.parquet", [day(0.5), day(1.5), None, day(0.6)], row_group_size=2, **options)
    assert barriers.cut(day(2)).end["late"] == 2


TEXTS = ["2017-01-01 06:00:00", "2017-01-01T12:00:00.5Z", "2017-01-02T00:00:00+02:00", "2017-01-02", ""]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_event_times_of_text_files(tmp_path: Path, form: Any, compress: bool) -> None:
    if form == "csv":
        text = "id;at\n" + "".join(f'{i};"{at}"\n' for i, at in enumerate(TEXTS))
    else:
        text = "".join(json.dumps({"id": i, "at": at} if at else {"id": i}) + "\n" for i, at in enumerate(TEXTS))
    suffix = ".gz" if compress else ""
    options = {"options": {"header": True, "delimiter": ";"}} if form == "csv" else {}
    source = by_event_time(tmp_path, format=form, **options)
    barriers = Cutter(source)
    content = gzip.compress(text.encode()) if compress else text
    land(tmp_path / f"a.{form}{suffix}", content)
    cut = barriers.cut(day(0.5) + timedelta(seconds=0.5))
    source.check(cut)
    assert cut.end["newest"] == day(1).isoformat()
    land(tmp_path / f"b.{form}{suffix}", content)
    assert barriers.cut(day(1)).end["late"] == 2


@pytest.mark.parametrize(
    ("form", "content", "why"),
    [
        ("csv", "1,2017-01-01\n2,yesterday\n", "expected at as ISO 8601 text, found another in record 2"),
        ("json", '{"id": 1, "at": 1483272000}\n', "expected at as ISO 8601 text, found int in line 1"),
        ("json", "{\n", "JSONDecodeError"),
        ("parquet", b"PAR1", "smaller than the minimum"),
    ],
)
def test_a_file_whose_event_times_cannot_be_read_fails_its_job_and_not_the_topology(
    tmp_path: Path, form: Any, content: str | bytes, why: str
) -> None:
    source = by_event_time(tmp_path, format=form)
    barriers = Cutter(source)
    bad = land(tmp_path / f"bad.{form}", content, day(0.5))
    assert "bad." in barriers.waits(day(1)).reason
    if form == "parquet":
        land_events(tmp_path / "good.parquet", [day(0.5), day(1)])
    elif form == "csv":
        land(tmp_path / "good.csv", "1,2017-01-02\n")
    else:
        land(tmp_path / "good.json", '{"id": 1, "at": "2017-01-02"}\n')
    cut = barriers.cut(day(1))
    assert len(cut.items) == 2
    with pytest.raises(SourceDataError, match=rf"file://{bad}: (?s:.*)({why})"):
        source.check(cut)
    # mended: pinned anew, with the event times that it has now
    if form == "parquet":
        land_events(bad, [day(0.5), day(3)], modified=day(1.5))
    elif form == "csv":
        land(bad, "1,2017-01-04\n", day(1.5))
    else:
        land(bad, '{"id": 1, "at": "2017-01-04"}\n', day(1.5))
    mended = source.repin(cut)
    source.check(mended)
    assert [(entry["path"], entry["newest"]) for entry in mended.end["held"]] == [(bad.name, day(3).isoformat())]


def test_one_barrier_takes_days_at_once(tmp_path: Path) -> None:
    barriers = Cutter(by_event_time(tmp_path))
    for number in range(5):
        land_events(tmp_path / f"{number}.parquet", [T0 + number * DAY + timedelta(hours=1)])
    assert len(barriers.cut(day(4)).items) == 4
