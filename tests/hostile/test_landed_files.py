"""One landed file, whatever it is, costs its own jobs at most: it is named, and no word of it is repeated."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources import bounded
from airflow_barrier.sources.bounded import DEEPEST_JSON, Limits, UnfitFileError
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.files.cuts import mismatches
from airflow_barrier.sources.files.listing import Folder
from tests.sources.landing import T0, Cutter, day, land, land_parquet
from tests.support.waiting import patience

SECRET = "hunter2"
DEEP = "[" * 100_000


def source_of(folder: Path, form: Any, **options: Any) -> Files:
    return Files(str(folder), format=form, schema="id BIGINT, at TIMESTAMP", **options)


def by_event_time(folder: Path, form: Any, **options: Any) -> Files:
    return source_of(folder, form, attribute_by="event_time", event_time="at", idle_timeout=timedelta(0), **options)


def refusal(source: Files, barriers: Cutter | None = None) -> str:
    """What the check says; the cut is made all the same, so that other jobs go on, and holds none of it either."""
    cut = (barriers or Cutter(source)).cut(day(1), now=day(99))
    assert len(cut.items) == 1
    assert SECRET not in json.dumps(cut.end)
    with pytest.raises(SourceDataError) as refused:
        source.check(cut)
    assert SECRET not in str(refused.value)
    return str(refused.value)


LONGEST_LINE = Limits().max_line_characters
LONG = "x" * (LONGEST_LINE + 1)
REFUSED = [
    ("json", "deep.json", DEEP, f"expected objects and lists up to {DEEPEST_JSON} levels deep, found more in line 1"),
    ("json", "deep.json", '{"id": ' + "[" * DEEPEST_JSON + "]" * DEEPEST_JSON + "}", "levels deep, found more in line"),
    ("json", "long.json", f'{{"id": "{LONG}"}}', f"expected lines of {LONGEST_LINE:,} characters at most, found that"),
    ("json", "long.json.gz", gzip.compress(LONG.encode()), "found that line 1 is longer"),
    ("csv", "long.csv.bz2", bz2.compress(LONG.encode()), "found that line 1 is longer"),
    ("json", "packed.json.xz", "", "expected data, found a file of 0 bytes"),
    ("json", "packed.json.zip", SECRET, "expected a text file as it is or compressed (.gz, .bz2, .zst), found one of"),
]


@pytest.mark.parametrize("attributed", [source_of, by_event_time])
@pytest.mark.parametrize(("form", "name", "content", "said"), REFUSED)
def test_a_file_beyond_a_limit_is_named(
    tmp_path: Path, attributed: Any, form: str, name: str, content: str | bytes, said: str
) -> None:
    bad = land(tmp_path / name, content)
    refused = refusal(attributed(tmp_path, form))
    assert f"file://{bad}: " in refused
    if attributed is source_of or form == "json":  # pyarrow has words of its own for long lines of CSV
        assert said in refused


QUOTED = [
    ("csv", {"header": True}, f"AKIA-{SECRET},{SECRET},3\n", "expected header ['id', 'at'], found ['?', '?', '?']"),
    ("csv", {}, f"{SECRET},{SECRET},3\n", "expected 2 values a line, found 3 in the first"),
    ("csv", {}, f"1,2017-01-01\n{SECRET},2,3\n", "Row #2: Expected 2 columns, got 3"),
    ("csv", {}, f"1,2017-01-01\n2,{SECRET}\n", "expected at as ISO 8601 text, found another in record 2"),
    ("json", {}, f'{{"{SECRET}": 1}}\n', "expected only ['id', 'at'], found 1 of other names in line 1"),
    ("json", {}, f'{{"id": 1}}\n\n{{"at": ["{SECRET}"]}}\n', "expected at as ISO 8601 text, found list in line 3"),
    ("json", {}, f'{{"id": 1}}\n{{"at": "{SECRET}"}}\n', "expected at as ISO 8601 text, found another in record 2"),
    ("json", {}, f'{{"id": 1}}\n{{"at": {SECRET}}}\n', "found JSONDecodeError: Expecting value at character 8 of"),
    ("json", {}, f'{{"id": 1}}\n"{SECRET}"\n', "expected an object on every line, found str in line 2"),
]


@pytest.mark.parametrize(("form", "options", "content", "said"), QUOTED)
def test_nothing_of_a_file_is_repeated(tmp_path: Path, form: str, options: Any, content: str, said: str) -> None:
    land(tmp_path / f"a.{form}", content)
    assert said in refusal(by_event_time(tmp_path, form, options=options))


def test_of_a_parquet_file_its_columns_are_named_as_far_as_that_helps(tmp_path: Path) -> None:
    columns = {f"{number:03}" + "x" * 500: pa.array([1]) for number in range(500)}
    land_parquet(tmp_path / "wide.parquet", {"id": pa.array([1]), "at": pa.array([day(0.5)]), **columns})
    refused = refusal(source_of(tmp_path, "parquet"))
    assert "found column 000xxx" in refused
    assert "x… and 480 more, which is not declared" in refused
    assert len(refused) < 3_000


def test_a_time_in_parquet_that_cannot_be_kept_is_not_repeated(tmp_path: Path) -> None:
    at = pa.array([1483228800_000000001], pa.timestamp("ns"))
    land_parquet(tmp_path / "a.parquet", {"id": pa.array([1]), "at": at}, write_statistics=False)
    assert "1483228800" not in refusal(by_event_time(tmp_path, "parquet"))


def test_what_breaks_only_when_late_records_are_counted_is_named_too(tmp_path: Path) -> None:
    """The first look takes a Parquet footer's word for it."""
    source = by_event_time(tmp_path, "parquet")
    barriers = Cutter(source)
    barriers.cut(day(0.4), now=day(99))
    times = [day(number / 1000) for number in range(1000)]
    late = land_parquet(tmp_path / "late.parquet", {"id": list(range(1000)), "at": times})
    content = bytearray(late.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:footer] = b"\xff" * (footer - 4)
    land(late, bytes(content))
    assert f"file://{late}: " in refusal(source, barriers)


