"""Barriers as files: what readers, by pattern or by manifest, make of them is what the tables hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from airflow_barrier.protocol.deliveries import Position, Rows
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.systems.roots import SourceRoots
from tests.delivering.feed import AMOUNT, KEY, PRICE, Feed
from tests.sinks.behaviour import applied
from tests.sinks.objects import BUCKET, Objects
from tests.support.object_store import ObjectStore

TARGETS = {AMOUNT: "amount", PRICE: "price"}
DAYS = ({(1, 1): 10, (1, 2): 20}, {(1, 1): 11, (2, 1): 30}, {(1, 1): 11, (2, 1): 30}, {})


def folders(target: Path) -> list[list[dict[str, Any]]]:
    """The rows of each barrier, in the order of the folders' names."""
    return [pq.read_table(folder).to_pylist() for folder in sorted(target.glob("b*"))]


def state(rows: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
    return {(row["userId"], row["itemId"]): row["value"] for row in rows}


def test_changes_come_to_what_the_table_holds(feed: Feed, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"), key=KEY)

    def found(target: str) -> dict[tuple[int, int], int]:
        steps = [
            [(row.pop("_change"), {**row, "id": (row["userId"], row["itemId"])}) for row in rows]
            for rows in folders(tmp_path / "out" / target)
        ]
        return state(applied(steps))

    for day in DAYS[:2]:
        feed.commit(day)
        feed.deliver(sink, TARGETS, None)
        assert found("amount") == found("price") == day
    for day in DAYS[2:]:
        feed.commit(day)
    receipts = feed.deliver(sink, TARGETS, None)
    assert [receipt.barrier.barrier_id for receipt in receipts] == [3, 4]
    assert found("amount") == found("price") == {}
    number = feed.revise({4: {(5, 5): 5}}).revision
    feed.deliver(sink, TARGETS, None)
    assert found("amount") == found("price") == {(5, 5): 5}
    assert feed.deployment.meta.deliveries.get("shopping", "out").position == Position(4, number)
    assert not list((tmp_path / "_barrier" / "shopping" / "deliveries").rglob("*.parquet")), "nothing is left over"


def test_changes_come_to_an_object_store(feed: Feed, s3: ObjectStore) -> None:
    s3.make_bucket(BUCKET)
    place = Objects(s3.endpoint, f"{uuid4()}/out")
    sink = replace(place.sink, key=KEY)
    for day in DAYS[:3]:
        feed.commit(day)
        feed.deliver(sink, TARGETS, place.credentials)
        for target in TARGETS.values():
            steps = [
                [(row.pop("_change"), {**row, "id": (row["userId"], row["itemId"])}) for row in rows]
                for rows in (place.rows_of(manifest, target) for manifest in place.delivered())
            ]
            assert state(applied(steps)) == day
    assert place.left_over() == []


def test_the_newest_folder_is_the_table(feed: Feed, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"))
    for day in DAYS:
        feed.commit(day)
        feed.deliver(sink, TARGETS, None, rows=Rows.TABLE)
    assert [state(rows) for rows in folders(tmp_path / "out" / "price")] == list(DAYS)


def test_a_folder_that_the_connection_does_not_allow_is_refused(feed: Feed, tmp_path: Path) -> None:
    feed.commit(DAYS[0])
    allowed = SourceRoots.of([str(tmp_path / "in")], str(tmp_path))
    elsewhere = replace(feed, deployment=replace(feed.deployment, source_roots=allowed))
    with pytest.raises(ConfigurationError, match="sink out: expected a place that the connection allows"):
        elsewhere.deliver(FileSink(str(tmp_path / "out")), TARGETS, None, rows=Rows.TABLE)
    assert not (tmp_path / "out").exists()
