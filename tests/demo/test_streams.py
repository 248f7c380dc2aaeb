"""What the tills say that they have sent, and what a consumer of the topic of averages makes of its records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from demo import tills, topic
from demo.oracle import recompute, recompute_lines
from demo.tills import Sent, Tills
from tests.demo.conftest import SAMPLE
from tests.support.kafka import Kafka

_LINES = [line for parcel in tills.parcels(SAMPLE) for line in parcel]


def test_what_was_sent_comes_back_from_its_record() -> None:
    sent = Sent(True, [(1, 7, _LINES[0]), (0, 3, _LINES[1])])
    assert Sent.of(sent.text) == sent


def test_all_lines_that_landed_are_sent_in_the_order_of_their_time() -> None:
    assert [line["sent_at"] for line in _LINES] == sorted(line["sent_at"] for line in _LINES)
    products = sorted((SAMPLE / "products").rglob("*.parquet"))
    assert recompute_lines(_LINES, products) == recompute((SAMPLE / "shopping").rglob("*.parquet"), products)


def test_lines_count_up_to_an_offset_of_their_partition_and_if_they_were_committed() -> None:
    first, second, third, wrong = _LINES[:4]
    sent = [Sent(True, [(0, 1, first), (1, 1, second)]), Sent(False, [(0, 2, wrong)]), Sent(True, [(0, 4, third)])]
    assert tills.lines_before(sent, {"0": 4, "1": 2}) == [first, second]
    assert tills.lines_before(sent, {"0": 5, "1": 0}) == [first, third]
    garbled = {**first, "quantity": "a dozen"}
    sent += [Sent(True, [(0, 5, garbled), (1, 2, second)]), Sent(False, [(1, 3, garbled)])]
    assert tills.lines_before(sent, {"0": 6, "1": 9}) == [first, second, third, second]
    assert tills.garbled_before(sent, {"0": 6, "1": 9}) == {(0, 5)}
    assert tills.garbled_before(sent, {"0": 5, "1": 9}) == set()


@pytest.mark.usefixtures("topics")
def test_the_record_of_the_tills_is_what_the_topic_holds(kafka: Kafka) -> None:
    producer = Tills(kafka.address)
    [aborted] = producer.send(_LINES[:3], abort=True)
    [committed] = producer.send(_LINES[3:8])
    assert (aborted.committed, committed.committed) == (False, True)
    found = [
        (message.partition(), message.offset(), tills.from_json(json.loads(message.value() or b"")))
        for message in kafka.records(tills.TOPIC)
    ]
    assert found == sorted(committed.records, key=lambda record: record[:2])
    everything = {(message.partition(), message.offset()) for message in kafka.records(tills.TOPIC, committed=False)}
    assert {record[:2] for each in (aborted, committed) for record in each.records} == everything


@pytest.mark.usefixtures("topics")
def test_a_consumer_applies_whole_barriers_and_says_what_is_missing_or_there_twice(kafka: Kafka) -> None:
    follower = topic.Follower(kafka.address)
    _deliver(kafka, 1, [(1, "1.50000"), (2, None)])
    _deliver(kafka, 2, [(1, "2.00000")], deleted=[2])
    whole = follower.read()
    assert whole == topic.Followed(barriers=2, pending=0)
    assert follower.applied.at == {
        1: Counter([(7, 1, Decimal("1.50000")), (7, 2, None)]),
        2: Counter([(7, 1, Decimal("2.00000"))]),
    }
    assert not follower.applied.faults

    assert follower.read() == whole, "an end is told again"

    _deliver(kafka, 3, [(1, "3.00000")], of=2)
    half = follower.read()
    assert half is not None
    assert half.torn
    _deliver(kafka, 3, [(1, "3.00000")], of=2)
    follower.read()
    assert follower.applied.faults == ["record 1 of 2 of barrier 3 after 1 of 3"]
    follower.close()


@pytest.fixture
def topics(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of the test's own, under the names that the demo has for them."""
    for module, partitions in ((tills, tills.PARTITIONS), (topic, 1)):
        name = f"{module.TOPIC}-{uuid4().hex}"
        kafka.create_topic(name, partitions)
        monkeypatch.setattr(module, "TOPIC", name)


def _deliver(
    kafka: Kafka,
    barrier: int,
    rows: Sequence[tuple[int, str | None]],
    deleted: Sequence[int] = (),
    of: int | None = None,
) -> None:
    """Records as the sink writes them."""
    records: list[dict[str, Any]] = [{"itemId": item, "value": {"avgPrice": average}} for item, average in rows]
    records += [{"itemId": item, "value": None} for item in deleted]
    of = of or len(records)
    for n, record in enumerate(records, 1):
        key = {"userId": 7, "itemId": record["itemId"]}
        value = None if record["value"] is None else json.dumps({**key, **record["value"]}).encode()
        header = json.dumps({"barrier": barrier, "of": of, "n": n})
        record = {"key": json.dumps(key).encode(), "value": value, "headers": {"airflow-barrier": header}}
        kafka.send(topic.TOPIC, record)
