"""The 99 queries of TPC-DS and the 22 of TPC-H, unchanged, over tables that have gone on since.

What the engine itself says which tables a query names is the yardstick: the rewriter pins exactly these. Frozen copies
are tables of DuckDB's own; the Iceberg tables have lost a third of their rows since the snapshot that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from airflow_barrier.reading.duckdb_views import duckdb_connection, load_extension
from airflow_barrier.reading.rewriting import Pin, Place, pins_of, rewrite
from airflow_barrier.tables.iceberg import IcebergTables
from tests.reading.answers import answer

#: How much data: the least at which most queries find rows.
SCALE = 0.02
GENERATORS = {"tpcds": "dsdgen", "tpch": "dbgen"}
#: Of each, how many queries at least have to notice that a table is not pinned.
NOTICED = {"tpcds": 60, "tpch": 22}


@dataclass
class Warehouse:
    """Iceberg tables ``suite.table`` in ``tables``; ``frozen`` has their rows of before in DuckDB's own."""

    tables: IcebergTables
    frozen: duckdb.DuckDBPyConnection
    snapshots: dict[str, int | None]

    def pins(self) -> dict[str, Pin]:
        return pins_of(answer(self.snapshots), self.tables.metadata_locations(list(self.snapshots)))

    def queries(self, suite: str) -> dict[int, str]:
        return dict(self.frozen.execute(f"SELECT query_nr, query FROM {suite}_queries()").fetchall())

    def named_in(self, sql: str) -> set[str]:
        """The base tables that DuckDB's own parser finds named in the text."""
        (text,) = self.frozen.execute("SELECT json_serialize_sql(?)", [sql]).fetchone() or ("",)
        nodes = list(_nodes(json.loads(text)))
        own = {entry["key"] for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
        return {node["table_name"] for node in nodes if node.get("type") == "BASE_TABLE"} - own


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    folder = tmp_path_factory.mktemp("decision_support")
    with (
        IcebergTables.connect(f"sqlite:///{folder}/catalog.db", str(folder / "warehouse")) as tables,
        # Of rows that an ORDER BY leaves tied, a LIMIT takes any: with one thread always the same ones.
        duckdb.connect(config={"threads": 1}) as frozen,
    ):
        snapshots: dict[str, int | None] = {}
        for suite, generator in GENERATORS.items():
            load_extension(frozen, suite)
            tables.catalog.create_namespace(suite)
            frozen.execute(f"CREATE SCHEMA {suite}; USE memory.{suite}; CALL {generator}(sf={SCALE})")
            for (name,) in frozen.execute(
                "SELECT table_name FROM duckdb_tables() WHERE schema_name = ?", [suite]
            ).fetchall():
                rows = frozen.table(f"{suite}.{name}").to_arrow_table()
                table = tables.catalog.create_table(f"{suite}.{name}", rows.schema)
                table.append(rows)
                snapshots[f"{suite}.{name}"] = table.metadata.current_snapshot_id
                kept = pa.array([at for at in range(rows.num_rows) if at % 3], pa.int64())
                table.overwrite(rows.take(kept))
        yield Warehouse(tables, frozen, snapshots)


@pytest.mark.parametrize("suite", GENERATORS)
@pytest.mark.drawn("large ones")
def test_pinned_results_are_those_of_a_frozen_copy_and_unpinned_ones_are_not(warehouse: Warehouse, suite: str) -> None:
    pins, frozen = warehouse.pins(), warehouse.frozen
    load_extension(frozen, "avro")
    load_extension(frozen, "iceberg")
    frozen.execute(f"ATTACH ':memory:' AS now_{suite}; CREATE SCHEMA now_{suite}.{suite}")
    for name, pin in pins.items():
        if name.startswith(f"{suite}."):
            frozen.execute(f"CREATE VIEW now_{suite}.{name} AS FROM iceberg_scan('{pin.metadata}')")
    noticed = []
    for number, sql in warehouse.queries(suite).items():
        frozen.execute(f"USE memory.{suite}")
        named = {f"{suite}.{name}" for name in warehouse.named_in(sql)}
        assert named, number
        expected = _result(frozen, sql)
        found = rewrite(sql, "duckdb", pins, catalog="lake", place=Place("lake", suite))
        assert set(found.pinned) == named, number
        assert found.outside == (), number
        assert warehouse.named_in(found.sql) == set(), number
        frozen.execute("USE memory.main")  # where no table of these names is
        assert _result(frozen, found.sql) == expected, number
        frozen.execute(f"USE now_{suite}.{suite}")
        if _result(frozen, sql) != expected:
            noticed.append(number)
    assert len(noticed) >= NOTICED[suite], noticed


@pytest.mark.parametrize("suite", GENERATORS)
def test_in_sparks_words_every_table_is_pinned_too(warehouse: Warehouse, suite: str) -> None:
    pins = warehouse.pins()
    for number, sql in warehouse.queries(suite).items():
        (spark,) = sqlglot.transpile(sql, read="duckdb", write="spark")
        found = rewrite(spark, "spark", pins, catalog="lake", place=Place("lake", suite))
        assert set(found.pinned) == {f"{suite}.{name}" for name in warehouse.named_in(sql)}, number
        assert found.outside == (), number
        # read once more: what bears no version is a common table expression's name
        tree = sqlglot.parse_one(found.sql, read="spark")
        own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            version = table.args.get("version")
            snapshot = None if version is None else int(version.expression.name)
            assert snapshot == pins[f"{suite}.{table.name}"].snapshot_id if snapshot else table.name.lower() in own, (
                number
            )


def test_unchanged_queries_over_pinned_views(warehouse: Warehouse) -> None:
    snapshots = {name: snapshot for name, snapshot in warehouse.snapshots.items() if name.startswith("tpch.")}
    warehouse.frozen.execute("USE memory.tpch")
    with duckdb_connection(warehouse.tables, answer(snapshots), "lake") as connection:
        connection.execute("SET threads = 1")
        for number, sql in warehouse.queries("tpch").items():
            assert _result(connection, sql) == _result(warehouse.frozen, sql), number


def test_the_extensions_come_from_packages() -> None:
    """Nothing is fetched while tests, or users' queries, run."""
    for extension in ("avro", "httpfs", "iceberg", *GENERATORS):
        assert find_spec(f"duckdb_extension_{extension}") is not None, extension


def _result(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[str, ...]]:
    """Rows in an order of their own; of a double as many digits as do not depend on the order of a sum."""
    rows = connection.execute(sql).fetchall()
    return sorted(tuple(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row) for row in rows)
