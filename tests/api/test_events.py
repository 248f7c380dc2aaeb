"""The stream of changes, from a real server."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.api.live import changes
from tests.support.ports import free_port
from tests.support.waiting import patience, wait_for


class Server:
    """With two topologies, of which user `shop` sees one."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "barrier.db"
        self.meta = MetaService(f"sqlite:///{self.file}", create=True)
        for name in ("shop", "secret"):
            self.change(name)
        port, self.log = free_port(), folder / "log"
        self.url = f"http://127.0.0.1:{port}/v1/deployments/prod/events"
        command = [sys.executable, "-m", "tests.api.serving", f"sqlite:///{self.file}", str(port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=log, stderr=log)
        wait_for("the server", lambda: "running on" in self.log.read_text())

    def change(self, name: str) -> None:
        """Register one more table."""
        known = self.meta.topologies.names()
        jobs = self.meta.topologies.get(name).jobs if name in known else ()
        more = Job(f"job_{len(jobs)}", name, outlets=(f"{name}.table_{len(jobs)}",))
        self.meta.topologies.register(name, name, [*jobs, more], "test")

    def rename(self, table: str, name: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(f"ALTER TABLE {table} RENAME TO {name}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        server.meta.close()


def test_changes_of_what_is_seen_come_until_the_server_ends(server: Server) -> None:
    with httpx.stream("GET", server.url, headers={"user": "shop"}, timeout=patience(60)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = changes(answer.iter_lines())
        name, first = next(told)
        server.change("secret")
        server.change("shop")
        assert (name, next(told)) == ("shop", ("shop", first + 1))
        # the MetaService cannot be asked for a while
        server.rename("barrier_schema_version", "away")
        wait_for("a look in vain", lambda: "expected schema version" in server.log.read_text())
        server.rename("away", "barrier_schema_version")
        server.change("shop")
        assert next(told) == ("shop", first + 2)
        server.process.send_signal(signal.SIGTERM)
        assert list(told) == []
    assert server.process.wait(patience(30)) in (0, -signal.SIGTERM)
    assert "Traceback" not in server.log.read_text()
