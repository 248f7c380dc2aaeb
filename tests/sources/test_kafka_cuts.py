"""Which offsets of a real topic are in a cut: each one in one epoch, and none that is not settled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    NewPartitions,
)

from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    RevisionRefusedError,
    SourceDataError,
    SourceUnavailableError,
)
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources import source_of
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.kafka import cuts as kafka_cuts
from tests.sources.landing import Cutter, day
from tests.support.kafka import USER
from tests.support.kafka import Kafka as Broker
from tests.support.ports import free_port


def source(broker: Broker, topic: str, **settings: Any) -> Kafka:
    declared = Kafka(topic, format="binary", **settings).declare()
    return source_of(declared).within(Limits(), broker.credentials)  # type: ignore[return-value]


def at(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def send(broker: Broker, topic: str, *days: float, partition: int = 0) -> None:
    broker.send(topic, *({"value": b"v", "partition": partition, "timestamp": at(day(each))} for each in days))


def spans(cut: Any) -> dict[str, tuple[int, int]]:
    return {name: (begin, cut.end["offsets"][name]) for name, begin in cut.end["begin"].items()}


def test_each_cut_begins_where_the_last_one_ended(kafka: Broker) -> None:
    topic = kafka.topic(2)
    barriers = Cutter(source(kafka, topic))
    send(kafka, topic, 0, 0)
    send(kafka, topic, 0, partition=1)
    assert spans(barriers.cut(day(1))) == {"0": (0, 2), "1": (0, 1)}
    assert spans(barriers.cut(day(2))) == {"0": (2, 2), "1": (1, 1)}
    send(kafka, topic, 9)
    cut = barriers.cut(day(3))
    assert spans(cut) == {"0": (2, 3), "1": (1, 1)}
    assert cut.start == {"time": day(2).isoformat(), "topic_id": cut.end["topic_id"], "offsets": {"0": 2, "1": 1}}
    json.dumps([cut.start, cut.end])
    barriers.source.check(cut)
    barriers.abort()
    assert barriers.cut(day(3)) == cut


@pytest.mark.kills("up-to-the-last-stable-offset")
def test_an_open_transaction_is_waited_for_and_an_aborted_one_leaves_offsets(kafka: Broker) -> None:
    topic = kafka.topic()
    barriers = Cutter(source(kafka, topic))
    others = kafka.producer(transactional_id=f"{topic}-others")
    others.init_transactions(kafka.patience)
    others.begin_transaction()
    others.produce(topic, b"open", partition=0)
    others.flush(kafka.patience)
    send(kafka, topic, 0, 0)
    assert spans(barriers.cut(day(1))) == {"0": (0, 0)}
    others.abort_transaction(kafka.patience)
    kafka.settle(topic)
    assert spans(barriers.cut(day(2))) == {"0": (0, 4)}, "three records, and the mark of the end"
    others.begin_transaction()
    others.produce(topic, b"committed", partition=0)
    others.commit_transaction(kafka.patience)
    kafka.settle(topic)
    assert spans(barriers.cut(day(3))) == {"0": (4, 6)}


def test_by_timestamp_an_epoch_ends_before_the_first_later_record(kafka: Broker) -> None:
    topic = kafka.topic()
    send(kafka, topic, 0.5, 1, 1.5, 0.7, 2.5)
    barriers = Cutter(source(kafka, topic, attribute_by="timestamp"))
    assert spans(barriers.cut(day(1), now=day(9))) == {"0": (0, 2)}, "that of just the barrier's time is in it"
    assert spans(barriers.cut(day(2), now=day(9))) == {"0": (2, 4)}, "that which came late as well"
    assert spans(barriers.cut(day(3), now=day(9))) == {"0": (4, 5)}
    assert spans(barriers.cut(day(4), now=day(9))) == {"0": (5, 5)}


def test_a_wrong_clock_ends_no_epoch(kafka: Broker) -> None:
    """Neither when its record comes, nor later on; when its time has come it does no harm either."""
    topic = kafka.topic()
    send(kafka, topic, 0.5, 900, 0.6, 1.5)
    barriers = Cutter(source(kafka, topic, attribute_by="timestamp"))
    assert spans(barriers.cut(day(1), now=day(3))) == {"0": (0, 3)}
    send(kafka, topic, 1.6, 2.5)
    assert spans(barriers.cut(day(2), now=day(3))) == {"0": (3, 5)}
    assert spans(barriers.cut(day(3), now=day(901))) == {"0": (5, 6)}
    send(kafka, topic, 902)
    assert spans(barriers.cut(day(901), now=day(903))) == {"0": (6, 6)}
    assert spans(barriers.cut(day(902), now=day(903))) == {"0": (6, 7)}


def test_an_epoch_that_a_wrong_clock_cuts_short_is_told(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_cuts, "_MOST_LOOKED_AT", 3)
    topic = kafka.topic()
    send(kafka, topic, 900, *[0.5] * 6)
    barriers = Cutter(source(kafka, topic, attribute_by="timestamp"))
    assert spans(barriers.cut(day(1), now=day(3))) == {"0": (0, 3)}
    assert "found that it ends after 3 records, at offset 2" in caplog.text
    assert spans(barriers.cut(day(2), now=day(3))) == {"0": (3, 6)}


def test_a_partition_that_is_added_belongs_to_the_next_cut_from_its_first_record(kafka: Broker) -> None:
    topic = kafka.topic()
    send(kafka, topic, 0)
    barriers = Cutter(source(kafka, topic))
    barriers.cut(day(1))
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(kafka.patience)
    send(kafka, topic, 0, 0, partition=1)
    cut = barriers.cut(day(2))
    assert spans(cut) == {"0": (1, 1), "1": (0, 2)}
    assert spans(barriers.source.whole([each for _, each in barriers.cuts])) == {"0": (0, 1), "1": (0, 2)}


def _by_retention(kafka: Broker, topic: str) -> None:
    admin = kafka.admin()
    (answer,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    answer.result(kafka.patience)


def _anew(kafka: Broker, topic: str) -> None:
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(kafka.patience)
    kafka.create_topic(topic)
    send(kafka, topic, *[0] * 7)


@pytest.mark.kills("no-offsets-are-skipped", "offsets-as-they-were-cut")
@pytest.mark.parametrize(
    ("lose", "said", "begin"),
    [
        (_by_retention, "partition 0 begins at offset 3, and those from {} on are gone by retention", 3),
        (_anew, "it was deleted and made anew", 0),
    ],
)
def test_what_is_gone_stops_the_source_and_is_skipped_only_where_that_was_said(
    kafka: Broker, caplog: pytest.LogCaptureFixture, lose: Callable[[Broker, str], None], said: str, begin: int
) -> None:
    topic = kafka.topic()
    send(kafka, topic, 0, 0)
    barriers = Cutter(source(kafka, topic))
    barriers.cut(day(1))
    send(kafka, topic, 0, 0)
    cut = barriers.cut(day(2))
    barriers.abort()
    lose(kafka, topic)
    with pytest.raises(SourceDataError, match="expected topic .* as it was cut, found that " + said.format(2)):
        source(kafka, topic).check(cut)
    assert source(kafka, topic).repin(cut) == cut
    with pytest.raises(SourceDataError, match=said.format(2) + ".*fail_on_data_loss=False"):
        Cutter(source(kafka, topic), cuts=barriers.cuts).cut(day(2))
    going_on = Cutter(source(kafka, topic, fail_on_data_loss=False), cuts=barriers.cuts)
    assert spans(going_on.cut(day(2)))["0"][0] == begin
    assert said.format(2) in caplog.text


@pytest.mark.drawn("Kafka")
@pytest.mark.touches("sources/kafka/cuts.py")
def test_a_disk_that_was_restored_from_a_backup(own_kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The topic is the same one, and ends before what was cut already."""
    topic = own_kafka.topic(2)
    send(own_kafka, topic, 0, 1.5)
    others = own_kafka.producer(transactional_id=f"{topic}-others")
    others.init_transactions(own_kafka.patience)
    others.begin_transaction()
    others.produce(topic, b"v", partition=1, timestamp=at(day(0)))
    others.commit_transaction(own_kafka.patience)  # a marker is the last offset
    own_kafka.settle(topic)
    barriers = Cutter(source(own_kafka, topic))
    barriers.cut(day(1))
    with own_kafka.as_of_now():
        send(own_kafka, topic, 1, 1, 1)
        cut = barriers.cut(day(2))
        assert spans(cut) == {"0": (2, 5), "1": (2, 2)}
    lost = "partition 0 ends at offset 2, and those up to 5 are gone: it was truncated"
    with pytest.raises(SourceDataError, match=rf"expected topic {topic} as it was cut, found that {lost}\. The epoch"):
        source(own_kafka, topic).check(cut)
    with pytest.raises(SourceDataError, match=rf"where the barrier before ended, found that {lost}.*fail_on_data_loss"):
        Cutter(source(own_kafka, topic), cuts=[*barriers.cuts]).cut(day(3))
    with pytest.raises(SourceDataError, match=f"where the newest barrier ended, found that {lost}"):
        source(own_kafka, topic).lag(cut, day(3))
    for by in ("offset", "timestamp"):
        going_on = Cutter(source(own_kafka, topic, fail_on_data_loss=False, attribute_by=by), cuts=[*barriers.cuts])
        caplog.clear()
        assert spans(going_on.cut(day(3), now=day(9))) == {"0": (2, 2), "1": (2, 2)}
        assert f"{lost}: it goes on with what is there" in caplog.text
    left = {"partition": 0, "from": 1, "to": 5, "until": day(9).isoformat()}
    held = Cut(cut.source, None, {**cut.end, "held": [left]})
    waiting = source(
        own_kafka, topic, fail_on_data_loss=False, attribute_by="event_time", idle_timeout=timedelta(hours=1)
    )
    next_one = Cutter(waiting, cuts=[(day(2), held)]).cut(day(3), now=day(9))
    assert next_one.start is not None
    assert next_one.start["held"] == [{**left, "to": 2}], "what was left for later epochs is gone as well"
    send(own_kafka, topic, 3)
    assert spans(going_on.cut(day(4), now=day(9))) == {"0": (2, 3), "1": (2, 2)}
    own_kafka.stop()
    own_kafka.start()  # by which its partitions get leaders of a later epoch, as by an unclean election
    send(own_kafka, topic, 4, 4, 4)
    grown = "partition 0 has other records before offset 5, of a later leader: it was truncated, and has grown again"
    with pytest.raises(SourceDataError, match=f"as it was cut, found that {grown}"):
        source(own_kafka, topic).check(cut)
    with pytest.raises(SourceDataError, match=f"where the newest barrier ended, found that {grown}"):
        source(own_kafka, topic).lag(cut, day(5))
    with pytest.raises(SourceDataError, match=f"where the barrier before ended, found that {grown}"):
        Cutter(source(own_kafka, topic), cuts=[*barriers.cuts]).cut(day(5))
    going_on = Cutter(source(own_kafka, topic, fail_on_data_loss=False), cuts=[*barriers.cuts])
    assert spans(going_on.cut(day(5))) == {"0": (5, 6), "1": (2, 2)}
    for _, whole in (barriers.cuts[0], going_on.cuts[-1]):
        source(own_kafka, topic).check(whole)


