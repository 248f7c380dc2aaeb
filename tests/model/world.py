"""One world that a schedule is played in: a MetaService on SQLite, tables in memory, sources, and tasks that may stop
anywhere.

The MetaService, the coordinator's functions and the tables' decisions are the production code. Clock and ids are
counters, and each world starts from a copy of one migrated database, so equal schedules are equal runs.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event

from airflow_barrier import sources
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.metaservice import rows
from airflow_barrier.metaservice.database import Database, working
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.transaction import Group
from airflow_barrier.protocol.tags import TagPolicy
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.reading import session
from tests.model import inputs
from tests.model.tasks import Task, stepping
from tests.model.topology import CORE, FRAGMENT, JOBS, NAME, started
from tests.support.memory_tables import MemoryTables, Ticks

MAX_OPEN = 3
_SHM = Path("/dev/shm")


def time_of(clock: int) -> datetime:
    """What the database calls that moment (UTC)."""
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=clock - 1_700_000_000_000)


def table_time_of(clock: int) -> datetime:
    """What a table's log calls that moment (UTC)."""
    return datetime.fromtimestamp(clock / 1000, timezone.utc)


class _NoThread:
    """A session's heartbeat, which the schedule does itself: at what moment is not left to chance."""

    def __init__(self, **_: Any) -> None:
        """Nothing runs beside."""

    def start(self) -> None:
        """It does not beat by itself."""

    def join(self) -> None:
        """It has ended."""


class _Database(Database):
    """Tells before each transaction that it comes. All are on one connection but looks, which have one of their own.
    Nobody upgrades the schema or retries, which waits by the clock.
    """

    step: Callable[[str], None]
    _kept: Connection | None = None

    @contextmanager
    def transaction(self, write: bool) -> Iterator[Connection]:
        if write:
            self._end_look()
        self.step("write" if write else "read")
        if self._look is not None:  # it sees one state, whatever others do until its end
            with self._engine.connect() as connection, connection.begin(), self._working(connection, "BEGIN"):
                yield connection
            return
        if self._kept is None:
            self._kept = self._engine.connect()
        begin = "BEGIN IMMEDIATE" if write else "BEGIN"
        with self._kept.begin(), stepping.inside(), self._working(self._kept, begin):
            yield self._kept

    @contextmanager
    def _working(self, connection: Connection, begin: str) -> Iterator[None]:
        connection.exec_driver_sql(begin)
        with working(connection):
            yield

    def _retried(self, call: Callable[[], Any]) -> Any:
        return call()


