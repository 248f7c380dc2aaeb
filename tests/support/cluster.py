"""A Spark standalone cluster on loopback: a master and two workers, each a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_barrier.project.java import find_java
from tests.support.ports import free_port
from tests.support.waiting import patience

_WORKERS = 2


@dataclass
class Cluster:
    """``url`` is what drivers connect to; the pages of master and workers know what ran where."""

    folder: Path
    url: str = ""
    _pages: dict[str, str] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._spawn("master", "master.Master", ["--port", str(port)])
        self._until(lambda: self._page("master")["status"] == "ALIVE", "the master to answer")
        for number in range(1, _WORKERS + 1):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work{number}"), self.url]
            self._spawn(f"worker{number}", "worker.Worker", options)
        self._until(lambda: self._page("master")["aliveworkers"] == _WORKERS, f"{_WORKERS} workers to join")

    def stop(self) -> None:
        """Executors have groups of their own, and end when their worker ends in good order."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signum)
            for process in self._processes.values():
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    continue

    def application(self, name: str) -> dict[str, Any]:
        """What the master says of the newest application with this name."""
        page = self._page("master")
        found = [app for app in [*page["activeapps"], *page["completedapps"]] if app["name"] == name]
        assert found, f"no application {name}; the master knows {page['completedapps']}"
        return dict(max(found, key=lambda app: app["starttime"]))

    def workers_of(self, application_id: str) -> set[str]:
        """The workers on which executors of an application ran."""
        return {
            name
            for name in self._pages
            if name != "master"
            for executor in [*self._page(name)["executors"], *self._page(name)["finishedexecutors"]]
            if executor["appid"] == application_id
        }

    # --- processes --------------------------------------------------------------------------------

    def _spawn(self, name: str, main: str, options: Sequence[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        web = free_port()
        self._pages[name] = f"http://127.0.0.1:{web}/json/"
        with (self.folder / f"{name}.log").open("wb") as log:
            # Where Linux's setpriv is there, a killed test run takes its cluster along.
            dying_with_us = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
            self._processes[name] = subprocess.Popen(
                [
                    *dying_with_us,
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{main}",
                    *("--host", "127.0.0.1", "--webui-port", str(web)),
                    *options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "JAVA_HOME": str(Path(find_java()).resolve().parents[1]),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                start_new_session=True,
            )

    def _page(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._pages[name], timeout=patience()) as answer:
            return dict(json.load(answer))

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + patience()
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass  # it does not listen yet
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; ended: {ended or 'none'}\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        return "\n".join(
            f"--- {name}\n" + "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])
            for name in self._processes
        )
