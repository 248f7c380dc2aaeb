"""DuckDB and pyiceberg over one answer, while the tables go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from airflow_barrier.protocol.errors import ConfigurationError, SnapshotMissingError, UnknownTableError
from airflow_barrier.reading.duckdb_views import duckdb_connection, load_extension
from airflow_barrier.reading.one_table import iceberg_table
from airflow_barrier.reading.rewriting import pins_of, rewrite
from airflow_barrier.tables.iceberg import IcebergTables
from tests.hostile.names import WORKABLE
from tests.reading.answers import answer
from tests.support.equality_deletes import commit_equality_delete
from tests.support.object_store import ObjectStore

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "label", StringType()))


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[IcebergTables]:
    warehouse = tmp_path / "o'dd %20 house"
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(warehouse)) as tables:
        yield tables


def create(tables: IcebergTables, *names: str, **properties: str) -> None:
    for name in names:
        tables.catalog.create_namespace_if_not_exists(tuple(name.split(".")[:-1]))
        tables.catalog.create_table(tuple(name.split(".")), SCHEMA, properties=properties)


def append(tables: IcebergTables, name: str, *ids: int) -> int:
    """Returns the new snapshot."""
    table = tables.load(name)
    table.append(pa.table({"id": list(ids), "label": [f"row {each}" for each in ids]}))
    (snapshot,) = tables.mains([name]).values()
    assert snapshot is not None
    return snapshot


def test_views_of_the_tables_names_read_the_answer_and_nothing_newer(tables: IcebergTables) -> None:
    create(tables, "shop.a", "shop.b", "shop.later")
    pinned = answer(
        {"shop.a": append(tables, "shop.a", 1, 2), "shop.b": append(tables, "shop.b", 2), "shop.later": None}
    )
    append(tables, "shop.a", 3)
    append(tables, "shop.later", 1)
    with duckdb_connection(tables, pinned, "lake") as connection:
        append(tables, "shop.b", 1)
        joined = connection.execute("SELECT lake.shop.a.id FROM lake.shop.a JOIN shop.b USING (id)").fetchall()
        assert joined == [(2,)]
        assert connection.execute("SELECT shop.a.label, a.id FROM a ORDER BY id").fetchall() == [
            ("row 1", 1),
            ("row 2", 2),
        ]
        empty = connection.execute("FROM later").to_arrow_table()
        assert (empty.num_rows, empty.column_names) == (0, ["id", "label"])


def test_namespaces_are_schemas(tables: IcebergTables) -> None:
    create(tables, "shop.a", "eu.shop.a")
    pinned = answer({"shop.a": append(tables, "shop.a", 1), "eu.shop.a": append(tables, "eu.shop.a", 2)})
    with duckdb_connection(tables, pinned, "lake") as connection:
        assert connection.execute('SELECT a.id, e.id FROM shop.a, lake."eu.shop".a AS e').fetchall() == [(1, 2)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([NestedField(1, "id", LongType()), NestedField(2, "ID", LongType())], "ID and id"),
        (
            [NestedField(1, "s", StructType(NestedField(2, "day", LongType()), NestedField(3, "Day", LongType())))],
            "s.Day and s.day",
        ),
    ],
)
def test_columns_that_duckdb_takes_for_one_are_refused(
    tables: IcebergTables, fields: list[NestedField], said: str
) -> None:
    tables.catalog.create_namespace("shop")
    tables.catalog.create_table("shop.t", Schema(*fields))
    with (
        pytest.raises(ConfigurationError, match=f"found columns of table shop.t: {said}; read them by"),
        duckdb_connection(tables, answer({"shop.t": None}), "lake"),
    ):
        pass


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["shop.t", "shop.T"], "tables shop.T and shop.t"),
        (["shop.t", "Shop.u"], "namespaces Shop and shop"),
    ],
)
def test_names_that_duckdb_takes_for_one_are_refused(tables: IcebergTables, names: list[str], said: str) -> None:
    create(tables, *names)
    with (
        pytest.raises(ConfigurationError, match=said),
        duckdb_connection(tables, answer(dict.fromkeys(names)), "lake"),
    ):
        pass


def test_columns_that_differ_beyond_a_to_z_are_told_apart(tables: IcebergTables) -> None:
    tables.catalog.create_namespace("shop")
    table = tables.catalog.create_table(
        "shop.t", Schema(NestedField(1, "ä", LongType()), NestedField(2, "Ä", LongType()))
    )
    table.append(pa.table({"ä": [1], "Ä": [2]}))
    with duckdb_connection(tables, answer(tables.mains(["shop.t"])), "lake") as connection:
        assert connection.execute('SELECT "Ä", "ä" FROM shop.t').fetchall() == [(2, 1)]


def test_filters_and_columns_get_down_to_the_files(tables: IcebergTables) -> None:
    create(tables, "shop.a")
    pinned = answer({"shop.a": append(tables, "shop.a", *range(1000))})
    with duckdb_connection(tables, pinned, "lake") as connection:
        ((_, plan),) = connection.execute("EXPLAIN SELECT label FROM a WHERE id < 3").fetchall()
        scan = plan[plan.index("ICEBERG_SCAN") :]
        assert re.search(r"Projections:\s*label", scan), plan
        assert "id<3" in scan, plan


def test_an_answer_outlives_the_tables_own_metadata(tables: IcebergTables, tmp_path: Path) -> None:
    trimmed = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    create(tables, "shop.a", **trimmed)
    pinned = answer({"shop.a": append(tables, "shop.a", 1)})
    old = tables.metadata_locations(["shop.a"])["shop.a"]
    with duckdb_connection(tables, pinned, "lake") as connection:
        one = iceberg_table(tables, pinned, "shop.a")
        for each in range(3):
            append(tables, "shop.a", each)
        assert not Path(old.removeprefix("file://")).exists()
        assert connection.execute("SELECT id FROM a").fetchall() == [(1,)]
        assert one.scan().to_arrow()["id"].to_pylist() == [1]


def test_columns_are_those_of_the_snapshot(tables: IcebergTables) -> None:
    create(tables, "shop.a")
    pinned = answer({"shop.a": append(tables, "shop.a", 1)})
    with tables.load("shop.a").update_schema() as update:
        update.rename_column("label", "title")
        update.add_column("price", LongType())
    with duckdb_connection(tables, pinned, "lake") as connection:
        assert connection.execute("FROM a").fetchall() == [(1, "row 1")]
        assert [column for column, *_ in connection.execute("DESCRIBE a").fetchall()] == ["id", "label"]
    assert iceberg_table(tables, pinned, "shop.a").scan().to_arrow().column_names == ["id", "label"]


def test_one_table_for_pyiceberg_arrow_and_pandas(tables: IcebergTables) -> None:
    create(tables, "shop.a", "shop.later")
    pinned = answer({"shop.a": append(tables, "shop.a", 1, 2, 3), "shop.later": None})
    append(tables, "shop.a", 4)
    append(tables, "shop.later", 1)
    scan = iceberg_table(tables, pinned, "shop.a").scan("id > 1", selected_fields=("id",))
    assert scan.to_arrow().to_pydict() == {"id": [2, 3]}
    assert list(scan.to_pandas()["id"]) == [2, 3]
    later = iceberg_table(tables, pinned, "shop.later")
    assert (later.scan().to_arrow().num_rows, later.scan().to_arrow().column_names) == (0, ["id", "label"])
    with pytest.raises(UnknownTableError, match=r"expected one of shop\.a, shop\.later"):
        iceberg_table(tables, pinned, "shop.c")


@pytest.mark.kills("snapshot-of-an-answer-is-there")
def test_a_snapshot_that_is_gone_is_an_error_and_not_another_one(tables: IcebergTables) -> None:
    create(tables, "shop.a")
    gone = append(tables, "shop.a", 1)
    append(tables, "shop.a", 2)
    tables.load("shop.a").maintenance.expire_snapshots().by_id(gone).commit()
    with pytest.raises(SnapshotMissingError, match=f"expected snapshot {gone}"):
        iceberg_table(tables, answer({"shop.a": gone}), "shop.a")
    with pytest.raises(SnapshotMissingError), duckdb_connection(tables, answer({"shop.a": gone}), "lake"):
        pass


def test_equality_deletes_as_flink_writes_them(tables: IcebergTables, tmp_path: Path) -> None:
    create(tables, "shop.a")
    append(tables, "shop.a", 1, 2, 3)
    server: Any = SimpleNamespace(catalog_db=tmp_path / "catalog.db")
    commit_equality_delete(server, cast(Any, SimpleNamespace(name="`lake`.`shop`.`a`")), "id", 2)
    pinned = answer(tables.mains(["shop.a"]))
    with duckdb_connection(tables, pinned, "lake") as connection:
        assert connection.execute("SELECT label FROM a ORDER BY id").fetchall() == [("row 1",), ("row 3",)]
    with pytest.raises(ValueError, match="does not yet support equality deletes"):  # and not the deleted row
        iceberg_table(tables, pinned, "shop.a").scan().to_arrow()


def test_any_name_of_a_table_is_a_name_here(tables: IcebergTables) -> None:
    names = [f"shop.{name}" for name in WORKABLE if name != "/etc/passwd"]
    create(tables, *names)
    pinned = answer({name: append(tables, name, number) for number, name in enumerate(names)})
    pins = pins_of(pinned, tables.metadata_locations(names))
    with duckdb_connection(tables, pinned, "lake") as connection:
        for number, name in enumerate(names):
            quoted = '"' + name.removeprefix("shop.").replace('"', '""') + '"'
            sql = f"SELECT id FROM lake.shop.{quoted}"
            assert connection.execute(sql).fetchall() == [(number,)], name
            if name.count('"') % 2 == 0:  # DuckDB takes a path for a table's name first, and stumbles over a lone quote
                ready = rewrite(sql, "duckdb", pins, catalog="lake").sql
                assert connection.execute(ready).fetchall() == [(number,)], name


def test_tables_in_an_object_store(s3: ObjectStore, tmp_path: Path) -> None:
    s3.make_bucket("duck")
    database = f"sqlite:///{tmp_path}/catalog.db"
    with IcebergTables.connect(database, "s3://duck/warehouse", properties=s3.properties) as tables:
        create(tables, "shop.a", "shop.later")
        pinned = answer({"shop.a": append(tables, "shop.a", 1, 2), "shop.later": None})
        append(tables, "shop.a", 3)
        ready = rewrite(
            "SELECT count(*) FROM shop.a",
            "duckdb",
            pins_of(pinned, tables.metadata_locations(["shop.a", "shop.later"])),
            catalog="lake",
        )
        with duckdb_connection(tables, pinned, "lake") as connection:
            assert connection.execute("SELECT sum(id) FROM a").fetchall() == [(3,)]
            assert connection.execute("SELECT sum(id) FROM later").fetchall() == [(None,)]
            assert connection.execute(ready.sql).fetchall() == [(2,)]
        assert iceberg_table(tables, pinned, "shop.a").scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("server", ["rest_server", "hive"])
def test_tables_of_another_catalog(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with IcebergTables.connect(request.getfixturevalue(server).uri, str(tmp_path)) as tables:
        create(tables, "ducks.a")
        pinned = answer({"ducks.a": append(tables, "ducks.a", 1)})
        append(tables, "ducks.a", 2)
        with duckdb_connection(tables, pinned, "lake") as connection:
            assert connection.execute("SELECT id FROM ducks.a").fetchall() == [(1,)]
        assert iceberg_table(tables, pinned, "ducks.a").scan().to_arrow().num_rows == 1


def test_what_duckdb_cannot_read_or_does_not_have_is_said(tables: IcebergTables, tmp_path: Path) -> None:
    create(tables, "shop.a")
    pinned = answer({"shop.a": None})
    with pytest.raises(ConfigurationError, match="'system'"), duckdb_connection(tables, pinned, "system"):
        pass
    location = tables.metadata_locations(["shop.a"])["shop.a"]
    document = tables.read_text(location).replace(
        f'"location":"{tables.load("shop.a").location()}', '"location":"gs://far'
    )
    elsewhere = tmp_path / "00000-elsewhere.metadata.json"
    elsewhere.write_text(document)
    tables.catalog.register_table(("shop", "far"), str(elsewhere))
    with (
        pytest.raises(ConfigurationError, match="found gs"),
        duckdb_connection(tables, answer({"shop.far": None}), "lake"),
    ):
        pass
    with (
        duckdb.connect() as connection,
        pytest.raises(ConfigurationError, match="expected its extension no_such_thing"),
    ):
        load_extension(connection, "no_such_thing")


def test_nothing_is_left_behind(tables: IcebergTables, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    create(tables, "shop.a")
    with duckdb_connection(tables, answer({"shop.a": None}), "lake"):
        assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) == []
