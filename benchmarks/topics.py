"""Topics of Kafka beside the plain client and Spark's own connector: the same rows, the same broker, in turns."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sinks.json_values import encoder
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.ledger import Deliverer
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.port import CutRequest
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.guard import guard_jar
from benchmarks.delivering import Batches
from benchmarks.report import Measured
from demo.local_airflow import free_port
from demo.local_kafka import LocalKafka
from demo.local_spark import CATALOG, LocalConnectServer
from demo.places import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIZES, _QUICK = (1_000, 100_000, 1_000_000), (1_000,)
_PARTITIONS = 4
_WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SCHEMA = "userId BIGINT, itemId INT, price DECIMAL(10, 2), note STRING"
_COLUMNS = ("userId", "itemId", "price", "note")
_KEY = ["userId", "itemId"]
#: Key, value and headers.
_Record = tuple[bytes, bytes, list[tuple[str, "str | bytes | None"]]]


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    sizes, repeats = _QUICK if quick else _SIZES, 1 if quick else 5
    with LocalKafka(free_port(), free_port(), ivy / "catalogs") as broker:
        broker.start()
        out = [_out(broker, size, repeats) for size in sizes]
        conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g", "spark.jars": guard_jar()}
        folder.mkdir(parents=True, exist_ok=True)
        with LocalConnectServer(folder / "warehouse", folder / "barrier.db", ivy, conf=conf) as server:
            spark = connect_session(server.url)
            try:
                read = [_in(broker, spark, size, repeats) for size in sizes]
            finally:
                stop_session(spark)
    return [
        Measured(
            "Delivering to a topic, in seconds",
            f"A barrier of rows of four columns as JSON to {_PARTITIONS} partitions of a broker on the same machine. "
            "Ours is one transaction with the ledger's record. *Before it* is what the task does once: it looks at the "
            "topics, and opens a sink that never delivered (which fences). The plain producers are idempotent, wait "
            "for all (`acks=all`), and send the same bytes, header included, in one transaction, without what comes "
            "before it. One makes them of the same rows, by the same serializer (msgspec); the other one has them "
            "already. Median of 5 in turns.",
            ["rows", "before it", "ours", "plain, with its JSON", "plain, JSON made before", "plain against ours"],
            out,
        ),
        Measured(
            "Reading a topic, in seconds",
            "The same records by an epoch, and by Spark's own connector over the same offsets: as bytes, and as JSON, "
            "which the epoch reads strictly (names, types, nothing behind) and `from_json` does not. Cutting and "
            "checking the offsets is in ours. Into nowhere (`noop`). Median of 5 in turns.",
            ["rows", "bytes, ours", "bytes, Spark's", "JSON, ours", "JSON, Spark's", "bytes: Spark's against ours"],
            read,
        ),
    ]


def _credentials(broker: LocalKafka) -> Credentials:
    return Credentials("kafka_default", extra={"bootstrap.servers": broker.address})


def _topic(broker: LocalKafka) -> str:
    name = f"prices-{uuid4().hex[:8]}"
    broker.create_topic(name, _PARTITIONS)
    return name


def _median(ways: Sequence[Callable[[], Iterable[float]]], repeats: int) -> list[float]:
    """Of each of the ways' seconds, which take turns."""
    turns = [[seconds for way in ways for seconds in way()] for _ in range(repeats)]
    return [statistics.median(each) for each in zip(*turns, strict=True)]


# --- out ------------------------------------------------------------------------------------------


def _out(broker: LocalKafka, size: int, repeats: int) -> list[str]:
    rows = Batches.of(size)
    records = [*_records(rows)]
    topics = iter([_topic(broker) for _ in range(3 * (repeats + 1))])  # making one is nobody's delivery

    def ours() -> Iterator[float]:
        began = time.perf_counter()
        sink = KafkaSink(next(topics), key=_KEY)
        declared = sink.declare("shop.prices", Rows.CHANGES, "benchmark")
        with sink.connect(declared, _credentials(broker)) as channel:
            channel.validate({"shop.prices": rows.schema})
            after = channel.open(Deliverer("shop", "one", sink.name, "benchmark")).position
            yield time.perf_counter() - began
            began = time.perf_counter()
            channel.deliver(Delivery(1, 0, _WHEN, after, Rows.CHANGES, ["shop.prices"], {"shop.prices": rows}))
            yield time.perf_counter() - began

    def plain() -> Iterator[float]:
        yield _send(broker, next(topics), _records(rows))

    def made_before() -> Iterator[float]:
        yield _send(broker, next(topics), records)

    ways = [ours, plain, made_before]
    _median(ways, 1)
    before, one, other, least = _median(ways, repeats)
    return [f"{size:,}", *(f"{each:.3f}" for each in (before, one, other, least)), f"{other / one:.2f}"]


def _records(rows: Batches) -> Iterator[_Record]:
    """Those that the sink makes."""
    json_of = encoder("string").encode
    of = sum(batch.num_rows for batch in rows)
    said = {"topology": "shop", "table": "shop.prices", "barrier": 1, "revision": 0, "timestamp": _WHEN.isoformat()}
    beginning = json_of({**said, "of": of, "op": "insert"})[:-1]
    for n, row in enumerate((row for batch in rows for row in batch.to_pylist()), 1):
        header = b'%b,"n":%d}' % (beginning, n)
        yield json_of({name: row[name] for name in _KEY}), json_of(row), [("airflow-barrier", header)]


def _send(broker: LocalKafka, topic: str, records: Iterable[_Record]) -> float:
    """The seconds of a transaction with these records."""
    settings = {"bootstrap.servers": broker.address, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
    producer = Producer({**settings, "transactional.id": topic, "partitioner": "murmur2_random"})
    producer.init_transactions()
    began = time.perf_counter()
    producer.begin_transaction()
    for key, value, headers in records:
        while True:
            try:
                producer.produce(topic, value, key, headers=headers)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.commit_transaction()
    return time.perf_counter() - began


# --- in -------------------------------------------------------------------------------------------


def _in(broker: LocalKafka, spark: SparkSession, size: int, repeats: int) -> list[str]:
    topic = _topic(broker)
    rows = (dict(zip(_COLUMNS, row, strict=True)) for row in Batches.of(size).rows())
    records: list[_Record] = [(b"", json.dumps(row, default=str).encode(), []) for row in rows]
    _send(broker, topic, records)

    def ours(form: str) -> Iterator[float]:
        began = time.perf_counter()
        schema = _SCHEMA if form == "json" else ""
        source = Kafka(topic, format=form, schema=schema).within(Limits(), _credentials(broker))
        cut = source.cut(CutRequest("shop", 1, None, _WHEN, None, lambda items: set(), _WHEN))
        assert isinstance(cut, Cut)
        source.check(cut)
        no_delta: Any = None
        _away(source.load(spark, cut, None, _WHEN, CATALOG, no_delta, source.secrets))
        yield time.perf_counter() - began

    def plain(form: str) -> Iterator[float]:
        began = time.perf_counter()
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        frame = reader.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load()
        if form == "json":
            frame = frame.selectExpr(f"from_json(CAST(value AS STRING), '{_SCHEMA}') AS record").select("record.*")
        else:
            frame = frame.select("key", "value")
        _away(frame)
        yield time.perf_counter() - began

    ways = [lambda: ours("binary"), lambda: plain("binary"), lambda: ours("json"), lambda: plain("json")]
    _median(ways, 1)
    found = _median(ways, repeats)
    return [f"{size:,}", *(f"{each:.3f}" for each in found), f"{found[1] / found[0]:.2f}"]


def _away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
