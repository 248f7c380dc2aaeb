"""What metadata tell of a table's changes, and where they do not: then Spark is asked, which is right in every case.

That what is told is what Spark's queries tell is checked in `tests/spark/test_changes_random.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from airflow_barrier.protocol.snapshots import ChangedFiles, TableDelta
from airflow_barrier.tables import _manifests
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._manifests import table_delta
from tests.support.equality_deletes import commit_deletes

FILE_PATH = 2147483546
NO_EQUALITY = {"total-equality-deletes": "0", "total-delete-files": "1"}


class Written:
    """A table of one column, and what a worker is told of it. Delete files are only named: nobody reads their rows."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        catalog.create_namespace("shop")
        self.table: Table = catalog.create_table(
            "shop.a", pa.schema([("n", pa.int64())]), properties={"format-version": "2"}
        )

    def append(self, n: int) -> tuple[int, str]:
        """The new snapshot, and its file."""
        self.table.append(pa.table({"n": [n, n + 1]}))
        return self.head(), self.files()[-1]

    def head(self) -> int:
        snapshot = self.table.refresh().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def files(self) -> list[str]:
        """The files of the newest snapshot last."""
        tasks = self.table.refresh().inspect.entries().sort_by("sequence_number").column("data_file").to_pylist()
        return [each["file_path"] for each in tasks]

    def delete(self, least: str, greatest: str) -> int:
        """Positions of the files from one to another one."""
        bounds = {"lower_bounds": {FILE_PATH: least.encode()}, "upper_bounds": {FILE_PATH: greatest.encode()}}
        deletes = _deletes(DataFileContent.POSITION_DELETES, **bounds)
        return commit_deletes(self.catalog, self.table.refresh(), deletes, NO_EQUALITY)

    def delete_values(self, **said: str) -> int:
        deletes = _deletes(DataFileContent.EQUALITY_DELETES, equality_ids=[1])
        totals = {"total-equality-deletes": "1", "total-delete-files": "1", **said}
        return commit_deletes(self.catalog, self.table.refresh(), deletes, totals)

    def told(self, start: int, end: int) -> TableDelta | None:
        documents = Documents({})
        document = documents.read(self.table.refresh().metadata_location)
        return table_delta("shop.a", document, start, end, documents)

    def files_told(self, start: int, end: int) -> ChangedFiles:
        told = self.told(start, end)
        assert told is not None
        (files,) = told.stretches
        return files


def _deletes(content: DataFileContent, **settings: object) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path="deletes.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        column_sizes={},
        **settings,
    )


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with closing(SqlCatalog("lake", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())) as catalog:
        yield Written(catalog)


def test_files_that_came(written: Written) -> None:
    start, _ = written.append(1)
    _, one = written.append(3)
    end, other = written.append(5)
    files = written.files_told(start, end)
    assert {(file.file_path, file.weight) for file in files.moved} == {(one, 1), (other, 1)}
    assert files.kept == ()
    assert not files.added_have_deletes


def test_nothing_between_a_snapshot_and_itself(written: Written) -> None:
    at, _ = written.append(1)
    told = written.told(at, at)
    assert told is not None
    assert told.stretches == ()
    assert [field["name"] for field in told.document["schemas"][0]["fields"]] == ["n"]


def test_deletes_of_a_file_of_before_keep_it(written: Written) -> None:
    start, old = written.append(1)
    files = written.files_told(start, written.delete(old, old))
    assert files.moved == ()
    assert [file.file_path for file in files.kept] == [old]


def test_deletes_of_a_file_that_came_are_told(written: Written) -> None:
    start, _ = written.append(1)
    _, new = written.append(3)
    files = written.files_told(start, written.delete(new, new))
    assert [file.file_path for file in files.moved] == [new]
    assert files.kept == ()
    assert files.added_have_deletes


def test_deletes_of_a_file_that_is_gone_are_about_nothing(written: Written) -> None:
    start, _ = written.append(1)
    files = written.files_told(start, written.delete("gone.parquet", "gone.parquet"))
    assert (files.moved, files.kept) == ((), ())


@pytest.mark.kills("told-deletes-name-a-file")
def test_deletes_of_several_files_are_not_told(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    start, one = written.append(1)
    caplog.set_level(logging.INFO)
    assert written.told(start, written.delete(one, f"{one}2")) is None
    assert "a delete file is about several data files" in caplog.text


@pytest.mark.kills("told-deletes-name-a-file")
def test_equality_deletes_are_not_told_whatever_the_summary_says(written: Written) -> None:
    start, _ = written.append(1)
    assert written.told(start, written.delete_values(**{"total-equality-deletes": "0"})) is None


@pytest.mark.kills("no-older-equality-deletes")
def test_nor_is_what_older_equality_deletes_may_be_about(written: Written) -> None:
    written.append(1)
    start = written.delete_values()
    _, new = written.append(3)
    assert written.told(start, written.delete(new, new)) is None


def test_no_way_between_two_snapshots(written: Written) -> None:
    (one, _), (other, _) = written.append(1), written.append(3)
    assert written.told(other, one) is None
    assert written.told(one, 4711) is None


@pytest.mark.parametrize("most", ["_MOST_FILES", "_MOST_BYTES"])
def test_what_is_too_much_for_a_spec_or_a_worker(
    written: Written, most: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (start, _), (end, _) = written.append(1), written.append(3)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(_manifests, most, 0)
    assert written.told(start, end) is None
    assert "the driver asks Spark what changed" in caplog.text


def test_manifests_that_cannot_be_read_fail_no_epoch(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    (start, _), (end, _) = written.append(1), written.append(3)
    snapshot = written.table.refresh().snapshot_by_id(end)
    assert snapshot is not None
    (manifest, *_) = snapshot.manifests(written.table.io)
    Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"no Avro")
    assert written.told(start, end) is None
    assert "the driver asks Spark instead" in caplog.text


def test_the_bytes_are_those_of_the_files_that_are_read(written: Written) -> None:
    start, old = written.append(1)
    _, new = written.append(3)
    told = written.told(start, written.delete(old, old))
    assert told is not None
    assert told.bytes == sum(Path(file.removeprefix("file://")).stat().st_size for file in (old, new))
