"""What `status` says of topics that are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.kafka import Kafka
from tests.cli.deployed import environment_of, run
from tests.sources.landing import land_parquet
from tests.support.deployments import settings_on
from tests.support.kafka import PASSWORD
from tests.support.kafka import Kafka as Broker
from tests.support.ports import free_port
from tests.support.postgresql import PostgreSQL
from tests.support.shop import JOBS, Shop, make_shop

HOUR = timedelta(hours=1)
Enter = Callable[[Credentials], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Say what the connection of the topics is."""

    def said(credentials: Credentials) -> None:
        connection = {"conn_type": "kafka", "extra": dict(credentials.extra)}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))

    return said


@pytest.fixture
def shop(
    tmp_path: Path, postgresql: PostgreSQL, kafka: Broker, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        for name, value in environment_of(settings).items():
            monkeypatch.setenv(name, value)
        enter(kafka.credentials)
        deployment = make_shop(settings).deployment
        yield Shop(replace(deployment, credentials=lambda *_: kafka.credentials))
        deployment.close()


def reading(*sources: Any) -> Fragment:
    load = replace(JOBS[0], externals=tuple(source.declare() for source in sources))
    return Fragment("shopping", "shopping_dag", (load, *JOBS[1:]))


def send(broker: Broker, topic: str, partition: int, count: int, ago: timedelta) -> None:
    at = int((datetime.now(timezone.utc) - ago).timestamp() * 1000)
    broker.send(topic, *[{"value": b"v", "partition": partition, "timestamp": at}] * count)


def line_of(source: str) -> str:
    said = run("status", "shopping")
    assert said.code == 0, said.err
    (line,) = [line for line in said.out.splitlines() if f"source {source}:" in line]
    return line


def test_status_says_how_far_a_topic_is_ahead_and_when_records_go(shop: Shop, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(3, cleanup_policy="delete", retention_ms=str(72 * 3600 * 1000))
    folder = tmp_path / "landing"
    land_parquet(folder / "a.parquet", {"amount": [1]})
    files = Files(str(folder), name="files", schema="amount BIGINT", attribute_by="mtime")
    send(kafka, topic, 0, 2, HOUR)
    read = reading(Kafka(topic, name="purchases", format="binary"), files)
    barrier = shop.open(1, read)
    assert line_of("purchases") == "source purchases: 0 offsets behind"
    assert "source files" not in run("status").out
    send(kafka, topic, 0, 1200, 20 * HOUR)
    send(kafka, topic, 2, 34, 2 * HOUR)
    behind = (
        "source purchases: 1,234 offsets behind in 2 partitions (partition 0: 1,200); retention takes the oldest of"
    )
    assert line_of("purchases") == f"{behind} them in 2.2 days"
    (told,) = run("status", "shopping", "--json").json[0]["sources"]
    assert (told["source"], told["kind"], told["barrier_id"], told["unknown"]) == (
        "purchases",
        "kafka",
        barrier.barrier_id,
        None,
    )
    lag = told["lag"]
    assert (lag["unit"], lag["behind"], lag["retention"], lag["note"]) == ("offsets", 1234, 72 * 3600, None)
    assert [(part["part"], part["cut_end"], part["stable_end"], part["behind"]) for part in lag["parts"]] == [
        ("partition 0", 2, 1202, 1200),
        ("partition 1", 0, 0, 0),
        ("partition 2", 0, 34, 34),
    ]
    assert [part["retention_left"] for part in lag["parts"]] == [
        pytest.approx(52 * 3600, abs=600),
        None,
        pytest.approx(70 * 3600, abs=600),
    ]
    send(kafka, topic, 1, 1, 50 * HOUR)
    warning = line_of("purchases")
    assert warning.startswith("warning: source purchases: 1,235 offsets behind in 3 partitions")
    assert warning.endswith(("retention takes the oldest of them in 22.0 h", "in 21.9 h", "in 21.8 h"))
    shop.deployment.meta.barriers.abort("shopping", shop.open(2, read).barrier_id, "no", "test")
    assert line_of("purchases").startswith(warning[:60]), "what an aborted barrier cut is not read"


def test_a_cut_that_is_put_off_is_no_end(shop: Shop, kafka: Broker) -> None:
    topic = kafka.topic()
    source = reading(Kafka(topic, name="purchases", format="binary"))
    first = shop.open(1, source)
    send(kafka, topic, 0, 3, HOUR)
    nobody = Credentials("kafka_default", extra={"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    Shop(replace(shop.deployment, credentials=lambda *_: nobody)).open(2, source)
    assert line_of("purchases") == "source purchases: 3 offsets behind in 1 partition (partition 0: 3)"
    assert run("status", "--json").json[0]["sources"][0]["barrier_id"] == first.barrier_id


def test_status_answers_where_kafka_cannot_be_reached(shop: Shop, kafka: Broker, enter: Enter) -> None:
    topics = [kafka.topic() for _ in range(4)]
    shop.open(1, reading(*(Kafka(topic, format="binary") for topic in topics)))
    enter(Credentials("kafka_default", extra={"bootstrap.servers": f"127.0.0.1:{free_port()}"}))
    began = monotonic()
    said = run("status", "shopping")
    assert monotonic() - began < 10, "four sources are waited for together"
    assert said.code == 0
    assert "load: not started" in said.out
    for topic in topics:
        (line,) = [line for line in said.out.splitlines() if line.startswith(f"source {topic}: ")]
        assert "how far behind it is read is not known: expected Kafka at 127.0.0.1:" in line
        assert "Connection refused" in line
    enter(Credentials("kafka_default", extra={**kafka.user_credentials.extra, "sasl.password": f"{PASSWORD}!"}))
    assert "Authentication failed" in line_of(topics[0])
    assert PASSWORD not in "".join([run("status").out, run("status").err, run("status", "--json").out])


def test_status_without_connections_says_where_they_are(
    shop: Shop, kafka: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic()
    shop.open(1, reading(Kafka(topic, name="purchases", format="binary")))
    assert main(["status", "--metaservice-url", shop.deployment.meta.url]) == 0
    assert "is not known: expected connection kafka_default" in capsys.readouterr().out
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    assert "found none; define it: airflow connections add kafka_default" in line_of("purchases")
