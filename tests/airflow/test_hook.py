"""From an Airflow connection to a deployment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection as AirflowConnection
from airflow.models.team import Team
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import Connection
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.hooks.barrier import BarrierHook, settings_of
from airflow_barrier.protocol.errors import ConfigurationError, MetaServiceMissingError, SourceDataError
from airflow_barrier.provider import CONNECTION_FIELDS, get_provider_info
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import Files
from tests.sources.landing import Cutter
from tests.support.waiting import patience


def connection(password: str | None = None, conn_type: str = "barrier", **extras: Any) -> Connection:
    return Connection(conn_id="barrier_test", conn_type=conn_type, password=password, extra=json.dumps(extras))


def test_a_warehouse_alone_is_the_embedded_default() -> None:
    settings = settings_of(connection(warehouse="/data/warehouse"))
    assert settings.metaservice_url == settings.catalog_uri == "sqlite:////data/warehouse/barrier.db"
    assert settings.warehouse == "/data/warehouse"
    assert settings_of(connection(warehouse="file:///data/warehouse")).metaservice_url == settings.metaservice_url


def test_one_database_for_both_unless_the_catalog_has_its_own() -> None:
    shared = settings_of(
        connection("geheim", warehouse="s3://lake/", metaservice_url="postgresql://barrier@db/barrier")
    )
    assert shared.catalog_uri == shared.metaservice_url
    assert shared.catalog_password == shared.metaservice_password == "geheim"
    assert "geheim" not in repr(shared)
    apart = settings_of(
        connection(
            "geheim",
            warehouse="s3://lake/",
            metaservice_url="postgresql://barrier@db/barrier",
            catalog_uri="postgresql://iceberg@db/lake",
            catalog_password="anders",
            max_open_barriers="7",
            tag_policy="every=10",
            catalog_name="prod",
            spark_catalog="prod_in_spark",
        )
    )
    assert (apart.metaservice_password, apart.catalog_password) == ("geheim", "anders")
    assert (apart.max_open_barriers, apart.tag_policy) == (7, "every=10")
    assert (apart.catalog_name, apart.spark_catalog) == ("prod", "prod_in_spark")


def test_a_connection_that_nobody_has_defined() -> None:
    """Airflow says the same of one that it cannot reach: so a retry may help, and the error stays Airflow's."""
    for ask in (BarrierHook("nobody").get_deployment, BarrierHook("nobody").get_meta_service):
        with pytest.raises(AirflowNotFoundException, match="airflow connections add nobody --conn-type barrier"):
            ask()


def test_a_script_has_the_connections_that_airflow_has(tmp_path: Path) -> None:
    """As after `airflow connections add`: those in its database, too, and not only those of the environment."""
    url = f"sqlite:///{tmp_path}/airflow.db"
    engine = create_engine(url)
    AirflowConnection.metadata.create_all(engine, [Team.__table__, AirflowConnection.__table__])
    with Session(engine) as session:
        extra = json.dumps({"warehouse": str(tmp_path)})
        session.add(AirflowConnection(conn_id="barrier_default", conn_type="barrier", extra=extra))
        session.commit()
    engine.dispose()
    script = "from airflow_barrier.hooks.barrier import BarrierHook\nprint(BarrierHook().get_settings().warehouse)"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_CONN", "_AIRFLOW"))},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__CORE__FERNET_KEY": os.environ.get("AIRFLOW__CORE__FERNET_KEY", ""),
    }
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path)


@pytest.mark.parametrize("written", [["s3://in/shop/", "/in"], "s3://in/shop/\n /in \n"])
def test_where_sources_may_lie(written: object) -> None:
    settings = settings_of(connection(warehouse="/w", source_roots=written))
    assert settings.source_roots == ("s3://in/shop/", "/in")
    assert settings_of(connection(warehouse="/w")).source_roots == ()


def test_how_much_of_a_source_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extras = {"max_epoch_files": "2", "max_unpacked_bytes": 2**40, "max_line_characters": 10}
    assert settings_of(connection(warehouse="/w", **extras)).limits == Limits(2, 2**40, 10)
    assert settings_of(connection(warehouse="/w")).limits == Limits()
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.parquet").write_bytes(b"PAR1")
    described = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path), **extras}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_LIMITS", json.dumps(described))
    deployment = BarrierHook("barrier_limits").get_deployment(new=True)
    source = deployment.source_of(Files(str(tmp_path / "in"), schema="n BIGINT").declare())
    with pytest.raises(SourceDataError, match=r"expected 2 new files.*found 3"):
        Cutter(source).cut(datetime.now(timezone.utc))
    deployment.close()


