"""Kafka by TLS, with a password or with a certificate: what is cut, what Spark reads, and what a sink delivers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.errors import ConfigurationError, SinkUnavailableError, SourceUnavailableError
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.systems.kafka_settings import spark_settings
from tests.sinks.behaviour import CHANGES, catch_up, check
from tests.sinks.kafka_topics import Topics
from tests.sources.landing import Cutter, day
from tests.support.cases import cases
from tests.support.certificates import Authority
from tests.support.kafka import PASSWORD, USER
from tests.support.kafka import Kafka as Broker
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def as_text(credentials: Credentials) -> Credentials:
    """The same with the files' texts, as workers without files have them."""
    read = {
        name.replace(".location", ".pem"): Path(value).read_text() if name.endswith(".location") else value
        for name, value in credentials.extra.items()
    }
    return replace(credentials, extra=read)


def entrances(broker: Broker) -> dict[str, Credentials]:
    return {
        "a password": broker.tls_credentials,
        "a certificate": broker.certificate_credentials,
        "texts": as_text(broker.certificate_credentials),
    }


@pytest.mark.drawn("topics in Spark")
@pytest.mark.touches("systems/kafka_settings.py", "sources/kafka/log.py")
def test_what_is_cut_and_what_spark_reads(kafka: Broker, session: SparkSession, spark_ui: str) -> None:
    topic = kafka.topic()
    kafka.allow(USER, AclOperation.READ, topic)
    kafka.send(topic, {"value": b"seen"})
    key = Path(kafka.certificate_credentials.extra["ssl.key.location"]).read_text().split("\n")[1]
    for name, credentials in entrances(kafka).items():
        source = Kafka(topic, format="binary").within(Limits(), credentials)
        cut = Cutter(source).cut(day(1))
        found = source.load(session, cut, None, day(1), "lake", None, source.secrets)  # type: ignore[arg-type]
        assert [bytes(row.value) for row in found.collect()] == [b"seen"], name
    (application,) = httpx.get(f"{spark_ui}/api/v1/applications", timeout=patience()).json()
    for page in ("SQL/", "connect/", "environment/", f"api/v1/applications/{application['id']}/sql?length=10000"):
        shown = httpx.get(f"{spark_ui}/{page}", timeout=patience()).raise_for_status().text
        assert key not in shown, page
        assert "geheim" not in shown, page


@pytest.mark.drawn("Kafka")
@pytest.mark.touches("systems/kafka.py", "systems/kafka_settings.py")
def test_what_a_sink_delivers(kafka: Broker) -> None:
    kafka.allow(USER, AclOperation.ALL, "airflow_barrier.", ResourceType.TRANSACTIONAL_ID, prefix=True)
    for credentials in entrances(kafka).values():
        place = Topics.make(kafka)
        for topic in (*place.targets.values(), place.ledger):
            kafka.allow(USER, AclOperation.ALL, topic)
        with place.channel(credentials=credentials) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES)
        check(place, CHANGES, Rows.CHANGES)


def looked_at(credentials: Credentials) -> None:
    Kafka("t", format="binary").within(Limits(), credentials).look(None)  # type: ignore[arg-type]


def test_what_is_wrong_is_told_soon(kafka: Broker, tmp_path: Path) -> None:
    another = Authority(tmp_path, "another authority").certificate
    broken = tmp_path / "no.pem"
    broken.write_text("no PEM")
    with cases() as case:
        for changed, source, sink, said in (
            ({"ssl.ca.location": another}, SourceUnavailableError, SinkUnavailableError, "certificate verify failed"),
            ({"ssl.ca.location": broken}, ConfigurationError, ConfigurationError, r"ssl.ca.location failed: .*correct"),
            ({"ssl.key.password": "geheim"}, ConfigurationError, ConfigurationError, "ssl.key.location failed"),
        ):
            extra = {**kafka.certificate_credentials.extra, **{key: str(value) for key, value in changed.items()}}
            credentials = Credentials("kafka_default", extra=extra)
            with case((said, "source")), pytest.raises(source, match=said) as found:
                looked_at(credentials)
            assert "geheim" not in str(found.value)
            with (
                case((said, "sink")),
                pytest.raises(sink, match=said),
                Topics("", "prices", "amounts", "ledger").channel(credentials=credentials),
            ):
                pass


@pytest.mark.drawn("Kafka")
@pytest.mark.touches("sources/kafka/log.py", "systems/kafka.py")
def test_who_has_no_certificate(kafka: Broker) -> None:
    extra = {"bootstrap.servers": kafka.certificate_credentials.extra["bootstrap.servers"]}
    for name in ("security.protocol", "ssl.ca.location"):
        extra[name] = kafka.certificate_credentials.extra[name]
    # the alert of a broker on an older JVM, and on one from 17.0.21 on, as TLS 1.3 names it
    with pytest.raises(SourceUnavailableError, match=r"found: .*(bad certificate|certificate required)"):
        looked_at(Credentials("kafka_default", extra=extra))


def test_keys_as_java_reads_them(tmp_path: Path) -> None:
    """Of whatever form and encryption librdkafka takes them in."""
    certificate, path = Authority(tmp_path).signed("somebody")
    plain = path.read_text()
    key = load_pem_private_key(plain.encode(), None)
    sealed = BestAvailableEncryption(PASSWORD.encode())
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed).decode()
    older = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()

    def told(text: str, password: str | None = None) -> str:
        extra = {
            "bootstrap.servers": "kafka:9093",
            "security.protocol": "SSL",
            "ssl.certificate.location": str(certificate),
            "ssl.key.pem": text,
            "ssl.key.password": password or "",
        }
        return spark_settings("source t", Credentials("c", extra=extra))["kafka.ssl.keystore.key"]

    assert told(encrypted, PASSWORD) == told(older) == told(plain) == plain
    for text, password in ((encrypted, None), (encrypted, "geheim"), (plain[:-40], None), ("geheim", None)):
        with pytest.raises(ConfigurationError, match=r"source t: expected a private key in PEM as ssl\.key") as refused:
            told(text, password)
        assert "geheim" not in str(refused.value)
