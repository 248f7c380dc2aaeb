"""Schemas of a topic's values from a real schema registry, in Confluent's wire format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Ready
from airflow_barrier.hooks.credentials import credentials_of
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources import source_of
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.kafka.registry import _address
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.spec import EpochSpec
from tests.sources.test_kafka_records import long, text
from tests.support.cases import cases
from tests.support.kafka import PASSWORD
from tests.support.kafka import Kafka as Broker
from tests.support.ports import free_port
from tests.support.registry import Registry, locked
from tests.support.shop import JOBS, SHOPPING, Shop, make_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# all in one process, and one registry for them
pytestmark = pytest.mark.usefixtures("spark_server")


def record(*fields: tuple[Any, ...]) -> dict[str, Any]:
    """Of (name, type) or (name, type, default)."""
    named = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return {"type": "record", "name": "purchase", "fields": named}


ID = ("id", "long")
V1 = record(ID)
V2 = record(ID, ("shop", "string", "none"))
V3 = record(ID, ("shop", "string", "none"), ("price", "int", 0))


def source(topic: str, **settings: Any) -> Kafka:
    return Kafka(topic, name="purchases", format="avro", avro_schema=json.dumps(V2), registry="schemas", **settings)


def written(number: int, value: bytes) -> dict[str, Any]:
    return {"value": b"\0" + number.to_bytes(4, "big") + value}


@pytest.fixture
def shop(kafka: Broker, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A deployment that enters ``kafka`` and ``registry`` by Airflow's connections."""
    at = registry.credentials()
    connections = {
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": dict(kafka.credentials.extra)},
        "SCHEMAS": {"conn_type": "http", "host": at.host, "port": at.port},
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    shop = make_shop(Settings.embedded(str(tmp_path)))
    shop.deployment = replace(shop.deployment, credentials=credentials_of)
    yield shop
    shop.deployment.close()


def read(session: SparkSession, ready: Ready) -> list[tuple[Any, ...]]:
    """By a driver that is told this."""
    told = Epoch(session, EpochSpec.loads(ready.spec.dumps("00"), key="00"))
    return sorted(map(tuple, told.source("purchases").collect()))


@pytest.mark.drawn("topics in Spark")
@pytest.mark.touches("sources/kafka/__init__.py", "sources/messages/records.py", "sources/kafka/registry.py")
def test_an_epoch_of_several_versions(kafka: Broker, registry: Registry, shop: Shop, session: SparkSession) -> None:
    """The job's columns stay what they are, and what is registered after the barrier opened the next attempt finds."""
    topic = kafka.topic()
    subject = f"{topic}-value"
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source(topic).declare(),))
    first, second = registry.register(subject, V1), registry.register(subject, V2)
    third = registry.register(f"{topic}-tried", V3)  # a schema has one id in all subjects
    values = written(first, long(1)), written(second, long(2) + text("west"))
    kafka.send(topic, *values, written(third, long(3) + text("east") + long(9)))
    barrier = shop.open(1, Fragment("shopping", "shopping_dag", (load, *JOBS[1:])))
    before = shop.begin(barrier, "load")
    with pytest.raises(Exception, match=f"neither in writer_schemas nor in the registry, {third}"):
        read(session, before)
    assert registry.register(subject, V3) == third
    after = shop.begin(barrier, "load", "cleared")
    assert read(session, after) == [(1, "none"), (2, "west"), (3, "east")]
    with pytest.raises(Exception, match=f"neither in writer_schemas nor in the registry, {third}"):
        read(session, before)


def schemas(registry: Registry, credentials: Credentials | None = None, **settings: Any) -> dict[str, str]:
    """By id, as an attempt is told them."""
    entered = source("t", **settings).within(Limits(), Credentials("kafka"), credentials or registry.credentials())
    told = source_of(entered.for_driver()).declare().options
    assert told["registry"] is None
    found: dict[str, str] = told["writer_schemas"]
    return found


def test_of_a_subject_by_its_name(registry: Registry) -> None:
    """Also of one whose oldest version was deleted: records of that may be left."""
    subject = f"shop/{uuid4()} ü"
    numbers = [registry.register(subject, schema) for schema in (V1, V2)]
    registry.delete(subject, 1)
    found = schemas(registry, subject=subject)
    assert {int(number): json.loads(text) for number, text in found.items()} == dict(
        zip(numbers, (V1, V2), strict=True)
    )


def test_who_looks_into_the_source_looks_into_the_registry(kafka: Broker, registry: Registry) -> None:
    """As `topology validate` does, and a job that is about to join."""
    no_catalog: Any = None
    topic = kafka.topic()
    entered = source(topic).within(Limits(), kafka.credentials, registry.credentials())
    with pytest.raises(SourceDataError, match=f"expected subject {topic}-value in the schema registry .*, found none"):
        entered.look(no_catalog)
    registry.register(f"{topic}-value", V1)
    entered.look(no_catalog)


