"""The database under the MetaService: its schema's version, what else lives in it, and its failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

import airflow_barrier.metaservice
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.migrate import check, migrate
from airflow_barrier.metaservice.schema import metadata
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.versions import EXPECTED, VERSION_TABLE, VERSIONS
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    MetaServiceMissingError,
    SchemaVersionError,
    StoreUnavailableError,
    UnknownTopologyError,
)
from tests.metaservice.world import JOBS, World


def run(url: str, *statements: str) -> None:
    """Plain SQL on the side."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def in_database(url: str, look: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(look))]
    engine.dispose()
    return rows


# --- versions -----------------------------------------------------------------------------------------


def test_the_migrations_make_exactly_the_schema(url: str) -> None:
    migrate(url)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        return list(compare_metadata(context, metadata))

    database = Database(url, create=False)
    assert database.read(differences) == []
    database.close()


def test_the_listed_versions_are_the_migration_files() -> None:
    folder = Path(airflow_barrier.metaservice.__file__).with_name("migrations")
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(VERSIONS))


def test_migrating_again_changes_nothing(url: str) -> None:
    assert EXPECTED in migrate(url)
    before = in_database(url, "SELECT incarnation FROM barrier_service")
    assert migrate(url) == check(url)
    assert in_database(url, "SELECT incarnation FROM barrier_service") == before


def test_an_incarnation_is_for_life(meta: MetaService, url: str) -> None:
    world, again = World(meta), MetaService(url)
    assert again.topologies.incarnation(world.name) == meta.topologies.incarnation(world.name)
    with pytest.raises(UnknownTopologyError):
        again.topologies.incarnation("another")
    again.close()


@pytest.mark.kills("newer-schema")
def test_a_newer_database_is_refused_and_left_alone(url: str) -> None:
    migrate(url)
    run(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for create in (None, True, False):
        meta = MetaService(url, create=create)
        with pytest.raises(SchemaVersionError, match=rf"expected schema version {EXPECTED}, found 9999.*newer"):
            meta.check()
        meta.close()
    assert in_database(url, f"SELECT version_num FROM {VERSION_TABLE}") == [("9999",)]


@pytest.mark.kills("schema-at-each-transaction")
def test_a_database_that_is_upgraded_under_a_process_is_refused_by_its_next_step(meta: MetaService, url: str) -> None:
    meta.topologies.register("shopping", "dag", JOBS, "test")
    run(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for step in (meta.topologies.names, lambda: meta.topologies.register("shopping", "dag", JOBS[:1], "test")):
        with pytest.raises(SchemaVersionError, match=rf"expected schema version {EXPECTED}, found 9999.*newer"):
            step()
    run(url, f"UPDATE {VERSION_TABLE} SET version_num = '{EXPECTED}'")
    assert meta.topologies.version("shopping") == 1


def test_only_the_embedded_database_makes_itself(url: str) -> None:
    meta = MetaService(url)
    if url.startswith("sqlite"):
        assert EXPECTED in meta.check()
    else:
        with pytest.raises(SchemaVersionError, match=f"{EXPECTED}, found none.*`airflow-barrier database migrate`"):
            meta.check()
    meta.close()


@pytest.mark.kills("older-schema")
def test_checking_creates_nothing(url: str, tmp_path: Path) -> None:
    with pytest.raises((SchemaVersionError, MetaServiceMissingError), match="found none"):
        check(url)
    assert list(tmp_path.iterdir()) == []
    run(url, "CREATE TABLE iceberg_tables (table_name TEXT)")
    with pytest.raises(SchemaVersionError, match="found none"):
        check(url)


def test_other_peoples_tables_in_the_database_are_left_alone(url: str) -> None:
    run(
        url,
        "CREATE TABLE iceberg_tables (table_name TEXT)",
        "INSERT INTO iceberg_tables VALUES ('amount')",
        "CREATE TABLE alembic_version (version_num TEXT)",
        "INSERT INTO alembic_version VALUES ('airflow')",
    )
    migrate(url)
    assert in_database(url, "SELECT table_name FROM iceberg_tables") == [("amount",)]
    assert in_database(url, "SELECT version_num FROM alembic_version") == [("airflow",)]
    engine = create_engine(url)
    ours = set(inspect(engine).get_table_names()) - {"iceberg_tables", "alembic_version", "sqlite_sequence"}
    engine.dispose()
    assert ours == {*metadata.tables, VERSION_TABLE}
    assert all(name.startswith("barrier_") for name in ours)


def test_a_migration_that_fails_leaves_nothing_behind(url: str) -> None:
    run(url, "CREATE TABLE barrier_revision (in_the_way TEXT)")
    with pytest.raises(Exception, match="barrier_revision"):
        migrate(url)
    engine = create_engine(url)
    assert [name for name in inspect(engine).get_table_names() if name.startswith("barrier_")] == ["barrier_revision"]
    engine.dispose()


# --- what cannot be used ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("geheim", "text that is none"),
        ("mysql://me:geheim@host/db", "found mysql"),
        ("sqlite://", "no path"),
        ("sqlite:///:memory:", ":memory:"),
    ],
)
def test_a_url_that_is_none_of_ours_is_refused_without_its_secrets(url: str, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found) as refused:
        MetaService(url)
    assert "geheim" not in str(refused.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    meta = MetaService(f"sqlite:///{tmp_path}/nowhere/barrier.db")
    with pytest.raises(ConfigurationError, match=f"expected a folder {tmp_path}/nowhere"):
        meta.check()


def test_constructing_needs_no_database_and_using_it_says_so_without_the_password() -> None:
    meta = MetaService("postgresql://me:geheim@127.0.0.1:1/barrier?application_name=x")
    assert meta.url == "postgresql+psycopg://me@127.0.0.1:1/barrier"
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1") as unavailable:
        meta.check()
    assert "geheim" not in str(unavailable.value)
    meta.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "barrier.db").write_text("no database at all, but long enough to be taken for a damaged header" * 20)
    meta = MetaService(f"sqlite:///{tmp_path}/barrier.db")
    with pytest.raises(StoreUnavailableError, match="not a database"):
        meta.check()
    meta.close()


