"""Files are attributed to epochs by their modification time or by a date in their path."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.sources import source_of
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.files.listing import PathDate
from tests.sources.landing import DAY, Cutter, day, land, touch

SCHEMA = "userId BIGINT, amount INT"


def csv_files(folder: Path, **settings: object) -> Files:
    return Files(str(folder), format="csv", schema=SCHEMA, **settings)  # type: ignore[arg-type]


def test_by_mtime_an_epoch_takes_what_was_written_up_to_its_timestamp(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path))
    land(tmp_path / "a.csv", "1,1\n", day(0.5))
    land(tmp_path / "deep/b.csv", "1,1\n", day(1))
    land(tmp_path / "c.csv", "1,1\n", day(1) + timedelta(microseconds=1))
    assert barriers.cut(day(1)).items == ("a.csv", "deep/b.csv")
    assert barriers.cut(day(2)).items == ("c.csv",)
    assert barriers.cut(day(3)).items == ()


@pytest.mark.kills("used-files-are-left-out")
def test_a_late_file_goes_into_the_current_epoch_and_is_counted(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path))
    land(tmp_path / "a.csv", "1,1\n", day(0.5))
    assert barriers.cut(day(1)).end["late"] == 0
    land(tmp_path / "copied.csv", "1,1\n", day(0.7))
    land(tmp_path / "b.csv", "1,1\n", day(1.5))
    second = barriers.cut(day(2))
    assert (second.items, second.end["late"]) == (("b.csv", "copied.csv"), 1)


@pytest.mark.parametrize("by", ["mtime", "event_time"])
def test_a_file_that_was_overwritten_is_told_once(tmp_path: Path, by: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"attribute_by": by, **({"event_time": "at", "idle_timeout": DAY * 0} if by == "event_time" else {})}
    source = Files(str(tmp_path), name="in", format="csv", schema="id INT, at TIMESTAMP", **settings)  # type: ignore[arg-type]
    barriers = Cutter(source)
    for name in ("a", "b", "c"):
        land(tmp_path / name, "1,2017-01-01\n", day(0.5))
    barriers.cut(day(1), now=day(1))
    land(tmp_path / "a", "1,2017-01-01\n2,2017-01-01\n", day(1.5))
    second = barriers.cut(day(2), now=day(2))
    assert second.items == ()
    told = (
        f"1 files are not as they were when an epoch was cut of them, the first of which is {(tmp_path / 'a').as_uri()}"
        ". No epoch reads them again: airflow-barrier revision plan shopping --recut in with the days that they belong "
        "to takes them as they are now, and --file replaces a day's rows"
    )
    assert caplog.text.count(f"source in: {told}") == 1
    lag = source.lag(second, day(2))
    assert lag is not None, "status says it"
    assert (lag.behind, lag.note) == (0, told)
    third = barriers.cut(day(3), now=day(3))
    assert ("overwritten" in third.end, source.lag(third, day(3))) == (False, None)
    land(tmp_path / "c", "", day(3.5))  # truncated, long after
    assert "/c. No epoch" in barriers.cut(day(4), now=day(4)).end["overwritten"]
    (tmp_path / "b").unlink()  # who moves away what was read is told nothing
    assert "overwritten" not in barriers.cut(day(5), now=day(5)).end


def test_the_files_of_an_aborted_barrier_join_the_next(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path))
    land(tmp_path / "a.csv", "1,1\n", day(0.5))
    barriers.cut(day(1))
    land(tmp_path / "b.csv", "1,1\n", day(1.5))
    barriers.cut(day(2))
    barriers.abort()
    land(tmp_path / "c.csv", "1,1\n", day(2.5))
    joined = barriers.cut(day(3))
    assert joined.items == ("b.csv", "c.csv")
    assert joined.start == {"time": day(1).isoformat()}
    assert joined.end["late"] == 0


def test_by_path_a_file_belongs_to_the_barrier_at_the_end_of_its_day(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path, attribute_by="path", path_date="date=%Y-%m-%d"))
    for date in ("2017-01-01", "2017-01-02", "2017-01-03"):
        land(tmp_path / f"date={date}/part.csv", "1,1\n", day(400))  # history that landed yesterday
    assert barriers.cut(day(0.5)).items == ()
    assert barriers.cut(day(1)).items == ("date=2017-01-01/part.csv",)
    assert barriers.cut(day(2)).items == ("date=2017-01-02/part.csv",)
    land(tmp_path / "date=2017-01-01/late.csv", "1,1\n", day(401))
    third = barriers.cut(day(3))
    assert third.items == ("date=2017-01-01/late.csv", "date=2017-01-03/part.csv")
    assert third.end["late"] == 1


def test_a_cut_holds_its_own_files_only_and_is_json(tmp_path: Path) -> None:
    barriers = Cutter(csv_files(tmp_path))
    sizes = []
    for number in range(1, 30):
        land(tmp_path / f"{number:03}.csv", "1,1\n", day(number - 0.5))
        cut = barriers.cut(day(number))
        sizes.append(len(json.dumps([cut.start, cut.end, cut.items])))
    assert set(sizes[1:]) == {sizes[1]}
    assert json.loads(json.dumps(cut.end))["files"] == [
        {"path": "029.csv", "size": 4, "modified": day(28.5).isoformat()}
    ]


def test_hidden_and_unfinished_files_are_left_out(tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".a.csv.crc", "_temporary/0/b.csv", "x/.staging/c.csv", "good.csv"):
        land(tmp_path / name, "1,1\n")
    assert Cutter(csv_files(tmp_path)).cut(day(1)).items == ("good.csv",)


@pytest.mark.kills("folder-is-there")
def test_a_folder_that_is_not_there_is_not_an_empty_epoch(tmp_path: Path) -> None:
    with pytest.raises(SourceDataError, match="expected a folder, found nothing; make the folder"):
        Cutter(csv_files(tmp_path / "unmounted")).cut(day(1))
    assert Cutter(csv_files(tmp_path)).cut(day(1)).items == ()


def test_a_source_comes_back_from_its_declaration(tmp_path: Path) -> None:
    source = Files(
        "s3://in/shopping/",
        format="json",
        schema="at TIMESTAMP",
        attribute_by="event_time",
        event_time="at",
        allowed_lateness=timedelta(minutes=5),
        idle_timeout=timedelta(hours=2),
    )
    assert source.name == "shopping"
    declared = source.declare()
    assert source_of(decode(type(declared), json.loads(json.dumps(encode(declared))))) == source


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "landing"}, "expected an absolute path or a URL"),
        ({"format": "avro"}, "expected format 'parquet', 'csv' or 'json', found 'avro'"),
        ({"schema": ""}, "expected schema='userId BIGINT, …' with all columns"),
        ({"schema": "userId BIGNIT"}, "expected a Spark type, found 'BIGNIT' after 'userId'"),
        ({"attribute_by": "name"}, "expected attribute_by 'mtime', 'path' or 'event_time', found 'name'"),
        ({"attribute_by": "path"}, "path_date and attribute_by='path' belong together"),
        ({"attribute_by": "path", "path_date": "%m-%d"}, "expected text with %Y"),
        ({"event_time": "userId"}, "event_time and attribute_by='event_time' belong together"),
        (
            {"attribute_by": "event_time", "event_time": "userId"},
            "expected event_time 'userId' to be a TIMESTAMP or TIMESTAMP_NTZ of the schema, found BIGINT",
        ),
        ({"idle_timeout": timedelta(hours=1)}, "are for attribute_by='event_time' only"),
        ({"options": {"header": True}}, "expected options only for CSV"),
        ({"format": "csv", "options": {"sep": ";"}}, r"found \['sep'\]"),
        ({"format": "csv", "options": {"delimiter": "||"}}, "option delimiter: expected one character"),
        ({"format": "csv", "options": {"delimiter": '"'}}, "another character than quote and escape"),
        ({"format": "csv", "options": {"header": "maybe"}}, "option header: expected True or False, found 'maybe'"),
        ({"format": "csv", "options": {"nullValue": None}}, "option nullValue: expected text, found None"),
        ({"format": "csv", "options": {"decimal_separator": ";"}}, "decimal_separator: expected '.' or ',', found ';'"),
        ({"format": "csv", "schema": "a ARRAY<INT>"}, "CSV has no nested columns"),
    ],
)
def test_settings_that_cannot_work_are_refused_while_the_dag_is_parsed(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Files(**{"path": "/landing", "schema": SCHEMA, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "path", "end"),
    [
        ("date=%Y-%m-%d", "date=2016-12-31/x.csv", day(0)),
        ("%Y/%m/%d/%H", "shop/2017/01/01/23/x.csv", day(1)),
        ("%Y%m", "x-201612.csv", day(0)),
        ("y=%Y", "y=2016/x.csv", day(0)),
        ("%Y-%j", "2016-366.csv", day(0)),
        ("%Y%m%d", "9920161231.csv", None),
        ("%Y%m%d", "20171301.csv", None),
        ("date=%Y-%m-%d", "x.csv", None),
    ],
)
def test_a_path_names_the_end_of_a_period(pattern: str, path: str, end: object) -> None:
    assert PathDate.of(pattern).end_of(path) == end


def test_a_file_without_a_date_is_not_lost(tmp_path: Path) -> None:
    source = csv_files(tmp_path, attribute_by="path", path_date="date=%Y-%m-%d")
    land(tmp_path / "stray.csv", "1,1\n")
    cut = Cutter(source).cut(day(1))
    assert cut.items == ("stray.csv",)
    with pytest.raises(SourceDataError, match=r"stray\.csv: expected a date as in 'date=%Y-%m-%d' in the path"):
        source.check(cut)


@pytest.mark.kills("files-as-they-were-cut")
def test_a_file_changed_or_gone_after_the_cut_is_named(tmp_path: Path) -> None:
    source = csv_files(tmp_path)
    changed = land(tmp_path / "changed.csv", "1,1\n", day(0.5))
    land(tmp_path / "gone.csv", "1,1\n", day(0.5))
    cut = Cutter(source).cut(day(1))
    source.check(cut)
    land(changed, "1,1\n2,2\n", day(0.6))
    (tmp_path / "gone.csv").unlink()
    with pytest.raises(SourceDataError) as refused:
        source.check(cut)
    message = str(refused.value)
    assert f"file://{changed}: expected it as it was cut (4 bytes of {day(0.5).isoformat()}), found 8 bytes" in message
    assert f"file://{tmp_path}/gone.csv: expected it as it was cut" in message
    assert "found no such file" in message
    assert "the barrier to be aborted" in message

    land(changed, "1,1\n", day(0.5))
    land(tmp_path / "gone.csv", "1,1\n", day(0.5))
    source.check(cut)


def test_a_cut_that_nobody_has_read_is_pinned_anew_after_files_were_mended(tmp_path: Path) -> None:
    source = csv_files(tmp_path)
    land(tmp_path / "broken.csv", "1\n", day(0.5))
    land(tmp_path / "stray.csv", "", day(0.5))
    land(tmp_path / "good.csv", "1,1\n", day(0.5))
    cut = Cutter(source).cut(day(1))
    with pytest.raises(
        SourceDataError, match=r"broken\.csv: expected 2 values a line, found 1 .*stray\.csv: .*0 bytes"
    ):
        source.check(cut)
    land(tmp_path / "broken.csv", "1,1\n", day(1.5))
    (tmp_path / "stray.csv").unlink()
    mended = source.repin(cut)
    source.check(mended)
    assert mended.items == ("broken.csv", "good.csv")
    assert (mended.start, mended.end["time"]) == (cut.start, cut.end["time"])
    touch(tmp_path / "broken.csv", day(2))
    with pytest.raises(SourceDataError, match=r"broken\.csv"):
        source.check(mended)