class Bench:
    """What worlds share because it is dear to make: the database's connection and the template. One per process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="barrier-model-", dir=_SHM if _SHM.is_dir() else None)
        self.ticks = Ticks()
        self.tables: MemoryTables | None = None
        self.meta = MetaService(f"sqlite:///{self._folder.name}/barrier.db")
        self._template = self._migrated_template()
        database = _Database(f"sqlite:///{self._folder.name}/barrier.db")
        database.step = stepping.step
        self.meta._db = database
        for each in vars(self.meta).values():
            if isinstance(each, Group):
                each._db = database
        event.listen(database._engine, "connect", self._configure)
        event.listen(database._engine, "commit", self._committed)
        event.listen(database._engine, "rollback", self._rolled_back)
        database.open()
        with database.transaction(write=False) as connection:
            #: for looks past the MetaService
            self.raw: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
        self.engine = database._engine
        self.patch = pytest.MonkeyPatch()
        self.ticks.inject(self.patch)
        self.patch.setattr(session, "time", SimpleNamespace(monotonic=self.ticks.monotonic))
        self.patch.setattr(session, "threading", SimpleNamespace(Event=threading.Event, Thread=_NoThread))
        logging.getLogger("airflow_barrier").addHandler(logging.NullHandler())  # what is told is checked, not shown
        for kind, adapter in inputs.ADAPTERS.items():
            self.patch.setitem(sources._ADAPTERS, kind, f"{adapter.__module__}:{adapter.__name__}")
        # every world has the core's jobs; registered here, once
        self.pristine()
        self.meta.topologies.register(FRAGMENT.topology, FRAGMENT.owner, FRAGMENT.jobs, "template")
        self.raw.backup(self._template)

    def close(self) -> None:
        self.patch.undo()
        self.meta.close()
        self._template.close()
        self._folder.cleanup()

    def pristine(self) -> None:
        """The database as it was migrated, the clock and the ids as they began."""
        self._template.backup(self.raw)
        self.ticks.restart()

    def _migrated_template(self) -> sqlite3.Connection:
        MetaService(self.meta.url).check()
        template = sqlite3.connect(":memory:")
        with sqlite3.connect(f"{self._folder.name}/barrier.db") as file:
            file.backup(template)
        file.close()
        template.execute("UPDATE barrier_service SET incarnation = 'model', created_at = '2026-01-01 00:00:00.000'")
        template.commit()
        return template

    def _configure(self, connection: sqlite3.Connection, _: Any) -> None:
        connection.create_function("strftime", -1, self._strftime)
        connection.execute("PRAGMA synchronous=OFF")

    def _strftime(self, *asked: str) -> str:
        """The database's clock: a millisecond later each time."""
        what, *later = asked[1:]
        assert (asked[0], what) == ("%Y-%m-%d %H:%M:%f", "now"), f"a clock that is not injected: {asked}"
        seconds = float(later[0].removesuffix(" seconds")) if later else 0.0
        moment = time_of(self.ticks.now_ms()) + timedelta(seconds=seconds)
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    def _committed(self, _: Connection) -> None:
        if self.tables is not None:
            self.tables.pointers.committed()

    def _rolled_back(self, _: Connection) -> None:
        if self.tables is not None:
            self.tables.pointers.rolled_back()


class World:
    """``shared``: catalog and MetaService are one database, so that publish and COMMIT are one transaction."""

    def __init__(self, bench: Bench, *, shared: bool) -> None:
        bench.pristine()
        self.bench = bench
        self.shared = shared
        self.input = inputs.Input()
        inputs.current = self.input
        #: what the protocol's hand moved since the last look: table, document's location before and after
        self.moved: list[tuple[str, str, str]] = []
        self.tables = MemoryTables(
            bench.meta.url if shared else "memory://catalog/tables",
            bench.ticks,
            stepping.step,
            lambda table, before, after: self.moved.append((table, before, after)),
        )
        bench.tables = self.tables
        self.deployment = Deployment(
            meta=bench.meta,
            tables=self.tables,
            spark_catalog="lake",
            tag_policy=TagPolicy.parse("newest=2"),
            max_open_barriers=MAX_OPEN,
        )
        self.meta = bench.meta
        self.tasks: list[Task] = []
        #: attempt -> the edition of each source that its driver read
        self.read: dict[int, dict[str, int]] = {}
        self.numbers = count(1)
        #: job -> how it is declared to start, and at what moment of the tables
        self.starts: dict[str, str] = {}
        rows._topologies.clear()  # a world has processes of its own
        self.moment = table_time_of(bench.ticks.clock)

    def job(self, name: str) -> Job:
        """As its DAG declares it."""
        return started(JOBS[name], self.starts.get(name, "latest"), self.moment)

    @property
    def fragment(self) -> Fragment:
        """The core's."""
        return Fragment(NAME, CORE, tuple(self.job(job.name) for job in FRAGMENT.jobs))

    def run(self, task: Task, steps: int | None, before: tuple[str, ...] = ()) -> Task:
        """Let a task take so many steps (None: all), up to one that begins like one of ``before``; what is left of it
        may go on at any time later, or never.
        """
        task.advance(steps, before)
        if task.paused and task not in self.tasks:
            self.tasks.append(task)
        elif not task.paused and task in self.tasks:
            self.tasks.remove(task)
        return task

    def close(self) -> None:
        for task in self.tasks:
            task.bury()
        self.bench.tables = None
