"""Which changes of a table's columns keep its past from being computed again."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import SchemaChangedError, SnapshotMissingError
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.schemas import check_schema, incompatibilities
from tests.support.spark import SparkServer

BEFORE = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "price", "type": "decimal(10, 2)", "required": False},
    {
        "id": 3,
        "name": "address",
        "type": {"type": "struct", "fields": [{"id": 4, "name": "zip", "type": "string", "required": False}]},
        "required": False,
    },
]


def column(field_id: int, name: str, kind: Any, required: bool = False) -> dict[str, Any]:
    return {"id": field_id, "name": name, "type": kind, "required": required}


def document(after: list[dict[str, Any]]) -> dict[str, Any]:
    """Snapshot 7 was written with the columns before, snapshot 8 with those after."""
    return {
        "schemas": [{"schema-id": 0, "fields": BEFORE}, {"schema-id": 1, "fields": after}],
        "current-schema-id": 1,
        "snapshots": [{"snapshot-id": 7, "schema-id": 0}, {"snapshot-id": 8, "schema-id": 1}, {"snapshot-id": 9}],
    }


MAP = {"type": "map", "key-id": 11, "key": "string", "value-id": 12, "value": "int", "value-required": True}
LIST = {"type": "list", "element-id": 13, "element": "string", "element-required": True}


@pytest.mark.kills("schema-as-it-was")
@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (BEFORE, None),
        ([*BEFORE, column(9, "shop", "string")], None),
        ([*BEFORE, column(9, "labels", MAP), column(10, "notes", LIST)], None),
        ([column(1, "id", "long"), *reversed(BEFORE[1:])], None),  # may be NULL since, and stands elsewhere
        ([BEFORE[0], column(2, "price", "decimal(10,2)"), BEFORE[2]], None),
        ([BEFORE[0], BEFORE[2]], "column price was dropped"),
        ([BEFORE[0], BEFORE[2], column(9, "price", "decimal(10, 2)")], "column price was dropped"),
        ([BEFORE[0], column(2, "price", "double"), BEFORE[2]], r"column price was decimal\(10,2\) and is double"),
        ([BEFORE[0], column(2, "cost", "decimal(10, 2)"), BEFORE[2]], "column price is called cost"),
        ([BEFORE[0], column(2, "price", "decimal(10, 2)", True), BEFORE[2]], "column price may no longer be NULL"),
        ([*BEFORE, column(9, "shop", "string", True)], "column shop was added since and must not be NULL"),
        ([*BEFORE[:2], column(3, "address", "string")], "column address was struct and is string"),
        (
            [*BEFORE[:2], column(3, "address", {"type": "struct", "fields": [column(4, "zip", "int")]})],
            "column address.zip was string and is int",
        ),
        (
            [*BEFORE[:2], column(3, "address", {"type": "struct", "fields": [column(5, "city", "string", True)]})],
            "column address.zip was dropped",
        ),
    ],
)
def test_what_may_change_and_what_may_not(after: list[dict[str, Any]], fault: str | None) -> None:
    faults = incompatibilities("shop.shopping", document(after), [None, 8, 7, 7])
    if fault is None:
        assert faults == []
        check_schema("shop.shopping", faults)
        return
    with pytest.raises(SchemaChangedError, match=rf"{fault}.* \(since snapshot 7\).*into a new table"):
        check_schema("shop.shopping", faults)
    assert incompatibilities("shop.shopping", document(after), [8, 9]) == []


@pytest.mark.kills("revised-snapshot-is-there")
def test_a_snapshot_that_was_expired() -> None:
    with pytest.raises(SnapshotMissingError, match="expected snapshot 6, found that it was expired"):
        incompatibilities("shop.shopping", document(BEFORE), [6])


def test_a_real_table(spark: SparkSession, spark_server: SparkServer) -> None:
    name = "lake.shop.schemas"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
    spark.sql(f"CREATE TABLE {name} (id BIGINT, price DECIMAL(10, 2)) USING iceberg")
    url, warehouse = f"sqlite:///{spark_server.catalog_db}", spark_server.warehouse.as_uri()
    snapshots: list[int | None] = [None]
    try:
        with IcebergTables.connect(url, warehouse) as tables:
            for change in ("ADD COLUMN shop STRING", "ADD COLUMN item STRING", "DROP COLUMN shop"):
                spark.sql(f"INSERT INTO {name} (id, price) VALUES (1, 1)")
                snapshots.append(tables.mains(["shop.schemas"])["shop.schemas"])
                assert tables.schema_faults("shop.schemas", snapshots) == []
                spark.sql(f"ALTER TABLE {name} {change}")
            fault = f"column shop was dropped (since snapshot {snapshots[2]})"
            assert tables.schema_faults("shop.schemas", snapshots) == [fault]
    finally:
        spark.sql(f"DROP TABLE {name} PURGE")
