"""What a deployment says before anything is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import URL, make_url

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import CatalogRefusedError, ConfigurationError
from airflow_barrier.protocol.states import BarrierState
from tests.support.deployments import settings_on
from tests.support.postgresql import USER, PostgreSQL
from tests.support.shop import make_shop

ROWS = [{"amount": 1, "price": 2}]


def test_a_missing_pyiceberg_is_said_at_once_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_barrier.coordinator.deployment.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pyiceberg .*found none; .*airflow-provider-barrier\[iceberg\]"):
        Deployment.connect(Settings.embedded(str(tmp_path)))


# --- one database or two ------------------------------------------------------------------------------


def on(url: str, settings: Settings, **changes: str) -> Settings:
    """The catalog by another URL than the MetaService's, of the same database."""
    return replace(settings, catalog_uri=url, **changes)


def test_one_file_by_two_names_is_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "warehouse")
    settings = Settings.embedded(str(tmp_path / "warehouse"))
    monkeypatch.chdir(tmp_path)
    for same in (f"sqlite:///{tmp_path}/link/barrier.db", "sqlite:///warehouse/../link/barrier.db"):
        with closing(make_shop(on(same, settings)).deployment) as deployment:
            assert deployment.shares_database
    with closing(make_shop(on(f"sqlite:///{tmp_path}/catalog.db", settings)).deployment) as deployment:
        assert not deployment.shares_database


@pytest.fixture
def settings(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Settings]:
    with settings_on("postgresql", tmp_path, postgresql) as found:
        yield found


@pytest.mark.parametrize("by_query", [True, False])
def test_one_host_by_two_names_is_one_database(settings: Settings, by_query: bool) -> None:
    url = make_url(settings.metaservice_url)
    where = {"host": "localhost", "port": str(url.port)}
    url = (
        URL.create(url.drivername, url.username, None, None, None, url.database, where)
        if by_query
        else url.set(host="localhost")
    )
    shop = make_shop(on(url.render_as_string(), settings))
    with closing(shop.deployment) as deployment:
        assert deployment.shares_database
        shop.process_all(barrier := shop.open(1), ROWS)
        assert shop.commit(barrier).barrier.state is BarrierState.COMMIT


@pytest.mark.parametrize("granted", [True, False])
def test_another_user_of_one_database_publishes_in_one_transaction_if_it_may(
    settings: Settings, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture, granted: bool
) -> None:
    role = f"spark_{uuid4().hex}"
    name = str(make_url(settings.metaservice_url).database)
    postgresql.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'spark'",
        f"GRANT ALL ON SCHEMA public TO {role}",
        database=name,
    )
    theirs = make_url(settings.metaservice_url).set(username=role).render_as_string()
    shop = make_shop(on(theirs, settings, catalog_password="spark"))
    if granted:
        postgresql.run(f"GRANT SELECT, UPDATE ON iceberg_tables TO {USER}", database=name)
    with closing(shop.deployment) as deployment:
        shop.process_all(barrier := shop.open(1), ROWS)
        assert shop.commit(barrier).barrier.state is BarrierState.COMMIT
        assert deployment.shares_database is granted
    warned = any("found that it may not. So tables are published before COMMIT" in said for said in caplog.messages)
    assert warned is not granted


def test_a_table_of_the_same_name_in_another_schema_is_another_catalog(
    settings: Settings, postgresql: PostgreSQL
) -> None:
    postgresql.run(
        "CREATE SCHEMA lake AUTHORIZATION barrier", database=str(make_url(settings.metaservice_url).database)
    )
    elsewhere = make_url(settings.metaservice_url).set(query={"options": "-csearch_path=lake"})
    with closing(make_shop(settings).deployment) as here:
        assert here.shares_database
    with closing(make_shop(on(elsewhere.render_as_string(), settings)).deployment) as there:
        assert not there.shares_database


def test_rights_that_are_taken_away_are_told_and_block_no_barrier(settings: Settings, postgresql: PostgreSQL) -> None:
    name = str(make_url(settings.metaservice_url).database)
    shop = make_shop(settings)
    with closing(shop.deployment) as deployment:
        assert deployment.shares_database
        shop.process_all(barrier := shop.open(1), ROWS)
        postgresql.run(
            "ALTER TABLE iceberg_tables OWNER TO admin", f"GRANT SELECT ON iceberg_tables TO {USER}", database=name
        )
        with pytest.raises(CatalogRefusedError, match=r"permission denied.*GRANT SELECT, UPDATE"):
            shop.commit(barrier)
        assert deployment.meta.barriers.get("shopping", 1).state is BarrierState.COMMITTING
        postgresql.run(f"GRANT UPDATE ON iceberg_tables TO {USER}", database=name)
        assert shop.commit(barrier).barrier.state is BarrierState.COMMIT
