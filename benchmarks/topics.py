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
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.ledger import Deliverer
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.port import CutRequest
from airflow_barrier.spark.connect import connect_session, stop_session
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


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    sizes, repeats = _QUICK if quick else _SIZES, 1 if quick else 5
    with LocalKafka(free_port(), free_port(), ivy / "catalogs") as broker:
        broker.start()
        out = [_out(broker, size, repeats) for size in sizes]
        conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
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
            "Ours is all that the task does with rows that it has: looking, opening (which fences), one transaction "
            "with the ledger's record. The plain producers are idempotent and wait for all (`acks=all`). One makes its "
            "values and keys of the same rows, by Python's `json`; the other one has them already. Neither sends the "
            "eight headers by which a reader finds whole barriers. Median of 5 in turns.",
            ["rows", "ours", "plain, with its JSON", "plain, JSON made before", "with its JSON against ours"],
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


def _median(ways: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Of each way's seconds, which take turns."""

    def seconds(way: Callable[[], object]) -> float:
        began = time.perf_counter()
        way()
        return time.perf_counter() - began

    turns = [[seconds(way) for way in ways] for _ in range(repeats)]
    return [statistics.median(each) for each in zip(*turns, strict=True)]


# --- out ------------------------------------------------------------------------------------------


def _out(broker: LocalKafka, size: int, repeats: int) -> list[str]:
    rows = Batches.of(size)
    records = [*_records(rows)]
    topics = iter([_topic(broker) for _ in range(3 * (repeats + 1))])  # making one is nobody's delivery

    def ours() -> None:
        sink = KafkaSink(next(topics), key=_KEY)
        declared = sink.declare("shop.prices", Rows.CHANGES, "benchmark")
        with sink.connect(declared, _credentials(broker)) as channel:
            channel.validate({"shop.prices": rows.schema})
            after = channel.open(Deliverer("shop", "one", sink.name, "benchmark")).position
            channel.deliver(Delivery(1, 0, _WHEN, after, Rows.CHANGES, ["shop.prices"], {"shop.prices": rows}))

    def plain() -> None:
        _send(broker, next(topics), _records(rows))

    def made_before() -> None:
        _send(broker, next(topics), records)

    ways = [ours, plain, made_before]
    _median(ways, 1)
    one, other, least = _median(ways, repeats)
    return [f"{size:,}", f"{one:.3f}", f"{other:.3f}", f"{least:.3f}", f"{other / one:.2f}"]


def _records(rows: Batches) -> Iterator[tuple[bytes, bytes]]:
    for row in rows.rows():
        key, value = dict(zip(_KEY, row, strict=False)), dict(zip(_COLUMNS, row, strict=True))
        yield json.dumps(key).encode(), json.dumps(value, default=str).encode()


def _send(broker: LocalKafka, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    settings = {"bootstrap.servers": broker.address, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
    producer = Producer({**settings, "partitioner": "murmur2_random"})
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    producer.flush()


# --- in -------------------------------------------------------------------------------------------


def _in(broker: LocalKafka, spark: SparkSession, size: int, repeats: int) -> list[str]:
    topic = _topic(broker)
    rows = (dict(zip(_COLUMNS, row, strict=True)) for row in Batches.of(size).rows())
    records = [(b"", json.dumps(row, default=str).encode()) for row in rows]
    _send(broker, topic, records)

    def ours(form: str) -> None:
        schema = _SCHEMA if form == "json" else ""
        source = Kafka(topic, format=form, schema=schema).within(Limits(), _credentials(broker))
        cut = source.cut(CutRequest("shop", 1, None, _WHEN, None, lambda items: set(), _WHEN))
        assert isinstance(cut, Cut)
        source.check(cut)
        no_delta: Any = None
        _away(source.load(spark, cut, None, _WHEN, CATALOG, no_delta, source.secrets))

    def plain(form: str) -> None:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        frame = reader.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load()
        if form == "json":
            frame = frame.selectExpr(f"from_json(CAST(value AS STRING), '{_SCHEMA}') AS record").select("record.*")
        else:
            frame = frame.select("key", "value")
        _away(frame)

    ways = [lambda: ours("binary"), lambda: plain("binary"), lambda: ours("json"), lambda: plain("json")]
    _median(ways, 1)
    found = _median(ways, repeats)
    return [f"{size:,}", *(f"{each:.3f}" for each in found), f"{found[1] / found[0]:.2f}"]


def _away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
