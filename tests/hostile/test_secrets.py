"""Below Airflow, where nothing masks: passwords are in no log, file, row, repr, error or traceback of ours."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from psycopg import sql
from sqlalchemy import make_url

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.deployment import Deployment, with_password
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.hooks.barrier import BarrierHook, settings_of
from airflow_barrier.metaservice.migrate import check, migrate
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    BarrierError,
    CatalogUnavailableError,
    ConfigurationError,
    SchemaVersionError,
    StoreUnavailableError,
)
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.postgresql import USER, PostgreSQL, without_password
from tests.support.shop import make_shop
from tests.support.vault import META, PLANTED, WRONG, leaks

WORD = PLANTED.decode()


@pytest.fixture
def url(postgresql: PostgreSQL) -> Iterator[str]:
    """A database whose user has the planted password; without it."""
    role = sql.Identifier("planted")
    with postgresql.database() as owned:
        postgresql.run(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(role, sql.Literal(META), sql.Identifier(USER))
        )
        yield without_password(owned).replace(f"{USER}@", "planted@", 1)
        database = make_url(owned).database
        postgresql.run(sql.SQL("DROP OWNED BY {}").format(role), database=database or "")
    postgresql.run(sql.SQL("DROP ROLE {}").format(role))


def refusal(settings: Settings) -> BarrierError | None:
    try:
        Deployment.connect(settings).close()
    except BarrierError as error:
        return error
    return None


def printed(error: BaseException) -> str:
    """All that a log, a task's XCom or a person's terminal may get of an error."""
    chain: list[BaseException] = [error]
    while following := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
        chain.append(following)
    said = [f"{text}" for one in chain for text in (str(one), repr(one), one.args)]
    return "\n".join([*said, *traceback.format_exception(error)])


def test_a_barrier_from_its_opening_to_its_commit(
    url: str, tmp_path: Path, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(url, url, str(tmp_path / "warehouse"), metaservice_password=META, catalog_password=META)
    with caplog.at_level(logging.DEBUG):
        shop = make_shop(settings)
        barrier = shop.open(1)
        shop.process_all(barrier, [{"amount": 1, "price": 2}])
        shop.commit(barrier)
    deployment = shop.deployment
    catalog = deployment.tables.catalog
    shown: tuple[Any, ...] = (
        settings,
        BarrierHook("planted"),
        deployment,
        deployment.meta,
        deployment.meta.url,
        deployment.meta.check(),
        deployment.tables,
        deployment.tables.database_url,
        deployment.tables.check(),
        catalog,
        catalog.load_table("shop.shopping"),
        catalog.engine,
    )
    assert [one for one in shown if WORD in f"{one!r} {one}"] == []
    assert len(caplog.records) > 10
    assert WORD not in caplog.text
    assert WORD not in " ".join(repr(record.args) for record in caplog.records)
    found, files = leaks(tmp_path)
    assert found == []
    assert files > 10
    database = make_url(url).database or ""
    tables = postgresql.run(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'", database=database
    )
    rows = [row for (table,) in tables for row in postgresql.run(f'SELECT t::text FROM "{table}" t', database=database)]
    assert len(rows) > 20
    assert [row for row in rows if WORD in row[0]] == []
    deployment.close()


@pytest.mark.parametrize("what", ["password", "host", "database"])
def test_errors_of_connections_that_do_not_work(url: str, tmp_path: Path, what: str) -> None:
    wrong = {
        "password": with_password(url, WRONG),
        "host": with_password(str(make_url(url).set(port=1)), META),
        "database": with_password(f"{url}_nowhere", META),
    }[what]
    meta = MetaService(wrong)
    tables = IcebergTables.connect(wrong, str(tmp_path))
    for call, error in (
        (meta.check, StoreUnavailableError),
        (lambda: migrate(wrong), StoreUnavailableError),
        (lambda: check(wrong), StoreUnavailableError),
        (tables.check, CatalogUnavailableError),
        (lambda: tables.mains(["shop.a"]), CatalogUnavailableError),
    ):
        with pytest.raises(error) as caught:
            call()
        assert WORD not in printed(caught.value)
        assert "expected" in str(caught.value)
    with pytest.raises(Exception, match="connection") as of_the_library:
        tables.load("shop.a")
    assert WORD not in printed(of_the_library.value)
    meta.close()
    tables.close()


def test_errors_of_migrations_that_fail(url: str, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture) -> None:
    with postgresql.database(migrated=False) as empty:
        there = str(make_url(empty).set(username="planted", password=None))
        opened = with_password(there, META)
        with pytest.raises(SchemaVersionError) as old:
            check(opened)
        postgresql.run("CREATE TABLE barrier_topology (name TEXT)", database=empty)
        with caplog.at_level(logging.DEBUG), pytest.raises(Exception, match="barrier_topology") as failed:
            migrate(opened)
    assert WORD not in printed(old.value)
    assert WORD not in printed(failed.value)
    assert WORD not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://barrier:{WORD}@db/barrier",
        f"postgresql://db/barrier?password={WORD}",
        f"postgresql://db/barrier?sslpassword={WORD}",
        f"postgresql://barrier@db:{WORD}/barrier",
        f"{WORD}",
        f"postgresql//barrier:{WORD}@db/barrier",
        f"mysql://barrier:{WORD}@db/barrier",
        f"nonesuch://barrier:{WORD}@db/barrier",
    ],
)
def test_passwords_in_urls(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def connection(**extras: str) -> Connection:
        return Connection(conn_id="c", conn_type="barrier", extra=json.dumps({"warehouse": str(tmp_path), **extras}))

    for extra in ("metaservice_url", "catalog_uri"):
        with pytest.raises(ConfigurationError) as caught:
            settings_of(connection(**{extra: url}))
        assert WORD not in printed(caught.value)
    # settings that no connection has been through
    settings = Settings(url, url, str(tmp_path), metaservice_password="x", catalog_password="x")
    refused = refusal(settings)
    assert refused is None or WORD not in printed(refused)
    assert WORD not in repr(Settings(url, url, str(tmp_path)))
    assert main(["status", "--metaservice-url", url]) == 1
    said = capsys.readouterr()
    assert WORD not in said.out + said.err
    assert said.err.startswith("airflow-barrier: ")
