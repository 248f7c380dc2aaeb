"""Tables that are declared by their columns: what is refused, and what is made of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.tables import Table
from airflow_barrier.tables.iceberg import IcebergTables

#: Every type, as Spark says it.
SCHEMA = (
    "tiny TINYINT, small SMALLINT, `int` INT, id BIGINT NOT NULL COMMENT 'whose it\\'s', real FLOAT, wide DOUBLE, "
    "price DECIMAL(12, 2), name STRING, raw BINARY, sold BOOLEAN, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "parts ARRAY<STRUCT<n: INT, `of` STRING>>, rates MAP<STRING, DECIMAL(4, 1)>, "
    "place STRUCT<x: DOUBLE NOT NULL, y: DOUBLE>"
)
PARTITIONS = ["days(at)", "bucket(16, id)", "truncate(4, name)", "`day`"]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (("visits", "id INT"), "expected namespace.table"),
        (("shop.visits", "id NUMBER"), "table shop.visits: schema 'id NUMBER': expected a Spark type, found 'NUMBER'"),
        (("shop.visits", "id DECIMAL(40, 2)"), "expected DECIMAL of 1 to 38 digits"),
        (("shop.visits", "id INT COMMENT id"), "expected a text in quotes, found 'id'"),
        (("shop.visits", "id INT", "at"), r"a list, such as \['days\(at\)'\], found 'at'"),
        (("shop.visits", "id INT", ["at"]), r"expected a column of the schema \(id\), found 'at'"),
        (("shop.visits", "id INT", ["days(id)"]), r"expected days of one of DATE, .*, found 'days\(id\) of a INT'"),
        (("shop.visits", "id INT", ["bucket(id)"]), r"expected bucket\(16, id\), found 'bucket\(id\)'"),
        (("shop.visits", "id DATE", ["days(4, id)"]), r"expected days\(id\), found"),
        (
            ("shop.visits", "id DATE", ["weeks(id)"]),
            r"expected a transform \(years, months, days, hours,",
        ),
        (
            ("shop.visits", "id DATE", ["days(id"]),
            r"a column, or one of Spark's transforms such as days\(at\)",
        ),
        (("shop.visits", "id DATE", ["day(id)", "days(ID)"]), "expected every field once"),
        (("shop.visits", "id ARRAY<INT>", ["id"]), "expected a column that is not nested"),
    ],
)
def test_what_cannot_be_made_is_refused_while_the_dag_is_parsed(declared: tuple[Any, ...], expected: str) -> None:
    name, schema, *partitioned_by = declared
    with pytest.raises(ConfigurationError, match=expected):
        Table(name, schema, **({"partitioned_by": partitioned_by[0]} if partitioned_by else {}))


def test_properties_that_cannot_be_kept() -> None:
    with pytest.raises(ConfigurationError, match="expected a text, as Iceberg keeps it, found 3"):
        Table("shop.visits", "id INT", properties={"commit.retry.num-retries": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="make a table of another version by Spark"):
        Table("shop.visits", "id INT", properties={"format-version": "3"})


def test_spark_makes_the_same_of_the_same_declaration(spark: SparkSession, tables: IcebergTables) -> None:
    """Columns, partitions and their names; what Spark then writes it reads, in partitions."""
    declared = Table("made.ours", SCHEMA, partitioned_by=PARTITIONS, properties={"owner.team": "tills"})
    assert tables.create(declared)
    assert not tables.create(declared)
    spark.sql(f"CREATE TABLE lake.made.theirs ({SCHEMA}) USING iceberg PARTITIONED BY ({', '.join(PARTITIONS)})")
    ours, theirs = tables.load("made.ours"), tables.load("made.theirs")
    assert str(ours.schema()) == str(theirs.schema())
    assert str(ours.spec()) == str(theirs.spec())
    assert tables.differences(declared) == []
    assert tables.differences(Table("made.theirs", SCHEMA)) == []
    assert ours.metadata.format_version == 2
    assert tables.wap_enabled(["made.ours"]) == tables.deletes_old_metadata(["made.ours"]) == {"made.ours": True}
    assert ours.properties["owner.team"] == "tills"
    row = (
        "1, 2, 3, 4, 0.5, 0.25, 9.99, 'apple', X'00', true, DATE'2026-01-05', TIMESTAMP'2026-01-05 10:00:00Z', "
        "TIMESTAMP_NTZ'2026-01-05 10:00:00', array(named_struct('n', 1, 'of', 'a')), map('vat', 7.0), "
        "named_struct('x', 1.0D, 'y', NULL)"
    )
    for table in ("ours", "theirs"):
        spark.sql(f"INSERT INTO lake.made.{table} VALUES ({row})")
    rows = [spark.sql(f"SELECT * FROM lake.made.{table}").collect() for table in ("ours", "theirs")]
    assert rows[0] == rows[1]
    (partition,) = spark.sql("SELECT partition FROM lake.made.ours.partitions").collect()
    assert (partition[0]["name_trunc"], str(partition[0]["day"])) == ("appl", "2026-01-05")


def test_each_difference_is_said(local: IcebergTables) -> None:
    local.create(Table("shop.visits", "id BIGINT NOT NULL, at TIMESTAMP, place STRUCT<x: INT>, more STRING"))
    assert local.differences(Table("shop.visits", "ID BIGINT NOT NULL, place STRUCT<x: INT>")) == []
    other = Table("shop.visits", "id BIGINT, at DATE NOT NULL, place STRUCT<x: BIGINT, y: INT>, price DECIMAL(4, 2)")
    assert local.differences(other) == [
        "column id must not be NULL, declared otherwise",
        "column at is timestamptz, declared date",
        "column place.x is int, declared long",
        "column place.y (int) is missing",
        "column price (decimal(4,2)) is missing",
    ]
    assert local.differences(Table("shop.visits", "at TIMESTAMP")) == [
        "column id is not declared, and must not be NULL"
    ]
