"""Spark appends to tables of an SQLite catalog while barriers with many tables are published beside it: none dies.

SQLite has one write lock for all tables. A publish holds it for as long as it moves its pointers, and Spark's catalog
waits that long (`busy_timeout` in its JDBC URL); what a publish writes to files is written before.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.reporting import report
from tests.support.waiting import patience
from tests.tables.lake import Lake, publication, stamp_of

COUNT, APPENDS = 200, 6


def test_no_spark_append_dies_of_a_locked_sqlite(spark: Any, spark_server: Any) -> None:
    with IcebergTables.connect(f"sqlite:///{spark_server.catalog_db}", spark_server.warehouse.as_uri()) as tables:
        lake = Lake(spark, tables, 2, spark_server.url)
        mine = lake.create({"commit.retry.num-retries": "50", "commit.retry.max-wait-ms": "100"}, rows=[(0, "a")])
        base = lake.main(mine)
        ahead = stamp_of(1000, topology="beside")
        tables.prepare({mine: base}, ahead)
        first = stamp_of(1, topology="beside")
        tables.catalog.create_namespace("beside")
        names = [f"beside.t{number}" for number in range(COUNT)]
        for name in names:
            tables.catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
            tables.prepare({name: None}, first)
        roots = {name: document["refs"][first.branch]["snapshot-id"] for name, document in _documents(tables, names)}
        publications = [
            *(publication(name, None, root, topology="beside") for name, root in roots.items()),
            publication(mine, base, base, topology="beside"),
        ]
        appended: list[tuple[int, str]] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def append() -> None:
            try:
                # on until they have met, on a machine that takes long for a publish
                while len(appended) < APPENDS or (published < 2 and len(appended) < 10 * APPENDS):
                    row = (len(appended), "later")
                    lake.append(mine, [row], ahead.branch, ahead)
                    appended.append(row)
            except BaseException as error:  # raised in the test's own thread
                failures.append(error)
            finally:
                done.set()

        published = 0
        writer = threading.Thread(target=append)
        writer.start()
        while not done.is_set() and published < 20:
            published += 1
            # a publish of its own each time: another barrier's tag for every table
            tables.publish(
                [
                    replace(each, expected=each.new, barrier_id=published, tag=f"{each.tag}_{published}")
                    if published > 1
                    else each
                    for each in publications
                ]
            )
        assert done.wait(timeout=patience())
        writer.join(timeout=patience())
        assert not failures, failures[0]
        assert published > 1, "they met"
        assert lake.rows(mine, ahead.branch) == [(0, "a"), *appended]
        assert set(tables.mains(names).values()) == set(roots.values())
        report(f"races, Spark beside publishes: {len(appended)} appends, {published} publishes of {COUNT + 1} tables")


def _documents(tables: IcebergTables, names: list[str]) -> Any:
    return tables._committer.read(names).items()
