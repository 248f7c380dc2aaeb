"""The catalog and the storage: what is missing, lost or wrong, what is pinned, and the files beside the tables."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import create_engine, inspect
from sqlalchemy import text as sql

from airflow_barrier.protocol.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    ForeignWriteError,
    MissingTableError,
    SnapshotMissingError,
)
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.postgresql import with_driver
from tests.support.waiting import patience
from tests.tables.far import Far
from tests.tables.lake import Lake, path_of, publication, stamp_of

TABLE = "shop.shopping"
STAMP = stamp_of(1)


@pytest.fixture
def table(local: IcebergTables) -> str:
    local.catalog.create_table(TABLE, Schema(NestedField(1, "id", LongType())))
    return TABLE


def test_importing_the_adapter_loads_neither_libraries_nor_airflow() -> None:
    heavy = ("pyiceberg", "pyarrow", "sqlalchemy", "tenacity", "pyspark", "airflow")
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import airflow_barrier.tables.iceberg\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=patience()
    ).stdout
    assert said == "[]\n"


def test_what_is_far_is_asked_for_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = {"py-io-impl": f"{Far.__module__}.{Far.__name__}"}
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "lake"), properties=far) as tables:
        tables.catalog.create_namespace("shop")
        names = ["shop.one", "shop.other"]
        for name in names:
            tables.catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
        monkeypatch.setattr(Far, "meeting", threading.Barrier(2, timeout=patience()))
        tables.take_in(names)
        assert tables.wap_enabled(names) == dict.fromkeys(names, True)
        tables.delete(tables.metadata_locations(names).values())
        monkeypatch.undo()
        with pytest.raises(MissingTableError, match="expected its metadata document at"):
            tables.mains(names)


def test_every_call_names_a_table_that_is_missing(local: IcebergTables, table: str) -> None:
    gone = "shop.gone"
    calls = [
        lambda: local.mains([table, gone]),
        lambda: local.currents({gone: None}),
        lambda: local.prepare({gone: None}, STAMP),
        lambda: local.staged(gone, STAMP, None),
        lambda: local.publish([publication(table, None, None), publication(gone, None, 1)]),
        lambda: local.load(gone),
        lambda: local.pin(gone, "held", 1),
    ]
    for call in calls:
        with pytest.raises(
            MissingTableError,
            match=r"expected table shop\.gone in catalog 'lake' \(\w+.*://.*create the",
        ):
            call()
    with pytest.raises(ConfigurationError, match=r"table 'shopping': expected namespace\.table"):
        local.mains(["shopping"])
    assert local.mains([]) == {}
    assert local.publish([]) == {}


def test_another_name_of_the_catalog_finds_no_tables(local: IcebergTables, local_url: str, table: str) -> None:
    with (
        IcebergTables.connect(local_url, local.location(), catalog_name="other") as other,
        pytest.raises(MissingTableError, match="in catalog 'other'"),
    ):
        other.mains([table])


def test_a_database_that_is_lost_is_retryable(local: IcebergTables, tmp_path: Path) -> None:
    with IcebergTables.connect(f"sqlite:///{tmp_path}/not/there.db", str(tmp_path)) as lost:
        with pytest.raises(
            CatalogUnavailableError, match=r"catalog 'lake': expected sqlite:///.*there.db to answer"
        ) as said:
            lost.mains([TABLE])
        assert said.value.retryable
        assert str(pickle.loads(pickle.dumps(said.value))) == str(said.value)
    with (
        IcebergTables.connect(f"sqlite:///{tmp_path}/fresh.db", str(tmp_path)) as fresh,
        pytest.raises(MissingTableError, match="expected the table iceberg_tables"),
    ):
        fresh.mains([TABLE])


def test_a_table_is_led_back_to_the_newest_document_that_is_left(local: IcebergTables, table: str) -> None:
    """Whether the catalog has lost the table's row, or the storage the document that the row points to."""
    first = local.load(table).metadata_location
    local.prepare({table: None}, STAMP)
    left = local.load(table).metadata_location
    (root,) = local.load(table).metadata.snapshots
    local.pin(table, "held", root.snapshot_id)
    path_of(local.load(table).metadata_location).unlink()
    assert local.reattach({table: (first, root.snapshot_id)})
    assert local.metadata_locations([table]) == {table: left}
    local.catalog.drop_table(table)
    assert local.reattach({table: (first, root.snapshot_id)})
    assert local.metadata_locations([table]) == {table: left}
    assert not local.reattach({table: (first, root.snapshot_id)})


@pytest.mark.parametrize("behind", [0, 120_000])
def test_a_later_document_is_told_by_its_version_and_not_by_its_date(
    local: IcebergTables, local_url: str, table: str, behind: int
) -> None:
    """Its writer's clock may have been minutes behind that of the writer before it."""
    first = local.load(table).metadata_location
    local.prepare({table: None}, STAMP)
    (root,) = local.load(table).metadata.snapshots
    newest = local.load(table).metadata_location
    point_to(local_url, first)  # a backup of the catalog
    document = path_of(newest)
    dated = json.loads(path_of(first).read_text())["last-updated-ms"] - behind
    document.write_text(json.dumps({**json.loads(document.read_text()), "last-updated-ms": dated}))
    assert local.reattach({table: (first, root.snapshot_id)})
    assert local.metadata_locations([table]) == {table: newest}


def test_an_earlier_document_replaces_nothing(local: IcebergTables, local_url: str, table: str) -> None:
    """Whatever its date."""
    local.prepare({table: None}, STAMP)
    (root,) = local.load(table).metadata.snapshots
    staged = local.load(table).metadata_location
    local.give_back([table], STAMP.topology, [])
    document = path_of(local.load(table).metadata_location)
    found = json.loads(document.read_text())
    document.write_text(json.dumps({**found, "snapshots": [], "last-updated-ms": found["last-updated-ms"] - 120_000}))
    now = local.metadata_locations([table])
    assert not local.reattach({table: (staged, root.snapshot_id)})
    assert local.metadata_locations([table]) == now


def point_to(url: str, location: str) -> None:
    engine = create_engine(with_driver(url))
    with engine.begin() as database:
        database.execute(sql("UPDATE iceberg_tables SET metadata_location = :at"), {"at": location})
    engine.dispose()


def test_storage_that_fails_is_told_from_a_file_that_is_lost(local: IcebergTables, table: str) -> None:
    document = path_of(local.load(table).metadata_location)
    text = document.read_bytes()
    document.unlink()
    with pytest.raises(
        MissingTableError, match=r"expected its metadata document at .*metadata\.json, found no such file"
    ):
        local.mains([table])
    document.mkdir()
    with pytest.raises(CatalogUnavailableError, match=r"storage: expected to reach .*metadata\.json"):
        local.mains([table])
    document.rmdir()
    document.write_bytes(text)
    assert local.mains([table]) == {table: None}


def test_a_file_is_written_while_its_folders_are_deleted_since_they_were_empty(tmp_path: Path) -> None:
    """As where one deliverer clears what another one, which it has fenced, is about to write."""
    documents, clearances = Documents({}), threading.Semaphore(0)
    folders = [str(tmp_path / "a" / "b"), str(tmp_path / "a")]
    files = 500

    def clear() -> None:
        for _ in range(2 * files):
            clearances.acquire()
            documents.delete_if_empty(folders)

    clearing = threading.Thread(target=clear)
    clearing.start()
    try:
        for number in range(files):
            uri = f"{folders[0]}/{number}"
            clearances.release(2)
            documents.write_bytes(uri, b"here")
            documents.delete([uri])
    finally:
        clearances.release(2 * files)
        clearing.join(patience(10))