def test_a_compressed_file_is_unpacked_up_to_a_limit(tmp_path: Path) -> None:
    content = b"0123456789\n" * 100_000
    fs = fsspec.filesystem("file")

    def pieces(path: Path, most: int) -> int:
        with bounded.unpacked(fs, str(path), most) as unpacked:
            return sum(len(piece) for piece in iter(lambda: unpacked.read(4096), b""))

    for packed in (
        land(tmp_path / "a.gz", gzip.compress(content)),
        land(tmp_path / "a.bz2", bz2.compress(content)),
    ):
        assert pieces(packed, len(content)) == len(content)
        with pytest.raises(UnfitFileError, match=r"unpacks to 1,099,999 bytes at most, found more"):
            pieces(packed, len(content) - 1)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_one_huge_line_takes_no_memory(tmp_path: Path, form: str) -> None:
    """A line of 600 MB in 600 kB: more than the process may have."""
    packed = gzip.compress(b"x" * 10_000_000)
    land(tmp_path / f"bomb.{form}.gz", packed * 60)
    script = f"""
        import resource
        from tests.hostile.test_landed_files import *
        source = by_event_time(Path({str(tmp_path)!r}), {form!r})
        import pyarrow.compute, pyarrow.csv
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "bomb." in refusal(source)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=patience(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150_000, "kilobytes"


# --- what is no plain file ------------------------------------------------------------------------


@pytest.mark.kills("no-odd-files")
@pytest.mark.parametrize("attributed", [source_of, by_event_time])
def test_a_link_is_no_delivery_and_no_empty_epoch(tmp_path: Path, attributed: Any) -> None:
    """As a mounted volume has them: the names that are seen are links into a hidden folder."""
    folder = tmp_path / "in"
    behind = land(folder / "..data" / "a.json", '{"id": 1, "at": "2017-01-01"}\n')
    link = folder / "a.json"
    link.symlink_to(behind)
    os.utime(link, (T0.timestamp(), T0.timestamp()), follow_symlinks=False)
    source = attributed(folder, "json")
    barriers = Cutter(source)
    assert f"file://{link}: expected a file, found a link" in refusal(source, barriers)
    link.unlink()
    land(link, '{"id": 1, "at": "2017-01-01"}\n')
    source.check(source.repin(barriers.cuts[0][1]))


def test_links_to_folders_to_nothing_and_in_circles_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, target in (("folder", tmp_path), ("nothing", tmp_path / "none"), ("circle", folder)):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    source = source_of(folder, "json")
    cut = Cutter(source).cut(day(99_999))
    assert set(cut.items) == {"folder", "nothing", "circle", "pipe"}
    with pytest.raises(SourceDataError) as refused:
        source.check(cut)
    assert f"file://{folder}/pipe: expected a file, found neither a file nor a folder" in str(refused.value)
    for name in ("folder", "circle"):
        assert f"file://{folder}/{name}: expected a file, found a link" in str(refused.value)
    assert f"file://{folder}/nothing: expected it as it was cut (0 bytes of " in str(refused.value)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    land(tmp_path / "v2" / "a.json", '{"id": 1}\n')
    (tmp_path / "current").symlink_to(tmp_path / "v2")
    for path in ("current", "current/a.json"):
        source = source_of(tmp_path / path, "json", name="landing")
        cut = Cutter(source).cut(day(1))
        assert len(cut.items) == 1
        source.check(cut)


@pytest.fixture
def store() -> Iterator[Any]:
    """An object store: its keys are text, and `//` is nothing special in them."""
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/in", recursive=True)


def test_two_keys_of_an_object_store_are_two_files(store: Any) -> None:
    for key in ("/in/shop/x.json", "/in/shop//x.json", "/in/shop/a//x.json"):
        store.pipe(key, b'{"id": 1}')
    folder = Folder("memory://in/shop")
    files = folder.files()
    assert [file.path for file in files] == ["/x.json", "a//x.json", "x.json"], "no two of one name"
    assert [folder.stat(file.path) for file in files] == files
    wrong = mismatches(folder, files, source_of(Path("/in"), "json")._layout)
    assert set(wrong) == {"/x.json", "a//x.json"}
    assert "expected a path that Hadoop can read, found one with an empty part" in wrong["/x.json"]


@pytest.mark.kills("files-of-a-cut")
def test_a_cut_has_no_more_files_than_can_be_kept(tmp_path: Path) -> None:
    """What is in the tables already may be more: it is used up and not read."""
    for number in range(4):
        land(tmp_path / f"{number}.json", '{"id": 1}\n')
    source = source_of(tmp_path, "json").within(Limits(max_epoch_files=3))
    with pytest.raises(SourceDataError, match=r"expected 3 new files in .* at most, found 4, the first of which is 0"):
        Cutter(source).cut(day(1))
    request = dataclasses.replace(Cutter(source).request(day(1)), already=day(0.5))
    used_up = source.cut(request)
    assert isinstance(used_up, Cut)
    assert (len(used_up.items), used_up.end["files"]) == (4, [])