@pytest.mark.kills("compacted-is-not-read-again")
def test_a_revision_reads_no_topic_that_is_compacted(kafka: Broker) -> None:
    topic = kafka.topic(cleanup_policy="compact,delete")
    kafka.send(topic, {"key": b"k", "value": b"v"})
    barriers = Cutter(source(kafka, topic))
    cut, empty = barriers.cut(day(2)), barriers.cut(day(3))
    barriers.source.check(cut)
    with pytest.raises(SourceDataError, match=r"keep each record, found cleanup.policy=compact,delete: .* --file\)"):
        barriers.source.check_held(cut, None)  # type: ignore[arg-type]
    barriers.source.check_held(empty, None)  # type: ignore[arg-type]


def test_a_cut_that_reads_nothing_misses_nothing(kafka: Broker) -> None:
    topic = kafka.topic()
    send(kafka, topic, 0, 0, 0)
    barriers = Cutter(source(kafka, topic))
    barriers.cut(day(1))
    empty = barriers.cut(day(2))
    _by_retention(kafka, topic)
    source(kafka, topic).check(empty)


def test_it_begins_after_what_is_in_the_tables(kafka: Broker) -> None:
    topic = kafka.topic()
    send(kafka, topic, 1, 2, 3)
    barriers = Cutter(source(kafka, topic))

    def first(already: Any) -> Any:
        request = barriers.request(day(4))
        return spans(barriers.source.cut(request.__class__(**{**vars(request), "already": already})))

    assert first(day(2)) == {"0": (2, 3)}
    assert first(day(9)) == {"0": (3, 3)}
    assert first({"offsets": {"0": 1}}) == {"0": (1, 3)}
    for wrong in (1, {"offsets": {"1": 1}}, {"snapshot": 1}):
        with pytest.raises(ConfigurationError, match="expected start_from to be a datetime, or"):
            first(wrong)