# --- one file for several ---------------------------------------------------------------------------


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[MetaService]:
    """A MetaService that waits for the write lock only briefly."""
    meta = MetaService(f"sqlite:///{tmp_path}/barrier.db?timeout=0.01")
    meta.check()
    yield meta
    meta.close()


def test_readers_go_on_while_somebody_writes_and_writers_get_a_clear_error(
    impatient: MetaService, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "barrier.db", isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        assert impatient.topologies.names() == []
        with pytest.raises(StoreUnavailableError, match="locked"):
            impatient.topologies.register("shopping", "dag", JOBS, "test")
        somebody.execute("ROLLBACK")
    assert impatient.topologies.register("shopping", "dag", JOBS, "test") == 1


@pytest.mark.kills("write-lock-first")
def test_the_write_lock_is_held_from_the_first_look_to_the_end(impatient: MetaService, tmp_path: Path) -> None:
    impatient.topologies.register("shopping", "dag", JOBS, "test")
    database = Database(f"sqlite:///{tmp_path}/barrier.db")
    database.open()
    with database.transaction(write=True), pytest.raises(StoreUnavailableError):
        impatient.topologies.register("shopping", "dag", [], "test")
    with database.transaction(write=False):
        assert impatient.topologies.register("shopping", "dag", JOBS[:1], "test") == 2
    database.close()


def test_wal_and_foreign_keys_are_on(impatient: MetaService, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "barrier.db")) as somebody:
        assert somebody.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database = Database(f"sqlite:///{tmp_path}/barrier.db")
    assert database.read(lambda c: c.exec_driver_sql("PRAGMA foreign_keys").scalar_one()) == 1
    database.close()


@pytest.mark.kills("no-empty-metaservice")
def test_looking_makes_no_database(tmp_path: Path) -> None:
    file = tmp_path / "barrier.db"
    for _ in ("there is nothing", "the catalog has made its own in the same file"):
        with pytest.raises(MetaServiceMissingError, match=r"made when a DAG opens its first barrier"):
            MetaService(f"sqlite:///{file}", new=False).topologies.names()
        if not file.exists():
            run(f"sqlite:///{file}", "CREATE TABLE iceberg_tables (table_name TEXT)")
        with closing(sqlite3.connect(file)) as there:
            assert there.execute("SELECT name FROM sqlite_master").fetchall() == [("iceberg_tables",)]
