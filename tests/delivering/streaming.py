"""A log, a table and a log: processes that produce, run the job of each epoch, and deliver, until they are killed.

Each says through a pipe what it does, and waits at a step of its work where it is told to: so it can be killed there. A
:class:`Hand` is the test's end of it.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

import airflow_barrier.coordinator.delivering as delivering
from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, Waiting, begin, close, give_up
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Position, Rows, SinkDeclaration
from airflow_barrier.protocol.errors import Retryable
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from airflow_barrier.sinks.kafka import KafkaSink, client
from airflow_barrier.sources.kafka import Kafka as Source
from airflow_barrier.spark.connect import ConnectRun, connect_session, stop_session
from airflow_barrier.spark.delivering import write_extracts
from tests.races.racers import PROCESSES
from tests.support.kafka import Reader
from tests.support.runs import run_of
from tests.support.waiting import patience, wait_for

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from airflow_barrier.spark.epoch import Epoch

TOPOLOGY, TABLE, SINK = "integers", "integers.numbers", "copies"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
#: Integers of the same remainder have a key in common, and so an order.
KEYS = 50
#: Steps of a job's task and of a deliverer, where each can be told to wait.
OPENED, BEGUN, READING, WRITTEN, CLOSED = "opened", "begun", "reading", "written", "closed"
PRODUCE, COMMIT, COMMITTED = "before produce", "before commit_transaction", "after commit_transaction"
#: Tries in a row that may come to nothing, and seconds between them.
_TRIES, _PAUSE = 100, 0.2


@dataclass(frozen=True)
class Stream(ABC):
    """Where everything is: it comes from one log and goes into another one."""

    #: what the end of a cut has up to where it reads
    ends_in: ClassVar[str]

    settings: Settings
    spark: str

    @property
    @abstractmethod
    def credentials(self) -> Credentials: ...

    @property
    @abstractmethod
    def external(self) -> ExternalSource: ...

    @property
    @abstractmethod
    def sink(self) -> SinkDeclaration: ...

    @abstractmethod
    def ends(self) -> dict[str, int]:
        """By part of the source, up to where it can be read now."""

    @abstractmethod
    def watch(self, stage: Stage) -> None:
        """From now on, come to a step before and after each call to the sink's system."""

    @property
    def fragment(self) -> Fragment:
        return Fragment(TOPOLOGY, "dag", (Job("load", "dag", outlets=(TABLE,), externals=(self.external,)),))

    def connect(self) -> Deployment:
        return Deployment.connect(self.settings, credentials=lambda *_: self.credentials)

    def ends_of(self, deployment: Deployment, barrier: Barrier | None) -> dict[str, int]:
        """By part of the source, up to where the barriers up to this one have read."""
        cuts = deployment.meta.cuts.of(TOPOLOGY, barrier.barrier_id) if barrier else {}
        return dict(cuts["integers"].end[self.ends_in]) if "integers" in cuts else {}


