"""From a connection of the type `barrier`, and one of the Iceberg provider's type, to a catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_barrier.hooks.barrier import BarrierHook, settings_of
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.provider import get_provider_info
from airflow_barrier.tables import PUBLISHES
from tests.support.object_store import ObjectStore
from tests.support.rest_catalog import RestServer

META = "postgresql://barrier@db/barrier"
CATALOG = "https://catalog.example.com/api"
SECRET = "planted-secret"


def barrier(**extras: Any) -> Connection:
    extras = {"warehouse": "s3://lake/", "metaservice_url": META, **extras}
    return Connection(conn_id="barrier_test", conn_type="barrier", extra=json.dumps(extras))


def iceberg(host: str | None = CATALOG, conn_type: str = "iceberg", **more: Any) -> Connection:
    login, password = more.pop("login", None), more.pop("password", None)
    return Connection(
        conn_id="lake", conn_type=conn_type, host=host, login=login, password=password, extra=json.dumps(more)
    )


def test_address_credentials_and_storage_come_from_the_icebergs_connection() -> None:
    settings = settings_of(
        barrier(iceberg_conn_id="lake", catalog_publish="atomic"),
        iceberg(
            f"{CATALOG}/",
            login="client",
            password=SECRET,
            warehouse="prod",
            scope="PRINCIPAL_ROLE:ALL",
            **{
                "s3.region": "eu-central-1",
                "s3.secret-access-key": SECRET,
                "rest.sigv4-enabled": False,
                "type": "rest",
            },
        ),
    )
    assert (settings.catalog_uri, settings.catalog_publish) == (CATALOG, "atomic")
    assert dict(settings.catalog_properties) == {
        "credential": f"client:{SECRET}",
        "warehouse": "prod",
        "scope": "PRINCIPAL_ROLE:ALL",
        "s3.region": "eu-central-1",
        "s3.secret-access-key": SECRET,
        "rest.sigv4-enabled": "false",
    }
    assert SECRET not in repr(settings)
    assert settings_of(barrier(iceberg_conn_id="lake")).metaservice_url == META, (
        "who asks the MetaService needs no other"
    )


def test_an_sql_catalog_takes_the_storage_only() -> None:
    settings = settings_of(barrier(iceberg_conn_id="lake"), iceberg(None, **{"s3.endpoint": "http://store:9000"}))
    assert settings.catalog_uri == META
    assert settings.catalog_properties == (("s3.endpoint", "http://store:9000"),)


@pytest.mark.parametrize(
    ("extras", "connection", "message"),
    [
        (
            {},
            iceberg(**{"s3.region": "x", "py-io-impl": SECRET}),
            "connection lake: unknown extra 'py-io-impl'; expected",
        ),
        ({}, iceberg(credential=f"me:{SECRET}"), "found the extra 'credential', which it shows; move it there"),
        ({}, iceberg(**{"header.x": {"a": SECRET}}), "expected texts, found lists or objects in 'header.x'"),
        ({}, iceberg(token=f"{SECRET}\n"), "without line breaks and outer blanks.*found others in 'token'; "),
        ({}, iceberg(**{"header.x": f"{SECRET}\r\nx", "token": f"{SECRET}…"}), "others in 'header.x', 'token'; "),
        ({}, iceberg(conn_type="http"), "connection lake: expected the type iceberg, found http"),
        ({}, iceberg(type="dynamodb"), "expected a REST catalog .* or AWS Glue .*found 'dynamodb'"),
        ({}, iceberg(type="glue"), "begin with glue:// in the field host.*as in glue://eu-central-1"),
        ({}, iceberg("thrift://m:9083", type="hive", login="me", password=SECRET), "no login and password with a Hive"),
        (
            {},
            iceberg("glue://eu-central-1", type="glue", **{"client.secret-access-key": SECRET}),
            "found the extra 'client.secret-access-key', which it shows",
        ),
        ({}, iceberg("catalog.example.com"), "begin with http:// or https://"),
        ({}, iceberg(f"https://user:{SECRET}@catalog.example.com"), "expected a URL without password"),
        ({}, iceberg(password=SECRET), "expected both, login"),
        ({"catalog_uri": CATALOG}, iceberg(), "expected the catalog's address once"),
        (
            {"catalog_uri": CATALOG, "catalog_password": SECRET},
            None,
            "found it with a REST catalog, whose credentials",
        ),
        ({"catalog_uri": CATALOG, "catalog_publish": "at once"}, None, "expected one of roll-forward, atomic"),
        ({"catalog_publish": "roll-forward"}, iceberg(None), "which publishes all tables in one transaction"),
        ({"catalog_uri": META, "catalog_publish": "atomic"}, None, "which publishes all tables in one transaction"),
    ],
)
def test_what_is_refused_is_named_and_not_shown(
    extras: dict[str, str], connection: Connection | None, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        settings_of(barrier(**extras), connection)
    assert SECRET not in str(refused.value)


def test_testing_a_connection_says_which_catalog_and_how_it_publishes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rest_server: RestServer, s3: ObjectStore
) -> None:
    def told(host: str, **extras: Any) -> tuple[bool, str]:
        extras = {"warehouse": str(tmp_path), "iceberg_conn_id": "lake", **extras}
        monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps({"conn_type": "barrier", "extra": extras}))
        monkeypatch.setenv(
            "AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "host": host, "extra": s3.properties})
        )
        return BarrierHook("barrier_test").test_connection()

    good, said = told(rest_server.uri)
    assert good, said
    assert f"Iceberg REST catalog at {rest_server.uri}" in said
    assert said.endswith("published table by table.")
    said = told(rest_server.uri, catalog_publish="atomic")[1]
    assert said.endswith("published in one step for all tables (tested when a barrier opens).")
    bad, said = told(s3.endpoint)  # a server, but no catalog
    assert not bad
    assert f"REST catalog at {s3.endpoint}" in said
    assert s3.properties["s3.secret-access-key"] not in said


def test_the_connection_form_offers_what_can_be_chosen() -> None:
    (form,) = get_provider_info()["connection-types"]
    offered = form["conn-fields"]["catalog_publish"]["schema"]["enum"]
    assert offered == [None, *PUBLISHES], "provider.py may import nothing of ours"
