"""The orders in which the steps of two operations can happen, each run for real, one step after the other.

A step is one transaction of the MetaService, one transaction or look of the catalog, or one access to a file beside the
tables: what happens within a step, nobody else sees. Both operations run in threads of their own and wait before each
step until it is their turn.

All orders: two in which only neighbouring steps are swapped that cannot see each other, such as two looks, are one to
everybody, so one of them is run (sleep sets). Where those are too many, the orders with few suspensions: one operation
is suspended anywhere while the other runs to its end; or one just before a write, and then the other one as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_barrier.metaservice.database import Database
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.tables._sql_swap import SqlPointers
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.waiting import patience


@dataclass(frozen=True)
class Step:
    """What somebody is about to do, and where."""

    place: str
    write: bool

    def sees(self, other: Step) -> bool:
        """Whether it matters which of the two happens first."""
        return (self.write or other.write) and self.place == other.place


class _Abandoned(BaseException):
    """The rest of this order was run already."""


class _Operation(threading.Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._abandoned = False
        self._within = 0
        self.pending: Step | None = None
        self.outcome: Any = None

    def run(self) -> None:
        self._go.acquire()
        try:
            self.outcome = self._work()
        except BarrierError as error:
            self.outcome = error
        except _Abandoned:
            pass
        except BaseException as error:  # raised in the test's own thread
            self.outcome = _Failed(error)
        self.pending = None
        self._arrived.release()

    def resume(self) -> None:
        """Let it do its next step, and come to the one after."""
        self._go.release()
        assert self._arrived.acquire(timeout=patience()), "a step does not end: does it wait for the other operation?"
        if isinstance(self.outcome, _Failed):
            raise self.outcome.error

    def abandon(self) -> None:
        while self.pending is not None:
            self._abandoned = True
            self.resume()

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        if self._within == 0:
            self.pending = step
            self._arrived.release()
            self._go.acquire()
            if self._abandoned:
                raise _Abandoned
        self._within += 1
        try:
            yield
        finally:
            self._within -= 1


@dataclass
class _Failed:
    error: BaseException


@dataclass
class _Node:
    """A place where one of ``enabled`` had to go next; ``left`` are those that are still to be tried."""

    enabled: dict[int, Step]
    left: list[int]
    #: whose next step, taken here, leads only to what was seen already
    asleep: set[int]
    chosen: int = -1

    @property
    def taken(self) -> Step:
        return self.enabled[self.chosen]

    def choose(self) -> bool:
        if self.chosen >= 0:
            self.asleep.add(self.chosen)
        if not self.left:
            return False
        self.chosen = self.left.pop(0)
        return True


_Path = list[_Node]


def all_orders(path: _Path, enabled: dict[int, Step]) -> _Node:
    asleep: set[int] = set()
    if path:
        before = path[-1]
        asleep = {number for number in before.asleep if not before.enabled[number].sees(before.taken)}
    return _Node(enabled, [number for number in enabled if number not in asleep], asleep)


def few_suspensions(path: _Path, enabled: dict[int, Step]) -> _Node:
    running = path[-1].chosen if path else -1
    others = [number for number in enabled if number != running]
    if running not in enabled:
        return _Node(enabled, others, set())
    suspended = [path[at].enabled[path[at - 1].chosen] for at in range(1, len(path)) if _suspends(path, at)]
    twice = len(suspended) == 1 and suspended[0].write and enabled[running].write
    again = not suspended or twice
    return _Node(enabled, [running, *(others if again else ())], set())


def _suspends(path: _Path, at: int) -> bool:
    return path[at - 1].chosen in path[at].enabled.keys() - {path[at].chosen}


@dataclass
class Explored:
    """How many orders were run, and of how many steps the longest was."""

    orders: int = 0
    steps: int = 0


def explore(
    operations: Callable[[], Sequence[Callable[[], Any]]],
    check: Callable[[list[Any]], None],
    watch: Callable[[], None],
    orders: Callable[[_Path, dict[int, Step]], _Node] = all_orders,
) -> Explored:
    """Run the operations in every one of ``orders``. ``operations`` makes a world anew, always the same, and what is to
    happen in it; ``watch`` looks at it after each write, ``check`` at its end with what the operations returned or
    raised.
    """
    explored = Explored()
    path: _Path = []
    while True:
        running = [_Operation(work) for work in operations()]
        for one in running:
            one.start()
            one.resume()
        try:
            if _run(running, path, watch, orders):
                explored.orders += 1
                explored.steps = max(explored.steps, len(path))
                check([one.outcome for one in running])
        except (AssertionError, BarrierError) as error:
            raise AssertionError(f"{error}\nin this order: {_described(path)}") from error
        finally:
            for one in running:
                one.abandon()
                one.join(patience())
        while path and not path[-1].choose():
            path.pop()
        if not path:
            return explored


def _run(
    running: Sequence[_Operation],
    path: _Path,
    watch: Callable[[], None],
    orders: Callable[[_Path, dict[int, Step]], _Node],
) -> bool:
    """Follow ``path`` and go on from there; False: nothing new lies there."""
    for node in path:
        assert _enabled(running) == node.enabled, "the same steps in the same order lead to another place"
        _take(running, node, watch)
    while enabled := _enabled(running):
        node = orders(path, enabled)
        if not node.choose():
            return False
        path.append(node)
        _take(running, node, watch)
    return True


def _enabled(running: Sequence[_Operation]) -> dict[int, Step]:
    return {number: one.pending for number, one in enumerate(running) if one.pending is not None}


def _take(running: Sequence[_Operation], node: _Node, watch: Callable[[], None]) -> None:
    running[node.chosen].resume()
    if node.taken.write:
        watch()


def _described(path: Iterable[_Node]) -> str:
    steps = ((node.chosen, node.taken) for node in path)
    return ", ".join(f"{'AB'[who]} {'writes' if step.write else 'reads'} {step.place}" for who, step in steps)


@contextmanager
def stepping(*, shared: bool) -> Iterator[None]:
    """Let operations wait before each of their steps. ``shared``: catalog and MetaService are one database."""
    catalog = "database" if shared else "catalog"
    store = "database" if shared else "store"

    def at(place: str, write: bool) -> Any:
        thread = threading.current_thread()
        return thread.step(Step(place, write)) if isinstance(thread, _Operation) else _nothing()

    def store_transaction(self: Database, write: bool, *, original: Any = Database.transaction) -> Any:
        @contextmanager
        def transaction() -> Iterator[Any]:
            with at(store, write), original(self, write) as connection:
                yield connection

        return transaction()

    def catalog_transaction(self: SqlPointers, *, original: Any = SqlPointers.transaction) -> Any:
        @contextmanager
        def transaction() -> Iterator[Any]:
            with at(catalog, write=True), original(self) as connection:
                yield connection

        return transaction()

    def wrapped(original: Any, place: str, write: bool) -> Any:
        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            with at(place, write):
                return original(self, *arguments, **named)

        return method

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Database, "transaction", store_transaction)
        patched.setattr(SqlPointers, "transaction", catalog_transaction)
        patched.setattr(SqlPointers, "read", wrapped(SqlPointers.read, catalog, False))
        for name in ("write_text", "delete"):
            patched.setattr(IcebergTables, name, wrapped(getattr(IcebergTables, name), "files", True))
        for name in ("read_text", "exists"):
            patched.setattr(IcebergTables, name, wrapped(getattr(IcebergTables, name), "files", False))
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield
