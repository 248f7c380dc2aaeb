"""The local Spark server says in one sentence why it cannot start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_barrier.project.java import find_java
from airflow_barrier.protocol.errors import ConfigurationError
from demo.local_spark import LocalConnectServer, LocalSparkError
from tests.support.spark import IVY
from tests.support.waiting import wait_for


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"^Spark needs Java 17 or newer, and java was not found: install .*\.$"
    ):
        find_java()


def test_a_java_home_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/bin/java was not found"):
        find_java()


@pytest.mark.parametrize(("said", "found"), [('openjdk version "11.0.2"', "11"), ('java version "1.8.0_202"', "8")])
def test_an_old_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, found: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"^Spark needs Java 17 or newer, and \S+ is {found}: install .*\.$"):
        find_java()


def test_a_server_that_dies_shows_its_log(tmp_path: Path) -> None:
    server = LocalConnectServer(tmp_path / "wh", tmp_path / "catalog.db", IVY, conf={"spark.master": "nonsense"})
    said = r"(?s)Spark ended with code 1 while starting.*Master must either.*the whole log: "
    with pytest.raises(LocalSparkError, match=said):
        server.start()


STARTER = """
import sys
from pathlib import Path
from demo.local_spark import LocalConnectServer
folder, ivy = map(Path, sys.argv[1:])
server = LocalConnectServer(folder / "wh", folder / "catalog.db", ivy).start()
print(server._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.drawn("drivers of their own")
def test_a_killed_run_leaves_no_server_behind(tmp_path: Path) -> None:
    assert shutil.which("setpriv"), "util-linux's setpriv ties a process to its parent: install util-linux"
    checkout = Path(__file__).parents[2]
    command = [sys.executable, "-c", STARTER, str(tmp_path), str(IVY)]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid = run.stdout.readline().strip()
        server = Path("/proc") / pid
        assert pid
        assert server.exists()
        run.kill()
    wait_for(
        "the end of the server that a killed run had started",
        lambda: not server.exists() or "State:\tZ" in (server / "status").read_text(),
    )
