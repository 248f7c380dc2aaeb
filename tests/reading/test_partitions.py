"""Which tables `replace="partitions"` takes: those of which Spark would replace just what the new rows are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.reading.partitions import replaceable
from airflow_barrier.tables.iceberg import IcebergTables

TARGET = ("lake", "reports", "daily")


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[IcebergTables]:
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "warehouse")) as tables:
        tables.catalog.create_namespace("reports")
        yield tables


def made(tables: IcebergTables, version: str = "2") -> Any:
    schema = pa.schema([("day", pa.int32()), ("n", pa.int64())])
    return tables.catalog.create_table("reports.daily", schema, properties={"format-version": version})


def refusal(tables: IcebergTables, partition_by: list[str] | None = None, catalog: str = "lake") -> str:
    with pytest.raises(ConfigurationError) as refused:
        replaceable(tables, catalog, TARGET, partition_by)
    return str(refused.value)


@pytest.mark.kills("made-with-partitions")
def test_one_that_is_not_there_is_made_only_with_partitions(tables: IcebergTables) -> None:
    assert "found no such table; make it with PARTITIONED BY" in refusal(tables)
    assert replaceable(tables, "lake", TARGET, ["day"]) is False


@pytest.mark.kills("partitions-can-be-seen")
def test_one_of_another_catalog_cannot_be_looked_at(tables: IcebergTables) -> None:
    assert "expected a table of catalog other for replace='partitions'" in refusal(tables, ["day"], catalog="other")


@pytest.mark.kills("has-partitions")
@pytest.mark.parametrize("version", ["1", "2"])
def test_one_without_partitions(tables: IcebergTables, version: str) -> None:
    table = made(tables, version)
    assert "found that it has no partitions" in refusal(tables)
    table.update_spec().add_identity("day").commit()
    assert replaceable(tables, "lake", TARGET) is True
    table.update_spec().remove_field("day").commit()
    assert "found that it has no partitions" in refusal(tables, ["day"])


@pytest.mark.kills("partitions-as-asked")
def test_one_with_other_partitions_than_the_author_says(tables: IcebergTables) -> None:
    made(tables).update_spec().add_identity("day").add_field("n", BucketTransform(4), "some").commit()
    assert "as partition_by says, found day, bucket[4](n)" in refusal(tables, ["day"])
    assert replaceable(tables, "lake", TARGET) is True


@pytest.mark.kills("partitions-of-one-kind")
def test_one_with_rows_of_before_its_partitioning_was_changed(tables: IcebergTables) -> None:
    table = made(tables)
    rows = pa.table({"day": pa.array([1], pa.int32()), "n": [1]})
    table.append(rows)
    table.update_spec().add_identity("day").commit()
    assert "found files that were written before its partitioning was changed" in refusal(tables)
    table.append(rows)
    assert "found files that were written before its partitioning was changed" in refusal(tables, ["DAY"])
    table.overwrite(rows)
    assert replaceable(tables, "lake", TARGET, ["DAY"]) is True
