"""Past epochs of a folder cut anew: what is gone leaves, and what is of their time and nobody has used joins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.files import Files
from tests.sources.landing import Cutter, day, land
from tests.sources.test_file_cuts import csv_files
from tests.sources.test_file_event_time import by_event_time, land_events, records_read


def recut(barriers: Cutter, first: int, last: int) -> list[Cut]:
    """The cuts of these barriers, made anew."""
    return barriers.source.recut([cut for _, cut in barriers.cuts[first - 1 : last]], barriers._used)


def by_path(folder: Path) -> Files:
    return csv_files(folder, attribute_by="path", path_date="date=%Y-%m-%d")


def test_files_leave_and_join_the_epoch_of_their_path(tmp_path: Path) -> None:
    barriers = Cutter(by_path(tmp_path))
    for date in ("2017-01-01", "2017-01-02", "2017-01-03"):
        land(tmp_path / f"date={date}/part.csv", "1,1\n", day(3))
        barriers.cut(day(int(date[-2:])))
    assert recut(barriers, 1, 3) == [cut for _, cut in barriers.cuts]  # nothing happened
    (tmp_path / "date=2017-01-02/part.csv").unlink()
    land(tmp_path / "date=2017-01-02/again.csv", "1,2\n", day(4))
    land(tmp_path / "date=2017-01-02/more.csv", "1,3\n", day(4))
    land(tmp_path / "date=2017-01-04/part.csv", "1,1\n", day(4))
    changed = land(tmp_path / "date=2017-01-03/part.csv", "1,1\n2,2\n", day(5))
    first, second, third = recut(barriers, 1, 3)
    assert first == barriers.cuts[0][1]
    assert second.items == ("date=2017-01-02/again.csv", "date=2017-01-02/more.csv")
    assert (second.start, second.end["time"]) == (barriers.cuts[1][1].start, day(2).isoformat())
    assert [(file["path"], file["size"]) for file in third.end["files"]] == [
        ("date=2017-01-03/part.csv", changed.stat().st_size)
    ]
    for cut in (first, second, third):
        barriers.source.check(cut)
    assert [cut.items for cut in recut(barriers, 2, 2)] == [second.items]
    assert recut(barriers, 3, 3) == [third]


def test_what_another_epoch_has_used_does_not_join(tmp_path: Path) -> None:
    barriers = Cutter(by_path(tmp_path))
    for number in (1, 2):
        land(tmp_path / f"date=2017-01-0{number}/part.csv", "1,1\n", day(3))
    barriers.cut(day(1))
    late = land(tmp_path / "date=2017-01-01/late.csv", "1,1\n", day(4))
    assert barriers.cut(day(2)).end["late"] == 1
    first, second = recut(barriers, 1, 2)
    assert first.items == ("date=2017-01-01/part.csv",)
    assert (second.items, second.end["late"]) == (("date=2017-01-01/late.csv", "date=2017-01-02/part.csv"), 1)
    late.unlink()
    (second,) = recut(barriers, 2, 2)
    assert (second.items, second.end["late"]) == (("date=2017-01-02/part.csv",), 0)
    land(tmp_path / "no-date.csv", "1,1\n", day(4))  # the next cut takes it, so that its check can name it
    assert [cut.items for cut in recut(barriers, 1, 2)] == [first.items, second.items]


def test_by_mtime_a_file_joins_the_epoch_in_which_it_was_written(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path))
    land(tmp_path / "a.csv", "1,1\n", day(0.5))
    barriers.cut(day(1))
    land(tmp_path / "b.csv", "1,1\n", day(1.5))
    barriers.cut(day(2))
    land(tmp_path / "a.csv", "1,1\n2,2\n", day(3))  # it stays where it was read first
    land(tmp_path / "copied.csv", "1,1\n", day(1.2))
    land(tmp_path / "new.csv", "1,1\n", day(3))
    assert [cut.items for cut in recut(barriers, 1, 2)] == [("a.csv",), ("b.csv", "copied.csv")]


def test_what_was_in_the_tables_before_stays_used_up(tmp_path: Path) -> None:
    barriers = Cutter(by_path(tmp_path))
    for number in (1, 2):
        land(tmp_path / f"date=2017-01-0{number}/part.csv", "1,1\n", day(3))
    cut = barriers.source.cut(replace(barriers.request(day(2)), already=day(1)))
    assert isinstance(cut, Cut)
    barriers.cuts.append((day(2), cut))
    land(tmp_path / "date=2017-01-02/more.csv", "1,1\n", day(3))
    (anew,) = recut(barriers, 1, 1)
    assert set(anew.items) == {*cut.items, "date=2017-01-02/more.csv"}
    assert [file["path"] for file in anew.end["files"]] == ["date=2017-01-02/more.csv", "date=2017-01-02/part.csv"]


# --- by event time --------------------------------------------------------------------------------


def test_records_that_are_held_over_go_along(tmp_path: Path) -> None:
    source = by_event_time(tmp_path)
    barriers = Cutter(source)
    land_events(tmp_path / "wrong.parquet", [day(1.2), day(2.2)])
    land_events(tmp_path / "watermark.parquet", [day(9)])
    for number in (1, 2, 3, 4):
        barriers.cut(day(number))
    assert [cut.items for _, cut in barriers.cuts] == [(), ("wrong.parquet",), (), ()]
    (tmp_path / "wrong.parquet").unlink()
    land_events(tmp_path / "right.parquet", [day(1.3), day(1.4), day(2.3), None])
    anew = recut(barriers, 2, 3)
    assert [cut.items for cut in anew] == [("right.parquet",), ()]
    assert anew[1].start is not None
    assert anew[1].start["held"] == anew[0].end["held"] != []
    read: Counter[str] = Counter()
    for number, cut in zip((2, 3, 4), [*anew, barriers.cuts[3][1]], strict=True):
        source.check(cut)
        read.update(records_read(source, cut, day(number - 1), day(number)))
    assert read == Counter([0, 1, 2, 3])


@pytest.mark.kills("held-over-stays")
def test_what_later_epochs_read_too_is_not_taken_from_under_them(tmp_path: Path) -> None:
    barriers = Cutter(by_event_time(tmp_path))
    land_events(tmp_path / "both.parquet", [day(0.2), day(1.2)])
    land_events(tmp_path / "watermark.parquet", [day(9)])
    for number in (1, 2, 3):
        barriers.cut(day(number))
    (tmp_path / "both.parquet").unlink()
    with pytest.raises(RevisionRefusedError, match=r"found that both.parquet, which has records of later ones too"):
        recut(barriers, 1, 1)
    assert [cut.items for cut in recut(barriers, 1, 2)] == [(), ()]
    land_events(tmp_path / "more.parquet", [day(1.3), day(4.5)])
    with pytest.raises(RevisionRefusedError, match=r"found that more.parquet"):
        recut(barriers, 1, 2)
    land_events(tmp_path / "more.parquet", [day(1.3)])
    assert [cut.items for cut in recut(barriers, 1, 2)] == [(), ("more.parquet",)]
