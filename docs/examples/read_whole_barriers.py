"""Reads whole barriers of a topic that a KafkaSink delivers to: those of which each record has come.

A topic that is compacted loses records of older barriers: this reader would wait for them for ever.

for barrier in whole_barriers("kafka-1:9092", "prices", group="pricing"):
    apply(barrier)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition


def whole_barriers(brokers: str, topic: str, group: str) -> Iterator[list[Message]]:
    """Barriers one after the other, each as its records in order; one overtakes another one only where they have no
    partition, and so no key, in common. Where ``group`` stopped it goes on, with a barrier
    that comes again if it was not applied: offsets are committed when the next one is asked for.
    """
    settings = {"bootstrap.servers": brokers, "group.id": group, "auto.offset.reset": "earliest"}
    # what is not committed is never seen
    consumer = Consumer(
        {
            **settings,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    # One reader has all partitions: a barrier's records are spread over them.
    known = consumer.committed([TopicPartition(topic, partition) for partition in partitions], timeout=30)
    consumer.assign(known)
    came: dict[tuple[int, int], dict[int, Message]] = {}
    try:
        while True:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                raise RuntimeError(error.str())
            said = _said(message)
            came.setdefault((said["barrier"], said["revision"]), {})[said["n"]] = message
            # A partition may be ahead: the oldest barrier goes first, and the others wait until it is whole.
            while came and len(oldest := came[min(came)]) == _said(next(iter(oldest.values())))["of"]:
                yield [oldest[number] for number in sorted(oldest)]
                del came[min(came)]
                for _, record in sorted(oldest.items()):  # in each partition the last one counts
                    consumer.store_offsets(record)
                consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _said(message: Message) -> dict[str, Any]:
    """What a record's header says of it."""
    said: dict[str, Any] = json.loads(dict(message.headers() or [])["airflow-barrier"] or "")
    return said
