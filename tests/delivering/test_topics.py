"""A ledger in Kafka that has lost its record: told before anything is delivered, whatever was done to it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from airflow_barrier.coordinator.delivering import sink_fault
from airflow_barrier.protocol.deliveries import Remedy, Rows
from airflow_barrier.protocol.errors import LedgerError, SinkRefusedError
from airflow_barrier.sinks.kafka import KafkaSink
from tests.delivering.feed import AMOUNT, KEY, Feed
from tests.support.kafka import Kafka
from tests.support.waiting import patience, wait_for


def _deleted(kafka: Kafka, ledger: str) -> None:
    admin: AdminClient = kafka.admin()
    admin.delete_topics([ledger])[ledger].result(patience())
    wait_for("the ledger to be gone", lambda: ledger not in admin.list_topics(timeout=patience()).topics)


def _made_anew(kafka: Kafka, ledger: str) -> None:
    _deleted(kafka, ledger)
    kafka.create_topic(ledger, cleanup_policy="compact", retention_ms="-1")


def _emptied(kafka: Kafka, ledger: str) -> None:
    (key,) = {record.key() for record in kafka.records(ledger)}
    kafka.send(ledger, {"key": key, "value": None})


@pytest.mark.drawn("Kafka")
@pytest.mark.touches("coordinator/delivering.py", "sinks/kafka/ledger.py", "sinks/kafka/channel.py")
@pytest.mark.parametrize("lose", [_deleted, _made_anew, _emptied])
def test_a_ledger_that_has_lost_its_record_is_told(
    kafka: Kafka, feed: Feed, lose: Callable[[Kafka, str], None]
) -> None:
    topic, ledger = kafka.topic(), f"ledger-{uuid4().hex}"
    sink = KafkaSink(topic, key=KEY, ledger=ledger)
    feed.commit({(1, 1): 1})
    feed.deliver(sink, AMOUNT, kafka.credentials)
    delivered = [record.offset() for record in kafka.records(topic, committed=False)]
    assert len(delivered) == 1
    declared = sink.declare(AMOUNT, Rows.CHANGES, "shopping_dag")
    assert sink_fault(feed.deployment, "shopping", declared, kafka.credentials, {}) is None
    lose(kafka, ledger)
    fault = sink_fault(feed.deployment, "shopping", declared, kafka.credentials, {})
    assert fault is not None
    assert "says b1.r0, which was delivered, found that nothing was: " in fault
    feed.commit({(1, 1): 2})
    decide = feed.deployment.meta.deliveries.decide
    for remedy in (None, None, Remedy.ADOPT):
        if remedy is not None:
            decide("shopping", sink.name, remedy, "test", "it is as it was")
        with pytest.raises(
            LedgerError, match=r"says b1\.r0, .* nothing was: .* emptied or made anew, or is not the one .* To compare"
        ) as told:
            feed.deliver(sink, AMOUNT, kafka.credentials)
        assert "sink adopt" not in str(told.value), "there is nothing to go on from"
    decide("shopping", sink.name, Remedy.REDELIVER, "test", "compare it")
    with pytest.raises(
        SinkRefusedError, match="declare a sink of another name for new topics, which are delivered the"
    ):
        feed.deliver(sink, AMOUNT, kafka.credentials)
    assert [record.offset() for record in kafka.records(topic, committed=False)] == delivered