def test_files_that_cannot_be_deleted_are_told(
    local: IcebergTables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stuck = tmp_path / "gone", tmp_path / "stuck"
    stuck.mkdir()
    (stuck / "file").touch()
    local.delete([str(gone)])
    assert caplog.messages == []
    local.delete([str(gone), str(stuck)])
    (said,) = caplog.messages
    assert f"1 could not be deleted, the first is {stuck}: " in said
    assert "delete the files by hand" in said


def test_a_folder_that_another_process_deletes_is_made_again(
    local: IcebergTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was empty just then."""
    write, folder = Path.write_bytes, tmp_path / "b1"

    def lose_a_race(path: Path, data: bytes) -> int:
        monkeypatch.setattr(Path, "write_bytes", write)
        local.delete([f"{folder}/a1.spec.json"])
        assert not folder.exists()
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", lose_a_race)
    local.write_text(f"{folder}/a2.spec.json", "spec")
    assert local.read_text(f"{folder}/a2.spec.json") == "spec"


def test_urls_that_cannot_be_used_are_refused_without_their_password(tmp_path: Path) -> None:
    for url in ("no url hunter2", "nosuchdatabase://me:hunter2@host/db"):
        with pytest.raises(ConfigurationError, match="expected an SQLAlchemy URL") as said:
            IcebergTables.connect(url, str(tmp_path))
        assert "hunter2" not in str(said.value)


@pytest.mark.parametrize("version", [1, 4])
def test_format_versions_that_are_not_served_are_refused(local: IcebergTables, table: str, version: int) -> None:
    document = path_of(local.load(table).metadata_location)
    document.write_text(json.dumps({**json.loads(document.read_text()), "format-version": version}))
    with pytest.raises(ConfigurationError, match=f"expected Iceberg format version 2 or 3, found {version}"):
        local.prepare({table: None}, STAMP)


def test_views_are_refused(lake: Lake) -> None:
    table = lake.create()
    lake.spark.sql(f"CREATE VIEW lake.{table}_view AS SELECT 1 AS one")
    with pytest.raises(ConfigurationError, match="expected a table, found a view"):
        lake.tables.mains([f"{table}_view"])


def test_a_catalog_of_schema_v0_is_served_and_not_migrated(local: IcebergTables, local_url: str, table: str) -> None:
    """Iceberg's JDBC catalog makes it unless `jdbc.schema-version` is V1: without the column that marks views."""
    engine = create_engine(with_driver(local_url))
    with engine.begin() as database:
        database.exec_driver_sql("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    with IcebergTables.connect(local_url, local.location()) as tables:
        tables.prepare({table: None}, STAMP)
        root = tables.load(table).metadata.refs[STAMP.branch].snapshot_id
        tables.publish([publication(table, None, root)])
        assert tables.mains([table]) == {table: root}
    columns = [column["name"] for column in inspect(engine).get_columns("iceberg_tables")]
    engine.dispose()
    assert "iceberg_type" not in columns


def test_a_snapshot_is_pinned_and_let_go(lake: Lake) -> None:
    table = lake.create({"history.expire.max-ref-age-ms": "1"}, rows=[(1, "a")])
    pinned = lake.main(table)
    lake.append(table, [(2, "b")])
    lake.tables.pin(table, "held", pinned)
    location = lake.location(table)
    lake.tables.pin(table, "held", pinned)
    assert lake.location(table) == location
    lake.spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2099-01-01 00:00:00')"
    )
    assert lake.rows(table, "held") == [(1, "a")]
    with pytest.raises(ForeignWriteError, match=f"found a tag at snapshot {pinned}"):
        lake.tables.pin(table, "held", lake.main(table))
    with pytest.raises(SnapshotMissingError, match="expected snapshot 4711"):
        lake.tables.pin(table, "other", 4711)
    for _ in range(2):
        lake.tables.unpin(table, "held")
    lake.tables.unpin(table, "main")
    assert set(lake.refs(table)) == {"main"}


def test_taking_in_sets_what_nobody_has_set(local: IcebergTables, table: str) -> None:
    local.catalog.create_table("shop.other", Schema(NestedField(1, "id", LongType())), properties={"a": "b"})
    tables = [table, "shop.other"]
    assert local.wap_enabled(tables) == {table: False, "shop.other": False}
    local.take_in(["shop.other"])
    assert local.wap_enabled(tables) == {table: False, "shop.other": True}
    before = local.metadata_locations(tables)
    local.take_in(tables)
    assert local.wap_enabled(tables) == {table: True, "shop.other": True}
    after = local.metadata_locations(tables)
    assert (after[table] != before[table], after["shop.other"] == before["shop.other"]) == (True, True)
    assert local.load("shop.other").properties.items() >= {"a": "b", "write.wap.enabled": "true"}.items()


def test_files_beside_the_tables(local: IcebergTables, tmp_path: Path) -> None:
    uri = local.location("_barrier", "shop", "b1", "a1.spec.json")
    assert uri == f"{tmp_path}/warehouse/_barrier/shop/b1/a1.spec.json"
    assert not local.exists(uri)
    with pytest.raises(FileNotFoundError):
        local.read_text(uri)
    for text in ("first", "zweite Fassung: ü"):
        local.write_text(uri, text)
        assert local.read_text(uri) == text
    assert local.exists(uri)
    (tmp_path / "a file").write_text("")
    with pytest.raises(CatalogUnavailableError, match="storage: expected to reach"):
        local.write_text(f"{tmp_path}/a file/below.json", "text")