@dataclass(frozen=True)
class Topics(Stream):
    """``source`` and ``target`` are topics."""

    ends_in = "offsets"

    broker: str
    source: str
    target: str
    ledger: str

    @property
    def credentials(self) -> Credentials:
        return Credentials("kafka_default", extra={"bootstrap.servers": self.broker})

    @property
    def external(self) -> ExternalSource:
        return Source(self.source, name="integers", schema="k BIGINT, n BIGINT").declare()

    @property
    def sink(self) -> SinkDeclaration:
        sink = KafkaSink(name=SINK, key=["k"], ledger=self.ledger)
        return sink.declare({TABLE: self.target}, Rows.APPENDS, "dag")

    def ends(self) -> dict[str, int]:
        admin = Reader(self.broker).admin()
        partitions = admin.list_topics(self.source, patience()).topics[self.source].partitions
        latest = {TopicPartition(self.source, each): OffsetSpec.latest() for each in partitions}
        asked = admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
        return {str(each.partition): answer.result(patience()).offset for each, answer in asked.items()}

    def watch(self, stage: Stage) -> None:
        original = client.call

        def call(name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            stage.at(f"before {name}")
            answer = original(name, ask, *arguments, **options)
            stage.at(f"after {name}")
            return answer

        client.call = call


def newest(deployment: Deployment) -> Barrier | None:
    """The newest barrier that is COMMIT."""
    if TOPOLOGY not in deployment.meta.topologies.names():
        return None
    return next(iter(deployment.meta.barriers.newest(TOPOLOGY, [BarrierState.COMMIT], limit=1)), None)


# --- a process, from within -----------------------------------------------------------------------


@dataclass(frozen=True)
class Hold:
    """To wait at a step, when it has come to it ``after`` times."""

    step: str
    after: int = 0


class Stage:
    """What a process says, and is told."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._hold: Hold | None = None

    def say(self, what: str, about: Any = None) -> None:
        self._pipe.send((what, about))

    def hear(self) -> Any:
        """What it is told next: that is waited for as long as there is who could say it."""
        return self._pipe.recv()

    def pause(self) -> None:
        if self._pipe.poll(_PAUSE):
            self._hold = self.hear()

    def at(self, step: str) -> None:
        """The process has come to a step of its work."""
        if self._pipe.poll():
            self._hold = self.hear()
        hold = self._hold
        if hold is None or hold.step != step:
            return
        self._hold = Hold(step, hold.after - 1) if hold.after else None
        if not hold.after:
            self.say("held", step)
            self.hear()


def _run(work: Callable[..., None], arguments: Sequence[Any], pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as Airflow ends a task: what is open is closed
    stage = Stage(pipe)
    try:
        work(stage, *arguments)
    except Exception:
        stage.say("failed", traceback.format_exc())


def _tries(stage: Stage) -> Iterator[Callable[[], None]]:
    """Each gives what is called if the try came to something; the next one comes after a pause if it was not."""
    vain = 0

    def done() -> None:
        nonlocal vain
        vain = 0

    while vain <= _TRIES:
        vain += 1
        yield done
        if vain:
            stage.pause()
    raise TimeoutError(f"{_TRIES} tries in a row came to nothing")


# --- the producer ---------------------------------------------------------------------------------


def produce(stage: Stage, stream: Topics, integers: int, parcel: int, seed: int) -> None:
    """Send integers in transactions of ``parcel``, as many as it is told to; some it aborts, and sends again later."""
    random, grant = Random(seed), 0
    waiting = deque(range(first, min(first + parcel, integers)) for first in range(0, integers, parcel))
    aborts = set(random.sample(range(len(waiting)), len(waiting) // 6 or 1))
    producer = Producer(
        {
            "bootstrap.servers": stream.broker,
            "transactional.id": "integers",
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    _retried(producer, producer.init_transactions)
    while waiting:
        while not grant:
            grant += stage.hear()
        numbers = waiting.popleft()
        number = numbers.start // parcel
        if _send(producer, stream.source, numbers, abort=number in aborts):
            grant -= 1
            stage.say("committed")
        else:  # also where the broker says that it has none of it
            aborts.discard(number)
            waiting.insert(2, numbers)
            stage.say("aborted")
    stage.say("sent")


def _send(producer: Producer, topic: str, numbers: Sequence[int], *, abort: bool) -> bool:
    refused: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer.begin_transaction()
    try:
        for n in numbers:
            k = n % KEYS
            producer.produce(topic, json.dumps({"k": k, "n": n}).encode(), str(k).encode(), on_delivery=told)
        while producer.flush(1):
            pass  # what is aborted is in the topic's log by then
        if refused:
            raise KafkaException(refused[0])
        if not abort:
            _retried(producer, producer.commit_transaction)
            return True
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    _retried(producer, producer.abort_transaction)
    return False


def _retried(producer: Producer, step: Callable[[], None]) -> None:
    """Broker away: the same step again says what became of it."""
    deadline = time.monotonic() + patience()
    while True:
        try:
            return step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            producer.poll(_PAUSE)


# --- the job's tasks ------------------------------------------------------------------------------


def work(stage: Stage, stream: Stream) -> None:
    """Open a barrier whenever there is something to read, run its job on Spark, and commit it; one after the other."""
    deployment = stream.connect()
    try:
        for done in _tries(stage):
            try:
                last = newest(deployment)
                number = (last.barrier_id if last else 0) + 1
                if stream.ends() == stream.ends_of(deployment, last):
                    done()
                    stage.pause()
                elif _process(stage, stream, deployment, number):
                    done()
            except Exception as error:  # Airflow tries again, whatever it was
                stage.say("try", f"{type(error).__name__}: {error}"[:500])
    finally:
        deployment.close()


def _process(stage: Stage, stream: Stream, deployment: Deployment, number: int) -> bool:
    opened = open_barrier(
        deployment,
        stream.fragment,
        START + timedelta(minutes=number),
        timestamp_from="test",
        run=run_of(f"dag/{number}"),
        actor="test",
    )
    assert isinstance(opened, Opened), opened
    assert opened.barrier.barrier_id == number
    stage.at(OPENED)
    step = begin(
        deployment,
        opened.barrier,
        "load",
        Asking(request_key=f"dag/{number}/load", generation="1/1", actor="test", owner="dag"),
    )
    if isinstance(step, Waiting):
        stage.say("try", step.reason)
        return False
    if isinstance(step, Ready):
        stage.at(BEGUN)
        try:
            record = ConnectRun(stream.spark, step.spec).run(lambda epoch: _load(stage, epoch))
        except BaseException as error:
            give_up(deployment, step.attempt.attempt_id, reason=type(error).__name__, actor="test")
            raise
        close(deployment, step.attempt, record=record, actor="test")
    stage.at(CLOSED)
    committed = commit_barrier(deployment, TOPOLOGY, number, actor="test")
    assert isinstance(committed, Committed), committed
    stage.say("barrier", number)
    return True


def _load(stage: Stage, epoch: Epoch) -> None:
    frame = epoch.source("integers")
    stage.at(READING)
    if frame.isEmpty():
        epoch.unchanged(TABLE)
    else:
        frame.writeTo(epoch.target(TABLE)).append()
    stage.say(WRITTEN)
    stage.at(WRITTEN)


# --- the deliverer's tasks ------------------------------------------------------------------------


def deliver(stage: Stage, stream: Stream, name: str) -> None:
    """Deliver whatever is COMMIT, the first barrier by itself; ``name`` tells the task from others."""
    delivering._PAUSE = _PAUSE
    stream.watch(stage)
    deployment, session = stream.connect(), connect_session(stream.spark)
    meta = deployment.meta.deliveries
    try:
        record = meta.register(TOPOLOGY, stream.sink, "test")
        other = record.deliverer
        for done in _tries(stage):
            last, position = newest(deployment), meta.get(TOPOLOGY, SINK).position
            assert last is not None
            if position is not None and position.barrier_id == last.barrier_id:
                done()
                stage.pause()
                continue
            through = last if position else deployment.meta.barriers.get(TOPOLOGY, 1)
            try:
                record, other = meta.claim(TOPOLOGY, SINK, name, other), None
                receipts = delivering.deliver(
                    deployment,
                    record,
                    through,
                    stream.credentials,
                    lambda extracts, folder: write_extracts(session, deployment.spark_catalog, extracts, folder),
                    request_key=name,
                    actor="test",
                )
            except Retryable as error:
                stage.say("try", f"{type(error).__name__}: {error}"[:500])
            else:
                done()
                stage.say("delivered", [(each.barrier.barrier_id, each.told) for each in receipts])
    finally:
        stop_session(session)
        deployment.close()


def position_of(deployment: Deployment) -> Position | None:
    """What the deliverers have delivered last, as the MetaService knows it."""
    sinks = {sink.name: sink for sink in deployment.meta.deliveries.of(TOPOLOGY)}
    return sinks[SINK].position if SINK in sinks else None


# --- a process, from outside ----------------------------------------------------------------------


class Hand:
    """A process that does ``work``. ``heard``: what it has said since what was waited for last; ``counted``: all."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self.name = work.__name__
        self.heard: list[tuple[str, Any]] = []
        self.counted: Counter[str] = Counter()
        self._pipe, theirs = PROCESSES.Pipe()
        self._process: ForkServerProcess = PROCESSES.Process(target=_run, args=(work, arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, what: Any) -> None:
        self._pipe.send(what)

    def hold(self, step: str, after: int = 0) -> None:
        """Have it wait at a step of its work, from now on."""
        self.look()
        self.tell(Hold(step, after))

    def go_on(self) -> None:
        self.tell(None)

    def look(self) -> None:
        """Hear what it has said by now. Fails if it has ended."""
        while self._pipe.poll():
            self._take()

    def wait(self, what: str) -> Any:
        """Until it says so; what about."""
        while True:
            for number, (said, about) in enumerate(self.heard):
                if said == what:
                    del self.heard[: number + 1]
                    return about
            assert self._pipe.poll(patience()), f"{self.name} does not say that it is {what}, but {self.heard[-9:]}"
            self._take()

    def end(self, signum: int) -> None:
        """Send the signal, and wait for the end."""
        assert self._process.pid is not None
        self.look()
        self._process._popen._send_signal(signum)  # type: ignore[attr-defined]
        self._process.join(patience())
        code = 0 if signum == signal.SIGTERM else -signum
        assert self._process.exitcode == code, (
            f"{self.name}: {self._process.exitcode} after {signum}: {self.heard[-9:]}"
        )

    def close(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _take(self) -> None:
        try:
            said = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"{self.name} has ended: {self.heard[-9:]}") from None
        assert said[0] != "failed", f"{self.name}: {said[1]} after {self.heard[-3:]}"
        self.heard.append(said)
        self.counted[said[0]] += 1


@contextmanager
def hands() -> Iterator[list[Hand]]:
    """Those that are added end with the block."""
    found: list[Hand] = []
    try:
        yield found
    finally:
        for hand in found:
            hand.close()


class Crew:
    """The producer, and those that are the job and the deliverer at present."""

    def __init__(self, stream: Stream, found: list[Hand]) -> None:
        self.stream, self._hands = stream, found
        self._deliverers = 0

    def begin(self, grant: int, producing: Callable[..., None], *arguments: Any) -> None:
        """All processes, and a first barrier. ``grant``: parcels that the producer may send at a time."""
        self._grant = grant
        self.producer = self._hand(producing, self.stream, *arguments)
        self.job = self._hand(work, self.stream)
        self.feed()
        self.job.wait("barrier")
        self.deliverer = self._new_deliverer()

    def feed(self) -> None:
        """Let the producer send some more."""
        self.producer.look()
        self.producer.tell(self._grant)

    def replace(self, hand: Hand, signum: int) -> None:
        """Send the signal to the job or the deliverer, and have another one in its place."""
        hand.end(signum)
        if hand is self.job:
            self.job = self._hand(work, self.stream)
        else:
            self.deliverer = self._new_deliverer()

    def finish(self, parcels: int, settled: Callable[[], None] = lambda: None) -> None:
        """The rest of the parcels, until all is delivered. ``settled``: waits until all of them can be read."""
        self.producer.tell(parcels)
        self.producer.wait("sent")
        settled()
        ends, deployment = self.stream.ends(), self.stream.connect()

        def is_delivered() -> bool:
            self.job.look()
            self.deliverer.look()
            last = newest(deployment)
            assert last is not None
            at = position_of(deployment)
            return self.stream.ends_of(deployment, last) == ends and at == Position(last.barrier_id, 0)

        wait_for("all integers to be delivered", is_delivered)
        deployment.close()
        for hand in (self.job, self.deliverer):
            hand.end(signal.SIGTERM)

    def _new_deliverer(self) -> Hand:
        self._deliverers += 1
        return self._hand(deliver, self.stream, f"deliverer {self._deliverers}")

    def _hand(self, work: Callable[..., None], *arguments: Any) -> Hand:
        hand = Hand(work, *arguments)
        self._hands.append(hand)
        return hand
