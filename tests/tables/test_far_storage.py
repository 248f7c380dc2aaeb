"""Storage that is far: documents are kept by their locations, threads wait together, and a fork has its own of both."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_barrier.protocol.errors import MissingTableError
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._here import AtOnce, Kept
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.slow_store import slow_store
from tests.support.waiting import patience
from tests.tables.far import Far
from tests.tables.lake import path_of
from tests.tables.written import TABLE, Written

ONCE = "00001-6f21249a-a07c-4a4f-b54d-bbe221112c13.metadata.json"


@pytest.fixture
def documents() -> Iterator[Documents]:
    documents = Documents({"py-io-impl": f"{Far.__module__}.{Far.__name__}"})
    yield documents
    documents.close()


@pytest.mark.kills("kept-is-of-its-location")
def test_a_document_is_kept_only_where_no_other_one_will_ever_be(documents: Documents, tmp_path: Path) -> None:
    """Tables of a file system's own catalog have documents `v1.metadata.json`: of the next table of the name too."""
    for name, found in ((ONCE, 1), ("v1.metadata.json", 2)):
        location = (tmp_path / name).as_uri()
        documents.write_bytes(location, b'{"n": 1}')
        assert documents.read(location) == {"n": 1}
        documents.write_bytes(location, b'{"n": 2}')
        assert documents.read(location) == {"n": found}


def test_each_location_has_its_own_document(documents: Documents, tmp_path: Path) -> None:
    locations = [(tmp_path / folder / ONCE).as_uri() for folder in ("a", "b")]
    for number, location in enumerate(locations):
        documents.write_bytes(location, b'{"n": %d}' % number)
    for _ in range(2):
        assert [documents.read(location) for location in locations] == [{"n": 0}, {"n": 1}]


def test_who_changes_a_document_changes_its_own(documents: Documents, tmp_path: Path) -> None:
    written = documents.write({"refs": {}}, (tmp_path / ONCE).as_uri())
    documents.read(written)["refs"]["main"] = 1
    assert documents.read(written) == {"refs": {}}


def test_what_is_deleted_is_not_kept(documents: Documents, tmp_path: Path) -> None:
    written = documents.write({"refs": {}}, (tmp_path / ONCE).as_uri())
    documents.delete([written])
    with pytest.raises(FileNotFoundError):
        documents.read(written)


def test_a_lost_document_is_looked_for_before_a_table_is_led_back(tmp_path: Path) -> None:
    far = {"py-io-impl": f"{Far.__module__}.{Far.__name__}"}
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", tmp_path.as_uri(), properties=far) as tables:
        first = Written(tables).tables.load(TABLE).metadata_location
        tables.take_in([TABLE])
        lost = tables.metadata_locations([TABLE])[TABLE]
        path_of(lost).unlink()
        assert tables.wap_enabled([TABLE]) == {TABLE: True}, "it is kept"
        assert tables.reattach({TABLE: (first, None)})
        assert tables.metadata_locations([TABLE]) == {TABLE: first}


def test_a_pointer_to_no_document_is_a_missing_table(tmp_path: Path) -> None:
    far = {"py-io-impl": f"{Far.__module__}.{Far.__name__}"}
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", tmp_path.as_uri(), properties=far) as tables:
        location = Written(tables).tables.load(TABLE).metadata_location
        path_of(location).unlink()
        with pytest.raises(MissingTableError, match="expected its metadata document at"):
            tables.mains([TABLE])


def test_no_more_is_kept_than_asked_for_and_that_used_last() -> None:
    kept = Kept(10)
    first, second, third = (f"{folder}/{ONCE}" for folder in "abc")
    kept.keep(first, b"12345")
    kept.keep(second, b"1234")
    assert kept.get(first) == b"12345"
    kept.keep(third, b"12345")
    assert [kept.get(each) for each in (first, second, third)] == [b"12345", None, b"12345"]
    kept.keep(third, b"12345678901")
    assert [kept.get(each) for each in (first, third)] == [None, None]
    kept.keep(first, b"1234567890")
    kept.keep(first, b"123456789")
    kept.forget(first)
    kept.keep(second, b"1234567890")
    assert (kept.get(first), kept.get(second)) == (None, b"1234567890")


def test_the_first_error_comes_once_all_that_began_has_ended() -> None:
    at_once, going, ended = AtOnce(2), threading.Event(), []

    def work(number: int) -> None:
        if number == 0:
            going.wait(patience())
            raise ValueError(number)
        going.set()
        ended.append(number)
        if number > 1:
            raise TypeError(number)

    with pytest.raises(ValueError, match="0"):
        at_once(work, list(range(100)))
    assert at_once(str, [1, 2, 3]) == ["1", "2", "3"], "the threads go on"
    assert len(ended) == len(set(ended))
    at_once.close()
    assert at_once(str, [4, 5]) == ["4", "5"], "whoever goes on gets new ones"
    at_once.close()


def test_a_fork_has_threads_and_connections_of_its_own(documents: Documents, tmp_path: Path) -> None:
    locations = {str(n): documents.write({"n": n}, (tmp_path / ONCE).as_uri()) for n in range(30)}

    def look(table: str, location: str) -> int:
        return int(documents.read(location)["n"])

    expected = {str(n): n for n in range(30)}
    assert documents.of_each(look, locations) == expected
    io = documents.io(locations["1"])
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        answers.put((documents.of_each(look, locations), documents.io(locations["1"]) is io))

    process = context.Process(target=child)
    process.start()
    process.join(patience())
    assert not process.is_alive()
    assert answers.get() == (expected, False)
    assert documents.io(locations["1"]) is io


def test_a_fork_has_threads_of_its_own() -> None:
    at_once = AtOnce(4)
    assert at_once(str, range(9)) == [str(n) for n in range(9)]
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=lambda: answers.put(at_once(str, range(9))))
    process.start()
    process.join(patience())
    assert not process.is_alive()
    assert answers.get() == at_once(str, range(9))
    at_once.close()


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, {"PUT": 1}),
        # a copy of the file system would lose it
        (
            {"s3.retry-strategy-impl": "pyarrow.fs.AwsDefaultS3RetryStrategy"},
            {"POST uploads": 1, "PUT uploadId": 1, "POST uploadId": 1},
        ),
    ],
    ids=["in-one-request", "with-a-strategy-of-retries"],
)
def test_a_small_object_is_written_in_one_request(more: dict[str, str], asked: dict[str, int]) -> None:
    large = b"large" * 3_000_000
    with slow_store(0) as store, closing(Documents({**store.properties, **more})) as documents:
        documents.write_bytes("s3://lake/a", b"small")
        assert store.counts == asked
        documents.write_bytes("s3://lake/b", large)
        assert [documents.read_bytes(f"s3://lake/{name}") for name in "ab"] == [b"small", large]


def test_an_edit_leaves_what_is_kept_as_it_is(tmp_path: Path) -> None:
    far = {"py-io-impl": f"{Far.__module__}.{Far.__name__}"}
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", tmp_path.as_uri(), properties=far) as tables:
        written = Written(tables)
        head = written.append()
        before = written.document()
        location = tables.metadata_locations([TABLE])[TABLE]
        written.edit(tags={"kept": head}, properties={"a": "b"})
        assert tables._documents.read(location) == before
        assert tables._documents.read(location) == Documents({}).read(location)
