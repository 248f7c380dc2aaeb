"""Tasks that run the coordinator's functions and may stop before any operation on a store, a catalog or a file.

A task is a greenlet. Whoever drives it says how many operations it may do, or which one it may not do any more; then
it stands still, in the middle of the production code, until it is driven again (a zombie that wakes) or for ever (its
process was killed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.records import Barrier


class Stepping:
    """Which task is running, and whether it may be stopped here."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.trace: list[str] | None = None
        self._depth = 0

    def step(self, what: str) -> None:
        """Called before each operation."""
        task = self.task
        if self.trace is not None:
            self.trace.append(f"{task.name if task else '-'}: {what}")
        # Inside of a transaction nobody else could do anything: a task that dies there dies before it.
        if task is not None and self._depth == 0:
            task.step(what)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Inside of a transaction."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


stepping = Stepping()


class Task:
    """``work`` runs to its end, or to a `BarrierError`, which is an outcome like others."""

    def __init__(self, name: str, work: Callable[[Task], Any]) -> None:
        self.name = name
        self.work = work
        self.result: Any = None
        self.error: BarrierError | None = None
        #: where it stands still
        self.at = "start"
        #: the operations that it did
        self.steps = 0
        #: an attempt that it runs, once it has one
        self.attempt_id: int | None = None
        #: those that a person named when planning a revision
        self.jobs: tuple[str, ...] = ()
        #: the worker is gone while the Spark driver that it started goes on
        self.orphan = False
        #: its driver says something else than it does
        self.lies = False
        #: makes the task that goes on, if this one is told to come back later
        self.again: Callable[[], Task] | None = None
        #: the one that it found
        self.found: Barrier | None = None
        self._left: int | None = 0
        self._before: tuple[str, ...] = ()
        self._buried = False
        self._greenlet = greenlet(self._run)

    @property
    def paused(self) -> bool:
        return not self._greenlet.dead

    def advance(self, steps: int | None, before: tuple[str, ...] = ()) -> None:
        """Up to so many operations (None: all), but none that begins like one of ``before``."""
        self._left, self._before = steps, before
        stepping.task = self
        try:
            self._greenlet.switch()
        finally:
            stepping.task = None

    def step(self, what: str) -> None:
        if self._buried:
            raise GreenletExit
        if self._left == 0 or what.startswith(self._before):
            self.at = what
            assert getcurrent().parent is not None
            getcurrent().parent.switch()
            self.step(what)
            return
        if self._left is not None:
            self._left -= 1
        self.steps += 1

    def bury(self) -> None:
        """Let go of a task that will not go on: none of its later operations is done."""
        self._buried = True
        stepping.task = self
        try:
            self._greenlet.throw()
        finally:
            stepping.task = None

    def _run(self) -> None:
        try:
            self.result = self.work(self)
        except BarrierError as error:
            self.error = error
