"""Processes that do something at the same moment: each with a deployment of its own, as workers on several machines.

They live as long as their test, so that a race costs milliseconds and can be run many times.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier as Gate
from types import TracebackType
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import BarrierError
from tests.support.waiting import patience

# Children are forked from a server that has imported what takes long, and that has neither threads nor connections:
# a fork of the test process itself would inherit those of a Spark session.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "tests.support.stacks",
        "tests.sinks.behaviour",
        "pyarrow.dataset",
        "pyiceberg.catalog.sql",
        "pyiceberg.table",
        "alembic.command",
    ]
)

#: What a racer does: a function of a module, its first argument the racer's own deployment.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class _Crashed:
    """Something other than an answer of ours came out."""

    trace: str


class Racers:
    """One process for each of ``settings``.

    with Racers([settings] * 6) as racers:
        outcomes = racers.race([(commit, (1,))] * 6)
    """

    def __init__(self, settings: Sequence[Settings]) -> None:
        self._settings = settings
        self._gate = PROCESSES.Barrier(len(settings))
        self._pipes: list[Connection] = []
        self._running: list[Any] = []

    def __enter__(self) -> Racers:
        for one in self._settings:
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=_run, args=(one, self._gate, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._running.append(process)
        for pipe in self._pipes:
            _answer(pipe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._running:
            process.join(timeout=patience())
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def race(self, calls: Sequence[Call]) -> list[Any]:
        """One call a racer, all at once. What each returned, or the BarrierError that it got."""
        self.start(calls)
        return self.finish()

    def start(self, calls: Sequence[Call]) -> None:
        assert len(calls) == len(self._pipes), "a call for each racer"
        for pipe, call in zip(self._pipes, calls, strict=True):
            pipe.send(call)

    def finish(self) -> list[Any]:
        answers = [_answer(pipe) for pipe in self._pipes]
        traces = [answer.trace for answer in answers if isinstance(answer, _Crashed)]
        assert not traces, f"{len(traces)} racers got an error that says nothing to its user:\n{traces[0]}"
        return answers


def _answer(pipe: Connection) -> Any:
    assert pipe.poll(patience()), "a racer does not answer"
    return pipe.recv()


def _run(settings: Settings, gate: Gate, pipe: Connection) -> None:
    deployment = Deployment.connect(settings)
    deployment.meta.check()
    deployment.tables.check()
    pipe.send("ready")
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            break
        gate.wait(timeout=patience())
        try:
            answer = work(deployment, *arguments)
        except BarrierError as error:
            answer = error
        except BaseException:  # handed to the test, which fails of it
            answer = _Crashed(traceback.format_exc())
        pipe.send(answer)
    deployment.close()