def test_with_a_login(registry: Registry) -> None:
    subject = str(uuid4())
    number = registry.register(subject, V1)
    with locked(registry, "etl", PASSWORD) as gate:
        assert list(schemas(gate, gate.credentials("etl", PASSWORD), subject=subject)) == [str(number)]
        for login in ((None, None), ("etl", f"{PASSWORD}2")):
            with pytest.raises(SourceUnavailableError, match=r"found: 401 Unauthorized; see .* password") as refused:
                schemas(gate, gate.credentials(*login), subject=subject)
            assert PASSWORD not in str(refused.value)


@pytest.mark.kills("schemas-of-a-subject", "schemas-that-can-be-read")
def test_what_a_registry_has_not(registry: Registry) -> None:
    name = str(uuid4())
    registry.register(f"{name}-proto", 'syntax = "proto3"; message A { string a = 1; }', "PROTOBUF")
    json_schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    registry.register(f"{name}-json", json_schema, "JSON")
    registry.register(f"{name}-shop", {"type": "enum", "name": "shop", "symbols": ["WEST"]})
    reference = {"name": "shop", "subject": f"{name}-shop", "version": 1}
    registry.register(f"{name}-part", record(ID, ("shop", "shop")), references=[reference])
    registry.register(f"{name}-plain", '"string"')
    with cases() as case:
        for kind, said in {
            "none": "in the schema registry at http://.*, found none; register the schema",
            "proto": "each whole by itself, found version 1 of type PROTOBUF; name",
            "json": "each whole by itself, found version 1 of type JSON; name",
            "part": "each whole by itself, found version 1 with references to shop; name",
            "plain": r"to be a record with fields, .*, found '\"string\"'",
        }.items():
            with case(kind), pytest.raises(SourceDataError, match=f"subject {name}-{kind} ?.*{said}"):
                schemas(registry, subject=f"{name}-{kind}")


def test_what_is_no_registry(registry: Registry) -> None:
    right = registry.credentials()
    host, port = str(right.host), right.port
    at = {
        "nobody": (replace(right, port=free_port()), SourceUnavailableError, "found: .*refused; see that it runs"),
        "TLS": (
            replace(right, host=host.replace("http:", "https:")),
            SourceUnavailableError,
            r"at https://127.0.0.1:\d+/apis/ccompat/v7, found: .*SSL",
        ),
        "a path": (replace(right, host="127.0.0.1"), ConfigurationError, "Confluent's API at .*, found 404 Not Found"),
        "a page": (replace(right, host="127.0.0.1/apis"), ConfigurationError, "correct the connection's host"),
        "none": (replace(right, host=None), ConfigurationError, "expected the schema registry's address as its host"),
        "a file": (replace(right, host="file:///etc"), ConfigurationError, "address as its host"),
        "a port": (replace(right, host="http://127.0.0.1:x", port=port), ConfigurationError, "address as its host"),
        "a login": (
            replace(right, host=f"http://etl:geheim@127.0.0.1:{port}"),
            ConfigurationError,
            "its login and pass",
        ),
    }
    with cases() as case:
        for name, (credentials, error, said) in at.items():
            with case(name), pytest.raises(error, match=said) as found:
                schemas(registry, credentials)
            assert "geheim" not in str(found.value)
            assert str(found.value).startswith("source purchases: connection registry_default: ")


def test_where_it_is() -> None:
    """As Airflow's other connections of its type have it."""
    with cases() as case:
        for host, schema, port, expected in (
            ("registry", None, None, "http://registry"),
            ("registry", "https", 8081, "https://registry:8081"),
            ("https://registry", None, 8081, "https://registry:8081"),
            ("https://registry:443/api/", "http", 8081, "https://registry:443/api"),
            ("http://[::1]/api", None, 8081, "http://[::1]:8081/api"),
        ):
            with case(host):
                assert _address("", Credentials("c", host, port, schema=schema)) == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"writer_schemas": {7: json.dumps(V1)}}, "registry is for format='avro' without writer_schemas"),
        ({"format": "binary", "avro_schema": ""}, "registry is for format='avro' without writer_schemas"),
        ({"registry": None, "subject": "s"}, "name its connection by registry="),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Kafka("t", **{"format": "avro", "avro_schema": json.dumps(V2), "registry": "schemas", **settings})


def test_a_declaration_is_the_source_again() -> None:
    declared = source("t", subject="s")
    assert source_of(declared.declare()) == declared
    assert declared.connections == [("kafka_default", "kafka"), ("schemas", "http")]
