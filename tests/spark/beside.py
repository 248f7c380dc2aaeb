"""Processes that read all the time, while barriers are committed and their files deleted beside them.

Every barrier replaces the rows of all tables by one row, ``100 * barrier + generation``: whoever reads two tables at
different barriers, or at different attempts of one barrier, sees it.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ExpiredBarrierError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.reading.session import ConsistentSession, consistent_session
from tests.races.racers import PROCESSES
from tests.support.shop import COLUMNS
from tests.support.waiting import PATIENCE

DUCKDB, PYICEBERG = "duckdb", "pyiceberg"
#: How often a session is read before it is closed.
_READS = 12


@dataclass(frozen=True)
class Habit:
    """How a process reads. ``past``: at barriers of the past; ``holds``: without asking for newer data."""

    level: Level
    engine: str
    past: bool = False
    holds: bool = False


@dataclass
class Seen:
    """What a process has seen."""

    habit: Habit
    counted: Counter[str] = field(default_factory=Counter)
    barriers: set[int] = field(default_factory=set)
    trace: str | None = None


class Readers:
    """One process for each habit, until the block ends; then :attr:`seen`."""

    def __init__(self, settings: Settings, habits: tuple[Habit, ...]) -> None:
        self.seen: list[Seen] = []
        self._settings, self._habits = settings, habits
        self._reads = [PROCESSES.Value("l", 0) for _ in habits]
        self._newest = [PROCESSES.Value("l", 0) for _ in habits]
        self._running: list[tuple[Any, Connection]] = []

    @property
    def reads(self) -> int:
        """Up to now, of all."""
        return sum(reads.value for reads in self._reads)

    def newest(self, level: Level) -> int:
        """The newest barrier that a reader of that level has read."""
        return max(at.value for habit, at in zip(self._habits, self._newest, strict=True) if habit.level is level)

    def __enter__(self) -> Readers:
        for number, habit in enumerate(self._habits):
            ours, theirs = PROCESSES.Pipe()
            shared = (self._reads[number], self._newest[number])
            process = PROCESSES.Process(target=_read_on, args=(self._settings, habit, theirs, *shared), daemon=True)
            process.start()
            theirs.close()
            self._running.append((process, ours))
        return self

    def __exit__(self, *error: object) -> None:
        for _, pipe in self._running:
            with suppress(BrokenPipeError):  # it has ended
                pipe.send("enough")
        for process, pipe in self._running:
            with suppress(EOFError):  # it has ended, and has been asked why
                if pipe.poll(PATIENCE):
                    self.seen.append(pipe.recv())
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()

    def check(self) -> None:
        """Raises as soon as a reader has ended."""
        ended = next((pipe for process, pipe in self._running if not process.is_alive()), None)
        assert ended is None, ended.recv().trace


def _read_on(settings: Settings, habit: Habit, pipe: Connection, reads: Any, newest: Any) -> None:
    seen = Seen(habit)

    def tell() -> None:
        reads.value, newest.value = seen.counted["reads"], max(seen.barriers, default=0)

    try:
        with closing(Deployment.connect(settings)) as deployment:
            while not pipe.poll():
                _read(deployment, habit, seen, tell)
    except BaseException:  # handed to the test, which fails of it
        seen.trace = traceback.format_exc()
    pipe.send(seen)


def _read(deployment: Deployment, habit: Habit, seen: Seen, tell: Callable[[], None]) -> None:
    """One session, from beginning to end."""
    at = None
    if habit.past:
        readable = deployment.meta.readable("shopping")
        at = random.choice(readable[-3:]).barrier_id
    try:
        with consistent_session(deployment, "shopping", level=habit.level, at=at, lease_seconds=60) as session:
            for number in range(_READS):
                _look(session, habit, seen)
                tell()
                if number % 2 and not habit.holds:
                    session.refresh()
                    seen.counted["fell back"] += session.fell_back is not None
    except ExpiredBarrierError:
        assert at is not None
        seen.counted["expired"] += 1


def _look(session: ConsistentSession, habit: Habit, seen: Seen) -> None:
    """All tables of the answer."""
    answer = session.resolution
    rows = _with_duckdb(session) if habit.engine == DUCKDB else _with_pyiceberg(session)
    session.check()
    if habit.level is Level.READ_UNCOMMITTED:
        for table, found in rows.items():
            assert [value // 100 for value in found] == [answer.tables[table].barrier_id], f"{answer}: {rows}"
    else:
        assert len({tuple(found) for found in rows.values()}) == 1, f"torn: {answer}: {rows}"
        assert [value // 100 for value in rows["shop.shopping"]] == [answer.barrier_id], f"{answer}: {rows}"
        assert answer.barrier_id is not None
        seen.barriers.add(answer.barrier_id)
    seen.counted["reads"] += 1


def _with_pyiceberg(session: ConsistentSession) -> Mapping[str, list[int]]:
    return {
        table: session.table(table).scan().to_arrow().column(columns[-1]).to_pylist()
        for table, columns in COLUMNS.items()
    }


def _with_duckdb(session: ConsistentSession) -> Mapping[str, list[int]]:
    with session.duckdb() as connection:
        return {
            table: [row[0] for row in connection.sql(f"SELECT {columns[-1]} FROM {table}").fetchall()]
            for table, columns in COLUMNS.items()
        }
