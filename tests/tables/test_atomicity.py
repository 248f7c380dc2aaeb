"""Many tables in one step: alone, within somebody else's transaction, and against others who commit meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Connection, create_engine, text

from airflow_barrier.protocol.errors import ForeignWriteError
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication
from tests.support.postgresql import with_driver
from tests.support.waiting import patience
from tests.tables import poll
from tests.tables.lake import Lake, publication, stamp_of

COUNT = 100
STAMP = stamp_of(1)


def make(tables: IcebergTables, count: int) -> list[Publication]:
    """``count`` tables, each with a snapshot to be published. (Of version 2: pyiceberg makes no others.)"""
    publications = []
    for number in range(count):
        name = f"shop.t{number}"
        tables.catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
        tables.prepare({name: None}, STAMP)
        root = tables.load(name).metadata.refs[STAMP.branch].snapshot_id
        publications.append(publication(name, None, root))
    return publications


def metadata_files(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "warehouse").glob("*/*/metadata/*.metadata.json"))


@contextmanager
def transaction_of(url: str, *, commit: bool = True) -> Iterator[Connection]:
    """A transaction of the MetaService's kind: on the same database, begun as a writer's."""
    engine = create_engine(with_driver(url), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "BEGIN")
            ending = "ROLLBACK"
            try:
                yield connection
                ending = "COMMIT" if commit else "ROLLBACK"
            finally:
                connection.exec_driver_sql(ending)
    finally:
        engine.dispose()


def test_a_hundred_tables_become_visible_in_one_step_or_not_at_all(
    local: IcebergTables, local_url: str, tmp_path: Path
) -> None:
    publications = make(local, COUNT)
    names = [each.table for each in publications]
    conflicting = dataclasses.replace(publications[COUNT // 2], expected=4711)
    files = metadata_files(tmp_path)
    command = [sys.executable, poll.__file__, local_url, local.location(), *names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the same package as in this process
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "looking\n"
        with pytest.raises(ForeignWriteError, match=f"table {conflicting.table}: expected main at snapshot 4711"):
            local.publish([*publications[: COUNT // 2], conflicting, *publications[COUNT // 2 + 1 :]])
        assert set(local.mains(names).values()) == {None}
        assert metadata_files(tmp_path) == files, "a publish that failed leaves nothing behind"
        local.publish(publications)
        said, _ = reader.communicate(timeout=patience())
    assert json.loads(said) == [0, COUNT]


@pytest.mark.kills("files-of-a-moved-pointer")
def test_a_joined_publish_is_committed_with_its_transaction(local: IcebergTables, local_url: str) -> None:
    publications = make(local, 3)
    names = [each.table for each in publications]
    with transaction_of(local_url) as connection:
        connection.execute(text("CREATE TABLE decided (barrier INTEGER)"))
        locations = local.publish(publications, connection)
        assert set(local.mains(names).values()) == {None}
    assert local.mains(names) == {each.table: each.new for each in publications}
    assert {name: local.load(name).metadata_location for name in names} == locations


def test_a_joined_publish_vanishes_with_its_transaction(local: IcebergTables, local_url: str) -> None:
    publications = make(local, 3)
    names = [each.table for each in publications]
    with transaction_of(local_url, commit=False) as connection:
        local.publish(publications, connection)
    assert set(local.mains(names).values()) == {None}
    local.publish(publications)
    assert None not in local.mains(names).values()


@pytest.mark.kills("files-of-a-moved-pointer")
def test_a_joined_publish_that_is_refused_leaves_no_files(local: IcebergTables, local_url: str, tmp_path: Path) -> None:
    good, bad = make(local, 2)
    files = metadata_files(tmp_path)
    with pytest.raises(ForeignWriteError), transaction_of(local_url) as connection:
        local.publish([good, dataclasses.replace(bad, expected=4711)], connection)
    assert metadata_files(tmp_path) == files


@pytest.mark.kills("files-of-an-unknown-commit")
def test_a_publish_that_is_refused_leaves_no_files(local: IcebergTables, tmp_path: Path) -> None:
    good, bad = make(local, 2)
    files = metadata_files(tmp_path)
    with pytest.raises(ForeignWriteError):
        local.publish([good, dataclasses.replace(bad, expected=4711)])
    assert metadata_files(tmp_path) == files


@pytest.mark.kills("overtaken-is-made-anew")
def test_what_was_staged_ahead_is_used_or_made_anew_if_overtaken(
    local: IcebergTables, local_url: str, tmp_path: Path
) -> None:
    overtaken, untouched = publications = make(local, 2)
    with local.staging(publications) as staging:
        ahead = {table: draft.location for table, draft in staging.drafts.items()}
        local.pin(overtaken.table, "held", overtaken.new)
        with transaction_of(local_url) as connection:
            locations = local.publish(publications, connection, staging)
    assert locations[untouched.table] == ahead[untouched.table]
    assert locations[overtaken.table] != ahead[overtaken.table]
    assert not Path(ahead[overtaken.table]).exists()
    refs = local.load(overtaken.table).metadata.refs
    assert set(refs) == {"main", "held", overtaken.tag}, "neither of the two commits is lost"


def test_what_was_staged_ahead_and_not_used_is_cleaned_up(local: IcebergTables, tmp_path: Path) -> None:
    publications = make(local, 2)
    files = metadata_files(tmp_path)
    with local.staging(publications):
        assert len(metadata_files(tmp_path)) == len(files) + 2
    assert metadata_files(tmp_path) == files


def test_what_is_staged_ahead_and_refused_leaves_no_files(local: IcebergTables, tmp_path: Path) -> None:
    good, bad = make(local, 2)
    files = metadata_files(tmp_path)
    with pytest.raises(ForeignWriteError), local.staging([good, dataclasses.replace(bad, expected=4711)]):
        pass
    assert metadata_files(tmp_path) == files


def test_publishers_and_pinners_in_many_threads_lose_nothing(local: IcebergTables, local_url: str) -> None:
    """They all race for the same pointers; losers go on from what the winner left."""
    publications = make(local, 10)
    names = [each.table for each in publications]

    def pin(worker: int) -> None:
        with IcebergTables.connect(local_url, local.location()) as other:
            for each in publications:
                other.pin(each.table, f"pin_{worker}", each.new)

    threads = [threading.Thread(target=pin, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    local.publish(publications)
    for thread in threads:
        thread.join(timeout=patience())
        assert not thread.is_alive()
    for name in names:
        pins = {f"pin_{worker}" for worker in range(4)}
        assert set(local.load(name).metadata.refs) == {"main", publications[0].tag, *pins}


def test_spark_appends_to_later_attempts_while_earlier_ones_are_published(lake: Lake) -> None:
    patient = {"commit.retry.num-retries": "50", "commit.retry.max-wait-ms": "100"}
    table = lake.create(patient, rows=[(0, "a")])
    base = lake.main(table)
    ahead = stamp_of(1000)
    lake.tables.prepare({table: base}, ahead)
    failures: list[BaseException] = []
    done = threading.Event()

    def append() -> None:
        try:
            for number in range(4):
                lake.append(table, [(number, "later")], ahead.branch, ahead)
        except Exception as error:  # to be raised in the test's own thread
            failures.append(error)
        finally:
            done.set()

    spark = threading.Thread(target=append)
    spark.start()
    published = 0
    # Not for ever: on a busy machine Spark would lose race after race against a publisher that never rests.
    while published < 40 and not done.wait(timeout=0.02):
        published += 1
        lake.tables.publish([publication(table, base, base, barrier_id=published)])
    assert done.wait(timeout=patience())
    spark.join(timeout=patience())
    assert not failures
    assert published > 1, "the publisher has to have raced with Spark"
    assert lake.rows(table, ahead.branch) == [(0, "a"), *((number, "later") for number in range(4))]
    assert len(lake.refs(table)) == 2 + published, "main, the branch, and a tag of each publish"
    assert lake.tables.staged(table, ahead, base) == lake.refs(table)[ahead.branch]
