"""A real Pravega for the tests of one process: controller, segment store and ZooKeeper in one Java process, which keeps
everything in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import SourceUnavailableError
from airflow_barrier.systems.pravega import Client
from demo.jars import resolved
from tests.support.ports import free_port
from tests.support.serving import JARS, serving
from tests.support.waiting import patience

_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SCOPE = "shop"


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
    from airflow_barrier.project.java import find_java

    names = ("zk.port", "segmentStore.port", "controller.rpc.port", "controller.rest.port", "admin.gateway.port")
    ports = {name: free_port() for name in names}
    settings = {**ports, "controller.rest.enable": "false", "admin.gateway.enable": "false"}
    (folder / "config").mkdir()
    lines = "".join(f"singlenode.{name}={value}\n" for name, value in settings.items())
    (folder / "config" / "standalone-config.properties").write_text(lines)
    jars = resolved(Path(__file__).with_name("pravega.ivy.xml"), JARS)
    command = [find_java(), *_OPTIONS, "-cp", ":".join(map(str, jars)), "io.pravega.local.LocalPravegaEmulator"]
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
