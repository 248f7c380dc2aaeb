"""Processes that deliver and may be killed: children of a warm parent, since a test runner has threads and cannot fork.

The parent has imported everything and opened nothing. A :class:`Lane` is the test's end of it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg  # noqa: F401
import pyiceberg.catalog.sql  # noqa: F401

import airflow_barrier.coordinator.delivering as delivering
import airflow_barrier.sinks.postgresql.channel  # noqa: F401
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.deliveries import Deliveries
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.sinks.port import Sink
from tests.crash.processes import Child, Tell, fork
from tests.delivering.feed import Feed

_ROOT = Path(__file__).parents[2]
#: Where a deliverer suspends itself: the sink has committed, and the MetaService has not, or has, heard of it.
BEFORE_TELLING, AFTER_TELLING = "before telling", "after telling"


@dataclass(frozen=True)
class Order:
    """One delivery. ``through``: a barrier's number (None: the newest one). ``suspended``: where it suspends itself."""

    settings: Settings
    sink: Sink
    targets: Mapping[str, str]
    credentials: Credentials
    through: int | None = None
    request_key: str = "child"
    suspended: str | None = None
    pause: float = 0.01


@dataclass(frozen=True)
class Ended:
    """``code``: the exit code, or minus the signal. ``delivered``: barriers that it received receipts for."""

    code: int
    said: list[dict[str, Any]]

    @property
    def delivered(self) -> list[int]:
        assert self.code == 0, self.said
        return [number for thing in self.said for number in thing.get("delivered", ())]

    @property
    def error(self) -> str:
        """The name of the error that it ended by; nothing if it ended well."""
        return "" if self.code == 0 else str(self.said[-1]["error"]).partition(":")[0]


class Lane:
    """Starts children and waits for them; a child is known by its process id."""

    def __init__(self) -> None:
        code = f"import sys; sys.path.append({str(_ROOT)!r}); from {__name__} import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT / "tests",  # where `airflow_barrier` is the installed one
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._answers = Child(self._process.pid, self._process.stdout.fileno())

    def start(self, order: Order) -> int:
        return int(self._ask("start", order))

    def end(self, pid: int) -> Ended:
        """Wait for its end."""
        return Ended(*self._ask("end", pid))

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        ended = self.end(pid)
        assert ended.code == -signal.SIGKILL, f"it ended before it was killed: {ended}"

    def suspended(self, pid: int) -> None:
        """Wait until it has suspended itself."""
        self._ask("suspended", pid)

    def run(self, order: Order) -> Ended:
        return self.end(self.start(order))

    def close(self) -> None:
        """With all of its children, among them suspended ones."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _ask(self, verb: str, about: object) -> Any:
        assert self._process.stdin is not None
        pickle.dump((verb, about), self._process.stdin)
        self._process.stdin.flush()
        said = self._answers.told()
        assert said is not None, "the warm parent has ended, as its errors say"
        return said["answer"]


@contextmanager
def lane() -> Iterator[Lane]:
    opened = Lane()
    try:
        yield opened
    finally:
        opened.close()


def main() -> None:
    children: dict[int, Child] = {}
    with suppress(EOFError):
        while True:
            verb, about = pickle.load(sys.stdin.buffer)
            answer: Any = None
            if verb == "start":
                assert threading.active_count() == 1, "a process that forks must have no threads"
                child = fork(lambda tell, order=about: _deliver(order, tell))  # type: ignore[misc]
                children[child.pid] = child
                answer = child.pid
            elif verb == "suspended":
                children[about].stopped()
            else:
                code, said = children.pop(about).end()
                _import(module for thing in said for module in thing.pop("modules", ()))
                answer = [code, said]
            print(json.dumps({"answer": answer}), flush=True)


def _import(modules: Iterator[str]) -> None:
    """What tasks import when they need it, found out by the children before."""
    found = [module for module in modules if module not in sys.modules]
    for module in found:
        with suppress(ImportError):  # a part of a compiled module has no file
            importlib.import_module(module)
    if found:
        gc.collect()
        gc.freeze()


def _deliver(order: Order, tell: Tell) -> None:
    delivering._PAUSE = order.pause
    known = set(sys.modules)
    deployment = Deployment.connect(order.settings)
    if order.suspended is not None:
        _suspend(order.suspended)
    through = None if order.through is None else deployment.meta.barriers.get("shopping", order.through)
    receipts = Feed(deployment, order.settings).deliver(
        order.sink, order.targets, order.credentials, through, request_key=order.request_key
    )
    tell({"delivered": [receipt.barrier.barrier_id for receipt in receipts]})
    tell({"modules": sorted(set(sys.modules) - known)})


def _suspend(where: str) -> None:
    """The first time that it tells the MetaService what was delivered."""
    original: Any = Deliveries.delivered

    def delivered(self: Deliveries, *arguments: Any, **options: Any) -> Any:
        Deliveries.delivered = original  # type: ignore[method-assign]
        if where == BEFORE_TELLING:
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = original(self, *arguments, **options)
        if where == AFTER_TELLING:
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    Deliveries.delivered = delivered  # type: ignore[method-assign,assignment]