def test_what_cannot_be_entered_says_why(kafka: Broker) -> None:
    topic = kafka.topic()

    def entered(credentials: Credentials, name: str = topic) -> Kafka:
        return Kafka(name, format="binary").within(Limits(), credentials)

    with pytest.raises(SourceDataError, match=r"expected topic no-such-topic, found no such topic"):
        entered(kafka.credentials, "no-such-topic").look(None)  # type: ignore[arg-type]
    nobody = Credentials("kafka_default", extra={"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(SourceUnavailableError, match=r"found: .*Connection refused.*see that it runs"):
        entered(nobody).look(None)  # type: ignore[arg-type]
    wrong = Credentials("kafka_default", extra={**kafka.user_credentials.extra, "sasl.password": "wrong"})
    with pytest.raises(SourceUnavailableError, match=r"Authentication failed") as refused:
        entered(wrong).look(None)  # type: ignore[arg-type]
    assert "wrong" not in str(refused.value)
    with pytest.raises(SourceDataError, match=r"found no right to read it; grant"):
        entered(kafka.user_credentials).look(None)  # type: ignore[arg-type]
    kafka.allow(USER, AclOperation.READ, topic)
    entered(kafka.user_credentials).look(None)  # type: ignore[arg-type]


@pytest.mark.kills("positions-are-not-cut-anew")
def test_it_is_not_cut_anew(kafka: Broker) -> None:
    with pytest.raises(RevisionRefusedError, match="the next cut begins at the position"):
        source(kafka, "any").recut([], set)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": "a b"}, "expected the name of a topic"),
        ({"topic": ""}, "expected the name of a topic"),
        ({"attribute_by": "mtime"}, "expected attribute_by 'offset', 'timestamp' or 'event_time', found 'mtime'"),
        ({"format": "xml"}, "format"),
        ({"format": "json"}, "schema"),
    ],
)
def test_settings_that_cannot_be(settings: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Kafka(**{"topic": "t", "format": "binary", **settings})


def test_a_declaration_is_the_source_again() -> None:
    declared = Kafka(
        "purchases",
        conn_id="prod",
        name="p",
        schema="a INT",
        metadata=["key"],
        attribute_by="timestamp",
        max_future_skew=timedelta(hours=1),
        fail_on_data_loss=False,
    )
    assert source_of(declared.declare()) == declared
    json.dumps(encode(declared.declare()))


# --- by event time ------------------------------------------------------------------------------------


def by_event_time(kafka: Broker, topic: str, **settings: Any) -> Cutter:
    return Cutter(source(kafka, topic, attribute_by="event_time", **settings))


def test_a_barrier_waits_for_each_partition(kafka: Broker) -> None:
    topic = kafka.topic(2)
    barriers = by_event_time(kafka, topic, allowed_lateness=timedelta(hours=12))
    assert "partition 0, 1 of topic" in barriers.waits(day(1), now=day(9)).reason
    send(kafka, topic, 0.5, 1.5)
    send(kafka, topic, 0.7, 1.6, partition=1)
    waits = barriers.waits(day(1), now=day(9))
    assert f"partition 0 of topic {topic} has no record that is later than {day(1.5).isoformat()} yet" in waits.reason
    send(kafka, topic, 1.2, 1.7, 0.9)
    cut = barriers.cut(day(1), now=day(9))
    assert spans(cut) == {"0": (0, 3), "1": (0, 1)}, "up to the first record that is late enough"
    held = {"partition": 0, "from": 1, "to": 3, "until": day(1.5).isoformat()}
    assert cut.end["held"] == [held], "of which what is later than the barrier is left"
    send(kafka, topic, 5)
    send(kafka, topic, 5, partition=1)
    cut = barriers.cut(day(2), now=day(9))
    assert cut.start is not None
    assert (cut.start["held"], spans(cut)) == ([held], {"0": (3, 5), "1": (1, 2)})
    assert cut.end["held"] == [], "an epoch ends before what is later than it waits for"


def test_what_is_left_in_a_catch_up_is_left_for_as_long_as_barriers_wait(kafka: Broker) -> None:
    """Offsets that are read grow with the records, and each cut is as large as the first."""
    topic = kafka.topic()
    lateness = timedelta(hours=3)
    barriers = by_event_time(kafka, topic, allowed_lateness=lateness)
    send(kafka, topic, *(number / 48 for number in range(48 * 6)))
    read, most = 0, 0
    for hour in range(1, 24 * 5):
        cut = barriers.cut(day(hour / 24), now=day(99))
        left = [*kafka_cuts.held_before(cut), *cut.end["held"]]
        most = max(most, len(cut.end["held"]))
        read += cut.end["offsets"]["0"] - cut.end["begin"]["0"]
        read += sum(each["to"] - each["from"] for each in kafka_cuts.held_before(cut))
        assert all(datetime.fromisoformat(each["until"]) <= day(hour / 24) + lateness for each in left)
    assert most == 3
    assert read < 48 * 6 * 5


def test_an_idle_partition_is_not_waited_for(kafka: Broker) -> None:
    topic = kafka.topic(3)
    send(kafka, topic, 0.5, 1.5)
    send(kafka, topic, 0.7, 900, partition=1)
    waiting = by_event_time(kafka, topic)
    assert "partition 1, 2 of" in waiting.waits(day(1), now=day(2)).reason, "a wrong clock says nothing"
    going_on = by_event_time(kafka, topic, idle_timeout=timedelta(hours=12))
    assert spans(going_on.cut(day(1), now=day(2))) == {"0": (0, 1), "1": (0, 2), "2": (0, 0)}
    send(kafka, topic, 1.6, partition=1)
    assert "partition 1 of" in going_on.waits(day(1.7), now=day(2)).reason


def test_what_was_left_and_is_gone_stops_its_readers(kafka: Broker) -> None:
    topic = kafka.topic()
    send(kafka, topic, 0.5, 1.5, 0.6, 1.6)
    settings = {"attribute_by": "event_time", "allowed_lateness": timedelta(hours=13)}
    barriers = Cutter(source(kafka, topic, **settings))
    assert spans(barriers.cut(day(1), now=day(9))) == {"0": (0, 3)}
    send(kafka, topic, 3)
    _by_retention(kafka, topic)
    cut = barriers.cut(day(2), now=day(9))
    with pytest.raises(SourceDataError, match="partition 0 begins at offset 3, and those from 1 on are gone"):
        barriers.source.check(cut)
    barriers.abort()
    going_on = Cutter(source(kafka, topic, fail_on_data_loss=False, **settings), cuts=barriers.cuts)
    going_on.source.check(going_on.cut(day(2), now=day(9)))
