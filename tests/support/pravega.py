"""A real Pravega for the tests of one process: controller, segment store and ZooKeeper in one Java process, which keeps
everything in memory. And a cluster of several processes, of which a test may kill those that are Pravega's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_barrier.project.java import find_java
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import SourceUnavailableError
from airflow_barrier.systems.pravega import Client
from demo.jars import resolved
from tests.support.ports import free_port
from tests.support.serving import JARS, await_answer, killed, serving, started
from tests.support.waiting import patience, wait_for

if TYPE_CHECKING:
    from typing_extensions import Self

_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SCOPE = "shop"
#: Seconds for a test that may have to wait for them, three minutes where the network is slow.
DOWNLOADS = 900


class Owner(Client):
    """One who owns streams. :class:`tests.support.pravega_process.Owner` has its requests."""

    module = "tests.support.pravega_process"


class Pravega:
    """A server, and an owner of streams in :data:`SCOPE`."""

    def __init__(self, port: int, owner: Owner) -> None:
        self.credentials = Credentials("pravega", "127.0.0.1", port)
        self._owner = owner

    def ask(self, request: str, *arguments: Any) -> Any:
        """A request of the owner's, in the scope."""
        return self._owner.ask(request, SCOPE, *arguments)

    def stream(self, segments: int = 1) -> str:
        """A new stream's name."""
        name = f"s-{uuid4().hex}"
        self.ask("make", name, segments)
        return name

    def write(self, stream: str, events: Iterable[tuple[str, bytes]]) -> None:
        """Events by their routing keys."""
        self.ask("write", stream, list(events))

    def events(self, stream: str) -> list[bytes]:
        """All events, those of a routing key in their order."""
        return self.ask("events", stream)  # type: ignore[no-any-return]

    def tail(self, stream: str) -> dict[int, int]:
        return self.ask("tail", stream, f"t-{uuid4().hex}")  # type: ignore[no-any-return]


@contextmanager
def pravega_server(folder: Path) -> Iterator[Pravega]:
    names = ("zk.port", "segmentStore.port", "controller.rpc.port", "controller.rest.port", "admin.gateway.port")
    ports = {name: free_port() for name in names}
    settings = {**ports, "controller.rest.enable": "false", "admin.gateway.enable": "false"}
    (folder / "config").mkdir()
    lines = "".join(f"singlenode.{name}={value}\n" for name, value in settings.items())
    (folder / "config" / "standalone-config.properties").write_text(lines)
    command = [find_java(), "-Xmx512m", *_OPTIONS, "-cp", _jars(), "io.pravega.local.LocalPravegaEmulator"]
    port = ports["controller.rpc.port"]
    entered = Credentials("pravega", "127.0.0.1", port)
    with (
        serving(command, f"tcp://127.0.0.1:{port}", folder / "log"),
        Owner("a test", entered, SourceUnavailableError, int(patience())) as owner,
    ):
        owner.ask("make_scope", SCOPE)
        yield Pravega(port, owner)


@pytest.fixture(scope="session")
def pravega(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pravega]:
    """The server that tests share: they make streams on it and leave it alone otherwise."""
    with pravega_server(tmp_path_factory.mktemp("pravega")) as server:
        yield server


#: Milliseconds after which ZooKeeper counts a killed process as gone. This is the least that it grants: twice the tick
#: that BookKeeperServiceRunner sets.
_SESSION = 6000
_LEDGERS = "/pravega/bookkeeper/ledgers"
_MAINS = {
    "keeper": "io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperServiceRunner",
    "store": "io.pravega.segmentstore.server.host.ServiceStarter",
    "controller": "io.pravega.controller.server.Main",
}
_CONTAINERS = 4
#: A scope, a stream and a group of readers by which it is seen that the cluster answers: the segments of the stream are
#: in all containers.
_PROBE = "probe"
_PROBED_SEGMENTS = 16
#: Seconds for each answer to a probe: the client itself tries for ever, ever more seldom.
_PROBE_PATIENCE = 4


