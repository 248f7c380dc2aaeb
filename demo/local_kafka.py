"""A real Kafka broker on loopback, with data of its own, which ends with the process that started it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from demo.jars import resolved

if TYPE_CHECKING:
    from typing_extensions import Self

_JAVA = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT",
    **{name: name for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")},
}


class LocalKafkaError(RuntimeError):
    """The broker cannot be started; the message says what it said."""


class LocalKafka:
    """One broker, which is its own controller, and its data, which it keeps when it is killed and started again.

    ``port`` is that of clients without credentials, who may do everything, and ``controller`` the one by which broker
    and controller talk. ``jars`` is the folder that jars are downloaded to. ``options`` are properties of the broker
    that are added to its own, also to its ``listeners``. Leaving the context stops the broker and takes its data away.

    >>> with LocalKafka(9092, 9093, Path(".demo/ivy/catalogs")) as broker:  # doctest: +SKIP
    ...     broker.start()
    ...     broker.create_topic("purchases", partitions=2)
    """

    #: How long it may take until the broker answers, and until it has stopped.
    patience = 30.0

    def __init__(self, port: int, controller: int, jars: Path, options: Mapping[str, str] | None = None) -> None:
        self.address = f"127.0.0.1:{port}"
        self._jars = jars.resolve()
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-barrier-kafka-"))
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        own = dict(options or {})
        others = filter(None, [own.pop("listeners", None)])
        self._options = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items()),
            "log.dirs": str(self._folder / "data"),
            "log.retention.ms": "-1",  # what a demo or a test sends is years old
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # a killed broker may come again as soon as its session has ended
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # one broker can keep one copy
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "4",
            **own,
            "listeners": ",".join([f"PLAINTEXT://{self.address}", f"CONTROLLER://127.0.0.1:{controller}", *others]),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()  # nothing that it keeps is needed afterwards
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start, or start again, and wait until it answers. The first start makes the data."""
        properties = self._folder / "broker.properties"
        if not properties.exists():
            properties.write_text("".join(f"{name}={value}\n" for name, value in self._options.items()))
            self._format(properties)
        # Where Linux's setpriv is there, a killed demo or test run takes its broker along.
        dying_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*dying_with_us, *self._java(), "kafka.Kafka", str(properties)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,  # Ctrl+C is for us, who stop it
            )
        admin, deadline = self.admin(), time.monotonic() + self.patience
        while not self._answers(admin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
                raise LocalKafkaError(f"Kafka does not start:\n{tail}\n(the whole log: {self._log})")

    def kill(self) -> None:
        """SIGKILL, as when the machine is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator does."""
        self._end(signal.SIGTERM)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Raises KafkaException if it is there already. ``config``: its settings, with _ for each dot."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin()  # held: a client that is let go of gives up what it has asked for
        admin.create_topics([topic])[name].result(self.patience)
        deadline = time.monotonic() + self.patience
        while not self._serves(admin, name, partitions):  # it is made before the broker knows it and leads it
            if time.monotonic() > deadline:
                raise LocalKafkaError(f"Kafka has made topic {name}, and does not serve it")
            time.sleep(0.02)

    def _serves(self, admin: AdminClient, name: str, partitions: int) -> bool:
        ends = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}
        try:
            for answer in admin.list_offsets(ends).values():
                answer.result(self.patience)
        except KafkaException:
            return False
        return True

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def _end(self, signum: int) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        self._process.wait(self.patience)
        self._process = None

    def _answers(self, admin: AdminClient) -> bool:
        """Also whether its controller does, which makes topics and answers after the broker's port."""
        broker = ConfigResource(ConfigResource.Type.BROKER, self._options["node.id"])
        try:
            admin.list_topics(timeout=1)
            admin.describe_configs([broker])[broker].result(self.patience)
        except KafkaException:
            return False
        return True

    def _format(self, properties: Path) -> None:
        arguments = ["format", "--standalone", f"--cluster-id={_cluster_id()}", "--config", str(properties)]
        command = [*self._java(), "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.patience, check=False)
        if done.returncode != 0:
            raise LocalKafkaError(f"Kafka's data folder cannot be made:\n{done.stdout}{done.stderr}")

    def _java(self) -> list[str]:
        from airflow_barrier.project.java import find_java

        jars = ":".join(map(str, resolved(Path(__file__).with_name("kafka.ivy.xml"), self._jars)))
        return [find_java(), *_JAVA, "-cp", jars]


def _cluster_id() -> str:
    """As Kafka has it: 16 bytes, in Base64 for URLs without its padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
