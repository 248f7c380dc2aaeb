"""Processes that read all the time, while barriers are committed and their files deleted beside them.

Every barrier replaces the rows of all tables by one row, ``100 * barrier + generation``: whoever reads two tables at
different barriers, or at different attempts of one barrier, sees it.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
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
from tests.support.waiting import patience

DUCKDB, PYICEBERG = "duckdb", "pyiceberg"
#: Who reads the past reads one of the newest so many barriers.
LATEST = 3
#: Table -> what its rows say.
Rows = Mapping[str, list[int]]
#: How often a session is read before it is closed.
_READS = 12


@dataclass(frozen=True)
class Habit:
    """How a process reads: DuckDB stays at what its connection was made for. ``past``: at barriers of the past."""

    level: Level
    engine: str
    past: bool = False


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
                if pipe.poll(patience()):
                    self.seen.append(pipe.recv())
            process.join(timeout=patience())
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
        readable = deployment.meta.answers.readable("shopping")
        at = random.choice(readable[-LATEST:]).barrier_id
    try:
        with (
            consistent_session(deployment, "shopping", level=habit.level, at=at, lease_seconds=60) as session,
            _ENGINES[habit.engine](session) as rows,
        ):
            for number in range(_READS):
                _look(session, rows(), habit, seen)
                tell()
                if number % 2 and habit.engine == PYICEBERG:
                    session.refresh()
                    seen.counted["fell back"] += session.fell_back is not None
    except ExpiredBarrierError:
        assert at is not None
        seen.counted["expired"] += 1


def _look(session: ConsistentSession, rows: Rows, habit: Habit, seen: Seen) -> None:
    """All tables of the answer."""
    answer = session.resolution  # raises if it is not held
    if habit.level is Level.READ_UNCOMMITTED:
        for table, found in rows.items():
            assert [value // 100 for value in found] == [answer.tables[table].barrier_id], f"{answer}: {rows}"
    else:
        assert len({tuple(found) for found in rows.values()}) == 1, f"torn: {answer}: {rows}"
        assert [value // 100 for value in rows["shop.shopping"]] == [answer.barrier_id], f"{answer}: {rows}"
        assert answer.barrier_id is not None
        seen.barriers.add(answer.barrier_id)
    seen.counted["reads"] += 1


@contextmanager
def _pyiceberg(session: ConsistentSession) -> Iterator[Callable[[], Rows]]:
    """What the session reads by now."""

    def rows() -> Rows:
        return {
            table: session.table(table).scan().to_arrow().column(columns[-1]).to_pylist()
            for table, columns in COLUMNS.items()
        }

    yield rows


@contextmanager
def _duckdb(session: ConsistentSession) -> Iterator[Callable[[], Rows]]:
    """What the session read when the connection was made; the files are read each time."""
    with session.duckdb() as connection:

        def rows() -> Rows:
            return {
                table: [row[0] for row in connection.sql(f"SELECT {columns[-1]} FROM {table}").fetchall()]
                for table, columns in COLUMNS.items()
            }

        yield rows


_ENGINES: dict[str, Callable[[ConsistentSession], AbstractContextManager[Callable[[], Rows]]]] = {
    DUCKDB: _duckdb,
    PYICEBERG: _pyiceberg,
}
