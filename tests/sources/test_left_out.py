"""What of a landing folder belongs to no epoch: what Spark itself would not read, and what the author says."""

from __future__ import annotations

import json
import logging
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.files.listing import Folder
from tests.sources.landing import Cutter, day, land
from tests.sources.test_files_in_spark import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEGINNINGS = ("", "_", ".", "_metadata", "_common_metadata", "x_", "__", "._", "_.", "metadata")
MIDDLES = ("a", "d=1", "=", "$folder$")
ENDS = ("", ".csv", "._COPYING_", ".crc", ".tmp")
ODD_NAMES = [
    *map("".join, product(BEGINNINGS, MIDDLES, ENDS)),
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_temporary",
]


def csv_files(folder: Path, **settings: object) -> Files:
    return Files(str(folder), format="csv", schema="id INT", **settings)  # type: ignore[arg-type]


def test_an_epoch_has_the_files_that_spark_would_read_of_the_folder(session: SparkSession, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        land(tmp_path / "files" / name, "1\n")
        land(tmp_path / "folders" / name / "b.csv", "1\n")
    land(tmp_path / "deep" / "_date=2017-01-01" / "_x" / "b.csv", "1\n")
    reader = session.read.schema("id INT").options(recursiveFileLookup="true")
    urls = {row.file_path for row in reader.csv(str(tmp_path)).select("_metadata.file_path").collect()}
    by_spark = {unquote(url).split(f"{tmp_path}/")[1] for url in urls}
    assert {file.path for file in Folder(str(tmp_path)).files()} == by_spark
    assert len(by_spark) > len(ODD_NAMES) / 2
    source = csv_files(tmp_path)
    cut = Cutter(source).cut(day(1))
    assert load(session, source, cut, None, day(1)).count() == len(by_spark), "each by its name, too"


def test_what_is_left_out_is_counted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("_temporary/0/b.csv", "a.csv", "a.csv.ok", "_SUCCESS", "x/a.csv.MD5", "x_$folder$"):
        land(tmp_path / name, "1\n")
    with caplog.at_level(logging.INFO):
        cut = Cutter(csv_files(tmp_path, name="landing", ignore=["*.ok", "*_$folder$"])).cut(day(1))
    assert cut.items == ("a.csv", "x/a.csv.MD5"), "upper and lower case differ"
    assert [record.getMessage() for record in caplog.records] == [
        f"source landing: 4 files under {tmp_path} are left out of every epoch, the first of which is _SUCCESS: Spark "
        "takes names that begin with '_' or '.', or end with '._COPYING_', for no data"
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        Cutter(csv_files(tmp_path / "x", ignore=("*.MD5",))).cut(day(1))
        Cutter(csv_files(tmp_path / "x")).cut(day(1))
    (only,) = caplog.records
    assert only.getMessage().endswith("the first of which is a.csv.MD5: ignore has '*.MD5'")


def test_what_is_no_longer_ignored_is_late(tmp_path: Path) -> None:
    land(tmp_path / "a.txt", "1\n")
    barriers = Cutter(csv_files(tmp_path, ignore=("*.txt",)))
    assert barriers.cut(day(1)).items == ()
    barriers.source = csv_files(tmp_path)
    cut = barriers.cut(day(2))
    assert (cut.items, cut.end["late"]) == (("a.txt",), 1)


def test_what_to_ignore_is_declared_and_older_declarations_are_as_they_were(tmp_path: Path) -> None:
    source = csv_files(tmp_path, ignore=["*.ok"])
    declared = decode(ExternalSource, json.loads(json.dumps(encode(source.declare()))))
    assert source_of(declared) == source
    assert "ignore" not in csv_files(tmp_path).declare().options
    assert source_of(csv_files(tmp_path).declare()) == csv_files(tmp_path)
    for ignore in ("*.ok", ["x/*.ok"], [""], ["*"], [7]):
        with pytest.raises(ConfigurationError, match="expected ignore to be patterns of file names"):
            csv_files(tmp_path, ignore=ignore)


@pytest.mark.kills("spark-reads-the-file")
def test_a_file_of_its_own_that_spark_would_pass_over(tmp_path: Path) -> None:
    file = land(tmp_path / "_shopping.csv", "1\n")
    with pytest.raises(SourceDataError, match="expected a file name that Spark reads, found one"):
        Cutter(csv_files(file)).cut(day(1))


def test_a_cut_of_before_that_has_such_a_file_is_refused(tmp_path: Path) -> None:
    land(tmp_path / "a.csv._COPYING_", "1\n")
    land(tmp_path / "a.csv", "1\n")
    source = csv_files(tmp_path)
    cut = Cutter(source).cut(day(1))
    (entry,) = cut.end["files"]
    before = Cut(cut.source, None, {**cut.end, "files": [{**entry, "path": "a.csv._COPYING_"}]}, ("a.csv._COPYING_",))
    with pytest.raises(SourceDataError, match="_COPYING_: expected a file name that Spark reads, found one that Spark"):
        source.check(before)
