"""A second topology in the same world: neither changes anything of the other, nor holds it up.

The neighbour has one job and no misfortunes. Each of its steps has to succeed, wherever the first topology stands.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from airflow_barrier.reading.session import ConsistentSession, Question
from tests.model import work
from tests.model.inputs import Log
from tests.model.readers import LEASE_SECONDS
from tests.model.topology import NAME, TABLES
from tests.model.world import World
from tests.support.runs import run_of

BESIDE, TABLE, SOURCE = "beside", "b.rows", "beside"
#: What may be done to it. A day is all of it.
STEPS = ("day", "day", "open", "process", "commit", "abort", "read", "leave")
_JOB = Job("copy", BESIDE, outlets=(TABLE,), externals=(ExternalSource(SOURCE, Log.kind),))
_FRAGMENT = Fragment(BESIDE, BESIDE, (_JOB,))


class Neighbour:
    """The second topology, and what was seen of it last."""

    def __init__(self, world: World) -> None:
        self.world, self.deployment, self.meta = world, world.deployment, world.meta
        self.days = 0
        self.session: ConsistentSession | None = None
        #: tables of the MetaService that say which topology a row is of
        names = [row[0] for row in self._select("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        self._kept = [
            name for name in names if "topology" in {row[1] for row in self._select(f"PRAGMA table_info({name})")}
        ]
        world.tables.create(TABLE)
        self.meta.topologies.register(BESIDE, BESIDE, _FRAGMENT.jobs, "test")
        self._stands = self._all_of(BESIDE, (TABLE,))

    def check(self) -> None:
        """Nothing has touched it since its own last step."""
        now = self._all_of(BESIDE, (TABLE,))
        changed = [name for name in now if now[name] != self._stands[name]]
        assert not changed, f"a step of {NAME} changed {changed} of {BESIDE}: {self._stands} became {now}"

    def step(self, what: str) -> None:
        """One of `STEPS`. Nothing of the first topology changes."""
        before = self._all_of(NAME, TABLES)
        getattr(self, f"_{what}")()
        self._check_rows()
        self._stands = self._all_of(BESIDE, (TABLE,))
        after = self._all_of(NAME, TABLES)
        changed = [name for name in after if after[name] != before[name]]
        assert not changed, f"{what} of {BESIDE} changed {changed} of {NAME}: {before} became {after}"

    # --- its steps --------------------------------------------------------------------------------

    def _day(self) -> None:
        self._open()
        self._commit()
        assert not self._in_flight(), "whatever the other does, a day of this one is through"

    def _open(self) -> None:
        if len(self._in_flight()) == self.deployment.max_open_barriers:
            return
        self.world.input.arrive(SOURCE, 1)
        self.days += 1
        moment = work.moment_of(self.days)
        opened = open_barrier(
            self.deployment,
            _FRAGMENT,
            moment,
            timestamp_from="test",
            run=run_of(f"b/{self.days}"),
            actor="beside",
            now=moment,
        )
        assert isinstance(opened, Opened), opened

    def _process(self) -> None:
        for barrier in self._in_flight():
            key = f"b/{next(self.world.numbers)}"
            step = begin(self.deployment, barrier, _JOB.name, Asking(request_key=key, generation="g0", actor="beside"))
            if isinstance(step, Ready):
                work.drive(self.world, step, lies=False)
                close(self.deployment, step.attempt, actor="beside")

    def _commit(self) -> None:
        self._process()
        for barrier in self._in_flight():
            committed = commit_barrier(self.deployment, BESIDE, barrier.barrier_id, actor="beside")
            assert isinstance(committed, Committed), committed

    def _abort(self) -> None:
        for barrier in self._in_flight()[-1:]:
            abort_barrier(self.deployment, BESIDE, barrier.barrier_id, reason="bad input", actor="beside")

    def _read(self) -> None:
        """It holds what it reads until it leaves, or its time is over."""
        if self.session is None and any(each.state is BarrierState.COMMIT for each in self._barriers()):
            question = Question(BESIDE, Level.REPEATABLE_READ, None, None, None, timedelta(0))
            self.session = ConsistentSession(self.deployment, question, Hold("beside", LEASE_SECONDS))

    def _leave(self) -> None:
        if self.session is not None:
            self.session._close()
            self.session = None

    # --- looking ----------------------------------------------------------------------------------

    def _barriers(self) -> list[Barrier]:
        return [barrier for barrier in reversed(self.meta.barriers.newest(BESIDE, limit=1000)) if barrier.barrier_id]

    def _in_flight(self) -> list[Barrier]:
        return self.meta.barriers.uncommitted(BESIDE)

    def _check_rows(self) -> None:
        """Its table holds each record once, up to the cut of its newest committed barrier."""
        committed = [each for each in self._barriers() if each.state is BarrierState.COMMIT]
        upto = self.meta.cuts.of(BESIDE, committed[-1].barrier_id)[SOURCE].end["position"] if committed else 0
        expected = Counter((record, "copy g0") for record in self.world.input.of(SOURCE)[:upto])
        found = self.world.tables.rows(self.world.tables.main(TABLE))
        assert found == expected, f"{BESIDE}: {found} in place of {expected}"

    def _all_of(self, topology: str, tables: tuple[str, ...]) -> dict[str, Any]:
        """Everything that is stored of a topology, and where its tables are."""
        stored: dict[str, Any] = {
            name: self._select(f"SELECT * FROM {name} WHERE topology = ?", topology) for name in self._kept
        }
        stored["topology"] = self._select("SELECT * FROM barrier_topology WHERE name = ?", topology)
        stored["service"] = self._select("SELECT * FROM barrier_service")
        at = self.world.tables.pointers.at
        return {**stored, "tables": {table: at[table] for table in tables if table in at}}

    def _select(self, query: str, *arguments: str) -> list[Any]:
        return self.world.bench.raw.execute(query, arguments).fetchall()