class Cluster(Pravega):
    """A Pravega of three processes, which keep everything in a folder: ``keeper`` is ZooKeeper with a bookie, ``store``
    the segment store, and ``controller``. The last two can be killed and started again: nothing is lost. A context
    manager: entering it starts them, and leaving it ends them.

    >>> with Cluster(tmp_path) as cluster:  # doctest: +SKIP
    ...     stream = cluster.stream()
    ...     cluster.kill("store")
    ...     cluster.start("store")
    ...     cluster.write(stream, [("a", b"1")])
    """

    def __init__(self, folder: Path) -> None:
        self._ports = {name: free_port() for name in ("zookeeper", "bookie", "store", "controller", "rest")}
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        credentials = Credentials("pravega", "127.0.0.1", self._ports["controller"])
        owner = Owner("a test", credentials, SourceUnavailableError, int(patience()))
        super().__init__(self._ports["controller"], owner)

    def __enter__(self) -> Self:
        with ExitStack() as failing:
            failing.callback(self.__exit__)
            self._run("keeper")
            self._await("keeper", "bookie")
            self.start("store", "controller")
            self._owner.__enter__()
            self.ask("make_scope")
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.__exit__()
        for process in self._processes.values():
            killed(process)

    def kill(self, name: str) -> None:
        """SIGKILL, as when the machine is lost: for ``store`` or ``controller``."""
        killed(self._processes.pop(name))

    def start(self, *names: str) -> None:
        """Start ``store``, ``controller`` or both, and wait until they answer; once both run, also until a client
        can write to all containers and read where they end.
        """
        for name in names:
            self._run(name)
        for name in names:
            self._await(name, name)
        if len(self._processes) == len(_MAINS):
            wait_for(f"Pravega, whose logs are {self._folder}/*/log", self._serves)

    def _run(self, name: str) -> None:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        settings = [f"-D{setting}={value}" for setting, value in self._settings(name, folder).items()]
        with (folder / "log").open("ab") as log:
            command = [find_java(), "-Xmx400m", *_OPTIONS, *settings, "-cp", _jars(), _MAINS[name]]
            self._processes[name] = started(command, log, folder)

    def _await(self, name: str, port: str) -> None:
        await_answer(self._processes[name], f"tcp://127.0.0.1:{self._ports[port]}", self._folder / name / "log")

    def _serves(self) -> bool:
        """Return whether a client that knows nothing of earlier processes can write and read."""
        with Owner("a test", self.credentials, SourceUnavailableError, _PROBE_PATIENCE) as owner:
            try:
                if not owner.ask("has", _PROBE, _PROBE):
                    owner.ask("make_scope", _PROBE)
                    owner.ask("make", _PROBE, _PROBE, _PROBED_SEGMENTS)
                owner.ask("write", _PROBE, _PROBE, [(str(key), b"") for key in range(10 * _PROBED_SEGMENTS)])
                owner.ask("tail", _PROBE, _PROBE, _PROBE)
            except SourceUnavailableError:
                return False
        return True

    def _settings(self, name: str, folder: Path) -> Mapping[str, object]:
        """Return the system properties of a process."""
        zookeeper = f"127.0.0.1:{self._ports['zookeeper']}"
        if name == "keeper":
            # Its data are in folders for temporary files.
            (folder / "data").mkdir(exist_ok=True)
            return {
                "java.io.tmpdir": folder / "data",
                "startZk": "true",
                "zkPort": self._ports["zookeeper"],
                "zkLedgersPath": _LEDGERS,
                "bookieCount": 1,
                "basePort": self._ports["bookie"],
            }
        if name == "store":
            (settings := folder / "settings").touch()
            return {
                "pravega.configurationFile": settings,  # there has to be one
                "pravegaservice.container.count": _CONTAINERS,
                "pravegaservice.container.parallelStarts": _CONTAINERS,
                "pravegaservice.zk.connect.uri": zookeeper,
                "pravegaservice.zk.connect.sessionTimeout.milliseconds": _SESSION,
                "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
                "pravegaservice.service.listener.port": self._ports["store"],
                "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
                "pravegaservice.service.published.port": self._ports["store"],
                "pravegaservice.rest.listener.enable": "false",
                "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
                "pravegaservice.storage.impl.name": "FILESYSTEM",
                "pravegaservice.storage.layout": "CHUNKED_STORAGE",
                "pravegaservice.cache.size.max": 1 << 26,  # less than Java's direct memory, 4 GiB otherwise
                "filesystem.root": folder / "segments",
                "bookkeeper.zk.connect.uri": zookeeper,
                "bookkeeper.zk.connect.sessionTimeout.milliseconds": _SESSION,
                "bookkeeper.ledger.path": _LEDGERS,
                # one bookie can keep one copy
                "bookkeeper.ensemble.size": 1,
                "bookkeeper.write.quorum.size": 1,
                "bookkeeper.ack.quorum.size": 1,
                "durablelog.start.retry.delay.millis": 500,  # a minute otherwise
                "autoScale.controller.connect.uri": f"tcp://127.0.0.1:{self._ports['controller']}",
            }
        return {
            "controller.container.count": _CONTAINERS,
            "controller.zk.connect.uri": zookeeper,
            "controller.zk.connect.session.timeout.milliseconds": _SESSION,
            "controller.rebalance.interval.seconds.min": 1,
            "controller.service.rpc.listener.port": self._ports["controller"],
            "controller.service.rpc.published.host.nameOrIp": "127.0.0.1",
            "controller.service.rpc.published.port": self._ports["controller"],
            "controller.service.rest.listener.host.ip": "127.0.0.1",
            "controller.service.rest.listener.port": self._ports["rest"],
        }


def _jars() -> str:
    return ":".join(map(str, resolved(Path(__file__).with_name("pravega.ivy.xml"), JARS)))


@pytest.fixture
def pravega_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of a test's own, which may kill its processes."""
    with Cluster(tmp_path) as cluster:
        yield cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on a machine waits until the server's jars are downloaded."""
    for item in items:
        is_about_it = {"pravega", "pravega_cluster"} & set(getattr(item, "fixturenames", ()))
        if is_about_it and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DOWNLOADS))
