"""Topics that cannot be what a DAG file says: named by `topology validate`, and before the first barrier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.delivering import look_at_sinks
from airflow_barrier.coordinator.opening import open_barrier
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sources.kafka import Kafka
from tests.adopting.existing import EVENTS, LOAD, NAME, Existing
from tests.sinks.kafka_topics import FILES
from tests.sources.landing import day
from tests.support.cases import cases
from tests.support.kafka import PASSWORD, USER
from tests.support.kafka import Kafka as Broker
from tests.support.ports import free_port
from tests.support.runs import run_of

DAG_FILE = f'''
from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sources.kafka import Kafka

with DAG("{LOAD}", start_date=datetime(2017, 1, 1, tzinfo=timezone.utc)), BarrierGroup("{NAME}") as barrier:
    load = SparkEpochOperator(task_id="load", application="/jobs/load.py")
    barrier.job(load, inlets=[SOURCE], outlets=["{EVENTS}"])
    DELIVER
'''


class Said:
    """What `topology validate` says of one DAG file, and what the first barrier meets."""

    def __init__(self, existing: Existing, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.existing, self.folder, self.patch = existing, folder, patch
        extra = {"warehouse": f"{folder}/warehouse", "metaservice_url": f"sqlite:///{folder}/warehouse/barrier.db"}
        patch.setenv("AIRFLOW_CONN_PROD", json.dumps({"conn_type": "barrier", "extra": extra}))

    def enter(self, extra: Mapping[str, Any]) -> None:
        self.extra = extra
        self.patch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": dict(extra)}))

    def validated(self, capsys: pytest.CaptureFixture[str], source: str, deliver: str = "") -> str:
        file = self.folder / "load_dag.py"
        file.write_text(DAG_FILE.replace("SOURCE", source).replace("DELIVER", deliver))
        capsys.readouterr()
        code = main(["topology", "validate", str(file), "--conn-id", "prod"])
        told = capsys.readouterr()
        problems = "\n".join(line for line in told.out.splitlines() if line.startswith("problem: "))
        assert code == (1 if problems else 0), told.err
        return problems

    def opened(self, source: Kafka) -> str:
        deployment = replace(
            self.existing.deployment, credentials=lambda *_: Credentials("kafka_default", extra=self.extra)
        )
        load = Job("load", LOAD, outlets=(EVENTS,), externals=(source.declare(),))
        with pytest.raises(BarrierError) as told:
            open_barrier(
                deployment,
                Fragment(NAME, LOAD, (load,)),
                day(1),
                timestamp_from="test",
                run=run_of(f"{LOAD}/1"),
                actor="test",
            )
        return str(told.value)

    def looked_at(self, sink: KafkaSink) -> str:
        declared = {
            sink.name: (
                sink.declare(EVENTS, Rows.APPENDS, LOAD),
                lambda: Credentials("kafka_default", extra=self.extra),
            )
        }
        with pytest.raises(BarrierError) as told:
            look_at_sinks(self.existing.deployment, NAME, declared)
        return str(told.value)


@pytest.fixture
def said(existing: Existing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(existing, tmp_path, monkeypatch)


@pytest.mark.drawn("Kafka")
@pytest.mark.touches("sources/kafka/log.py", "coordinator/cuts.py")
def test_what_is_wrong_with_a_source(kafka: Broker, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    topic = kafka.topic()
    nobody = {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
    forger = {**kafka.user_credentials.extra, "sasl.password": f"{PASSWORD}?"}
    with cases() as case:
        for extra, name, expected in (
            (nobody, topic, f"expected Kafka at {nobody['bootstrap.servers']} to answer, found: "),
            (forger, topic, "Authentication failed"),
            (kafka.credentials.extra, "nowhere", "expected topic nowhere, found no such topic; create it, or correct"),
            (kafka.user_credentials.extra, topic, "found no right to read it; grant the connection's user Read and"),
            ({"group.id": "g"}, topic, "connection kafka_default: expected 'bootstrap.servers' in its extra"),
        ):
            with case(expected):
                said.enter(extra)
                problem = said.validated(capsys, f'Kafka("{name}", format="binary")')
                assert f"source {name}: " in problem
                assert expected in problem
                assert PASSWORD not in problem
                assert expected in (opened := said.opened(Kafka(name, format="binary")))
                assert PASSWORD not in opened
    kafka.allow(USER, AclOperation.DESCRIBE, topic)
    said.enter(kafka.user_credentials.extra)
    assert "found no right to read it" in said.validated(capsys, f'Kafka("{topic}", format="binary")')
    assert "found no right to read it" in said.opened(Kafka(topic, format="binary"))
    kafka.allow(USER, AclOperation.READ, topic)
    assert said.validated(capsys, f'Kafka("{topic}", format="binary")') == ""


@pytest.mark.drawn("Kafka")
@pytest.mark.touches(*FILES)
def test_what_is_wrong_with_a_sink(kafka: Broker, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    said.patch.setattr("airflow_barrier.systems.kafka.ANSWER", 4)
    topic, target = kafka.topic(), kafka.topic()
    plain = kafka.topic(cleanup_policy="delete", retention_ms="-1")
    compacted = kafka.topic(cleanup_policy="compact", retention_ms="-1")
    nobody = {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
    forger = {**kafka.user_credentials.extra, "sasl.password": f"{PASSWORD}?"}
    everybody, user = kafka.credentials.extra, kafka.user_credentials.extra
    for each in (target, compacted):
        for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS):
            kafka.allow(USER, operation, each)
    source = f'Kafka("{topic}", format="binary", conn_id="everybody")'
    said.patch.setenv("AIRFLOW_CONN_EVERYBODY", json.dumps({"conn_type": "kafka", "extra": dict(everybody)}))
    with cases() as case:
        for extra, name, settings, expected in (
            (nobody, target, {}, f"expected Kafka at {nobody['bootstrap.servers']} to answer, found: "),
            (forger, target, {}, "to let in whom connection kafka_default names"),
            (everybody, "nowhere", {}, "found no nowhere; create what is missing"),
            (
                user,
                target,
                {"ledger": compacted, "transactional_id_prefix": "nobody-s"},  # another module allows the usual one
                "Transactional Id authorization failed; grant what it needs: kafka-",
            ),
            (user, topic, {"ledger": compacted}, "Topic authorization failed; grant what it needs: kafka-acls.sh"),
            (everybody, target, {"ledger": plain}, "found cleanup.policy delete; correct that"),
            (everybody, target, {"transaction_timeout": 7200}, "900000 ms at most, found 7200 s; name a shorter"),
        ):
            with case(expected):
                said.enter(extra)
                sink = KafkaSink(name, **settings)  # type: ignore[arg-type]
                arguments = "".join(f", {key}={value!r}" for key, value in settings.items())  # type: ignore[attr-defined]
                deliver = f'barrier.deliver("{EVENTS}", to=KafkaSink("{name}"{arguments}), rows="appends")'
                problem = said.validated(capsys, source, deliver)
                assert f"sink {name}: " in problem
                assert expected in problem, problem
                assert PASSWORD not in problem
                assert expected in (looked := said.looked_at(sink))
                assert PASSWORD not in looked