def test_empty_fields_of_the_form_are_not_there() -> None:
    filled = settings_of(connection(warehouse="/data/warehouse", metaservice_url="", catalog_uri=None))
    assert filled == settings_of(connection(warehouse="/data/warehouse"))


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"warehouse": "/w", "warehous": "/w"}, "unknown extra 'warehous'; expected some of: catalog_name"),
        ({}, "expected the extra 'warehouse'.*found none"),
        ({"warehouse": "s3://lake/"}, "expected the extra 'metaservice_url' beside the warehouse s3://lake/"),
        ({"warehouse": "relative"}, "given by its absolute path"),
        ({"warehouse": "/w", "max_open_barriers": "many"}, "expected a whole number, found 'many'"),
        ({"warehouse": "/w", "max_open_barriers": 0}, "connection barrier_test: max_open_barriers: expected 1 or more"),
        ({"warehouse": "/w", "max_epoch_files": 0}, "connection barrier_test: max_epoch_files: expected 1 or more"),
        ({"warehouse": "/w", "max_line_characters": "long"}, "max_line_characters: expected a whole number, found 'lo"),
        ({"warehouse": "/w", "source_roots": "http://host/"}, "source_roots: 'http://host/': expected a storage"),
        ({"warehouse": "/w", "source_roots": {"in": 1}}, "source_roots: expected a list of folders.*found dict"),
        ({"warehouse": "/w", "tag_policy": "some"}, "connection barrier_test: tag policy 'some'"),
    ],
)
def test_what_is_refused_is_named(extras: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings_of(connection(**extras))


def test_another_type_of_connection_is_not_looked_into() -> None:
    with pytest.raises(ConfigurationError, match="expected the type barrier, found http"):
        settings_of(connection(conn_type="http", token="geheim"))


def test_the_form_belongs_to_the_hook() -> None:
    (declared,) = get_provider_info()["connection-types"]
    assert declared["hook-class-name"] == f"{BarrierHook.__module__}.{BarrierHook.__qualname__}"


def test_testing_a_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def told(**extras: Any) -> tuple[bool, str]:
        monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps({"conn_type": "barrier", "extra": extras}))
        return BarrierHook("barrier_test").test_connection()

    Deployment.connect(Settings.embedded(str(tmp_path))).meta.open()
    good, said = told(warehouse=str(tmp_path))
    assert good, said
    assert "0 topologies" in said
    assert "Iceberg catalog lake" in said
    assert told(warehouse=str(tmp_path), nonsense=1) == (
        False,
        "connection barrier_test: unknown extra 'nonsense'; expected some of: " + ", ".join(sorted(CONNECTION_FIELDS)),
    )
    (tmp_path / "file").touch()
    bad, said = told(warehouse="/w", metaservice_url=f"sqlite:///{tmp_path}/file/barrier.db")
    assert not bad
    assert f"{tmp_path}/file/barrier.db" in said


def test_looking_makes_no_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a host that does not see the folder it would be an empty one, in which nothing ever happens."""
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps(extras))
    hook = BarrierHook("barrier_test")
    for look in (hook.get_deployment, lambda: hook.get_meta_service().topologies.names()):
        with pytest.raises(MetaServiceMissingError, match=r"made when a DAG opens its first barrier.*does not see"):
            look()
    there, said = hook.test_connection()
    assert there
    assert "not there yet, the first barrier makes it. If one was opened already, this host does not see" in said
    assert list(tmp_path.iterdir()) == []
    hook.get_deployment(new=True).close()
    assert hook.get_meta_service().topologies.names() == []


@pytest.mark.parametrize(("executor", "warned"), [("LocalExecutor", False), ("LocalExecutor,CeleryExecutor", True)])
def test_a_file_beside_workers_on_other_hosts_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executor: str, warned: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps(extras))
    assert ("runs tasks on others" in BarrierHook("barrier_test").test_connection()[1]) is warned


def test_deployments_are_connected_once_per_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps(extras))
    hook = BarrierHook("barrier_test")
    hook.get_deployment(new=True).close()
    assert hook.get_deployment() is BarrierHook("barrier_test").get_deployment()
    assert hook.get_meta_service() is BarrierHook("barrier_test").get_meta_service()
