"""Many integers go into and out of Pravega, while its servers and all that handles them are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.errors import SourceUnavailableError
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sinks.pravega import PravegaSink
from airflow_barrier.sinks.pravega.client import Client
from airflow_barrier.sources.pravega import Pravega
from tests.delivering import streaming
from tests.delivering.streaming import SINK, TABLE, TOPOLOGY, Crew, Hand, Stage, Stream, hands
from tests.support.pravega import SCOPE, Cluster, Owner
from tests.support.reporting import report
from tests.support.waiting import patience

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

_INTEGERS, _PARCEL = 100_000, 500
#: What a failed run has printed, to kill at the same steps again.
_SEED = "BARRIER_TEST_SEED"
JOB, DELIVERER, SERVERS = "job", "deliverer", ("store", "controller")
_OF_THE_JOB = (streaming.OPENED, streaming.BEGUN, streaming.READING, streaming.WRITTEN, streaming.CLOSED)
_OF_THE_DELIVERER = tuple(
    f"{when} {request}"
    for request in ("begin_transaction", "send", "append", "commit_transaction")
    for when in ("before", "after")
)
#: At which steps of the job or of the deliverer each is killed; the servers, while they are there.
_STEPS = {
    JOB: _OF_THE_JOB,
    DELIVERER: _OF_THE_DELIVERER,
    **dict.fromkeys(SERVERS, (streaming.CLOSED, "before send", "before append", "before commit_transaction")),
}


@dataclass(frozen=True)
class Streams(Stream):
    """``source`` and ``target`` are streams."""

    ends_in = "positions"

    server: Credentials
    source: str
    target: str

    @property
    def credentials(self) -> Credentials:
        return self.server

    @property
    def external(self) -> ExternalSource:
        return Pravega(self.source, SCOPE, "pravega", "integers", schema="k BIGINT, n BIGINT").declare()

    @property
    def sink(self) -> SinkDeclaration:
        sink = PravegaSink(self.target, SCOPE, key=["k"], name=SINK)
        return sink.declare({TABLE: "numbers"}, Rows.APPENDS, "dag")

    def ends(self) -> dict[str, int]:
        with self.owner() as owner:
            found = owner.ask("tail", SCOPE, self.source, f"looking-{os.getpid()}-{time.monotonic_ns()}")
        return {str(segment): found[segment] for segment in sorted(found)}

    def watch(self, stage: Stage) -> None:
        original = Client.change

        def change(client: Client, request: str, *arguments: Any) -> Any:
            stage.at(f"before {request}")
            answer = original(client, request, *arguments)
            stage.at(f"after {request}")
            return answer

        Client.change = change  # type: ignore[method-assign]

    def owner(self) -> Owner:
        return Owner("a test", self.server, SourceUnavailableError, int(patience()))


def produce(stage: Stage, stream: Streams, integers: int, parcel: int) -> None:
    """Write integers in parcels, as many as it is told to; at times the source is scaled."""
    grant = 0
    with stream.owner() as owner:
        for first in range(0, integers, parcel):
            while not grant:
                grant += stage.hear()
            grant -= 1
            numbers = range(first, min(first + parcel, integers))
            events = [
                (str(n % streaming.KEYS), json.dumps({"k": n % streaming.KEYS, "n": n}).encode()) for n in numbers
            ]
            owner.ask("write", SCOPE, stream.source, events)
            stage.say("written")
    stage.say("sent")


@pytest.fixture
def stream(integers_settings: Settings, spark_server: SparkServer, pravega_cluster: Cluster) -> Streams:
    source, target = pravega_cluster.stream(2), pravega_cluster.stream(3)
    return Streams(integers_settings, spark_server.url, pravega_cluster.credentials, source, target)


@pytest.mark.drawn("large ones")
@pytest.mark.touches("sources/pravega/cuts.py", "sinks/pravega/channel.py", "sinks/pravega/ledger.py")
@pytest.mark.timeout(900)
def test_integers_in_and_out_of_pravega(stream: Streams, pravega_cluster: Cluster) -> None:
    seed = int(os.environ.get(_SEED) or int.from_bytes(os.urandom(4), "big"))
    print(f"{_SEED}={seed}")
    began, plan = time.monotonic(), [(victim, step) for victim, steps in _STEPS.items() for step in steps]
    Random(seed).shuffle(plan)
    with hands() as found:
        run = Run(stream, pravega_cluster, found)
        run.begin(_INTEGERS // _PARCEL // (len(plan) + 2), produce, _INTEGERS, _PARCEL)
        for number, (victim, step) in enumerate(plan):
            print(f"{time.monotonic() - began:.1f} s: {victim} at {step}", flush=True)
            run.strike(victim, step)
            if number in (len(plan) // 3, 2 * len(plan) // 3):
                run.scale()
        print(f"{time.monotonic() - began:.1f} s: the rest", flush=True)
        run.finish(_INTEGERS)
    deployment = stream.connect()
    barriers = check(stream, pravega_cluster, deployment)
    deployment.close()
    kills = ", ".join(f"{len(steps)} of the {victim}" for victim, steps in _STEPS.items())
    seconds = time.monotonic() - began
    report(
        f"integers through Pravega: {_INTEGERS:,} in and out by {barriers} barriers in {seconds:.0f} s, the source "
        f"scaled twice; kills: {kills}; 0 lost, 0 twice, each key in order, no barrier torn (seed {seed})"
    )


class Run(Crew):
    """Whose servers are struck, too."""

    def __init__(self, stream: Streams, cluster: Cluster, found: list[Hand]) -> None:
        super().__init__(stream, found)
        self._cluster, self._source = cluster, stream.source

    def strike(self, victim: str, step: str) -> None:
        hand = self.job if step in _OF_THE_JOB else self.deliverer
        hand.hold(step)
        self.feed()
        hand.wait("held")
        if victim in SERVERS:
            self._cluster.kill(victim)
            hand.go_on()
            self._cluster.start(victim)
            hand.wait("barrier" if hand is self.job else "delivered")
            return
        if step == streaming.READING:
            hand.go_on()  # what Spark has begun goes on without its job
        self.replace(hand, signal.SIGKILL)

    def scale(self) -> None:
        """Another number of segments, while all goes on."""
        segments = sorted(self._cluster.tail(self._source))
        middle = Random(len(segments)).uniform(0.2, 0.8)
        ranges = [(0.0, middle / 2), (middle / 2, middle), (middle, 1.0)]
        self._cluster.ask("scale", self._source, segments, ranges)


# --- what has to hold -----------------------------------------------------------------------------


def check(stream: Streams, cluster: Cluster, deployment: Deployment) -> int:
    """Everything, by what readers find in the end; returns how many barriers there were."""
    every = list(range(_INTEGERS))
    went = [json.loads(event) for event in cluster.ask("events", stream.target)]
    integers = [event["row"]["n"] for event in went]
    assert sorted(integers) == every, "lost, or there several times"
    assert in_order(integers)
    by_barrier: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in went:
        assert (event["topology"], event["table"], event["revision"], event["op"]) == (TOPOLOGY, "numbers", 0, "insert")
        by_barrier[event["barrier"]].append(event)
    last = streaming.newest(deployment)
    assert last is not None
    for barrier in range(1, last.barrier_id + 1):
        cut = deployment.meta.cuts.of(TOPOLOGY, barrier)["integers"]
        rows = sum(file["rows"] for file in cut.end["files"])
        told = sorted((event["n"], event["of"]) for event in by_barrier[barrier])
        assert told == [(n, rows) for n in range(1, rows + 1)], f"barrier {barrier} is torn"
    history = deployment.meta.deliveries.history(TOPOLOGY, SINK, limit=last.barrier_id + 1)
    assert sorted(each.barrier_id for each in history) == list(range(1, last.barrier_id + 1))
    rows = deployment.tables.load(TABLE).scan().to_arrow()["n"].to_pylist()
    assert sorted(rows) == every
    return last.barrier_id


def in_order(integers: Iterable[int]) -> bool:
    """Return whether those of each key are."""
    by_key: defaultdict[int, list[int]] = defaultdict(list)
    for n in integers:
        by_key[n % streaming.KEYS].append(n)
    return all(found == sorted(found) for found in by_key.values())
