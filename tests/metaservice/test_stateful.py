"""Any order of steps that a deployment may take, against a small model that remembers who consumed what.

The model knows nothing of closures: it keeps for each staged table which stagings it was computed from, and a cleared
job takes along whatever was, directly or not, computed from its output.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    BarrierAbortedError,
    NotPrecommitError,
    TooManyOpenBarriersError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import World

_MAX_OPEN = 3
_FIXED = ("load", "amount")
_COMING_AND_GOING = ("price", "top")
_JOBS = st.sampled_from((*_FIXED, *_COMING_AND_GOING))
_topologies = count()


@dataclass(eq=False)
class Staging:
    """One table as staged once at one barrier, and what it was computed from."""

    snapshot: int | None
    of: tuple[Staging, ...]

    def stands_on(self, gone: set[Staging]) -> bool:
        return any(each in gone or each.stands_on(gone) for each in self.of)


@dataclass(eq=False)
class ModelBarrier:
    number: int
    before: ModelBarrier | None
    jobs: dict[str, Job]
    state: str = "OPEN"
    tables: dict[str, Staging | None] = field(default_factory=dict)

    def staging_before(self, table: str) -> Staging | None:
        """What the table is built on; None if that is not PROCESSED. The baseline has nothing under it."""
        assert self.before is not None
        if table in self.before.tables:
            return self.before.tables[table]
        return Staging(None, ())


class Protocol(RuleBasedStateMachine):
    meta: MetaService

    @initialize()
    def begin(self) -> None:
        self.name = f"t{next(_topologies)}"
        reads = {"load": (), "amount": ("load",), "price": ("load",), "top": ("amount", "price")}
        self.all_jobs = {
            name: Job(name, "dag", tuple(f"{self.name}.{source}" for source in sources), (f"{self.name}.{name}",))
            for name, sources in reads.items()
        }
        self.members = list(self.all_jobs)
        self.world = World(self.meta, self.name, list(self.all_jobs.values()))
        self.barriers: list[ModelBarrier] = []
        self.days = count(1)
        self.generations = count()

    # --- the model's own views --------------------------------------------------------------------

    @property
    def counting(self) -> list[ModelBarrier]:
        return [barrier for barrier in self.barriers if barrier.state != "ABORTED"]

    @property
    def in_flight(self) -> list[ModelBarrier]:
        return [barrier for barrier in self.counting if barrier.state != "COMMIT"]

    def settle(self) -> None:
        for barrier in self.in_flight:
            if barrier.state in ("OPEN", "PRECOMMIT"):
                barrier.state = "PRECOMMIT" if all(barrier.tables.values()) else "OPEN"

    # --- steps ------------------------------------------------------------------------------------

    @rule()
    def open(self) -> None:
        names = [self.all_jobs[name].sinks[0] for name in self.members]
        baseline = ModelBarrier(0, None, {}, "COMMIT", {table: Staging(None, ()) for table in names})
        head = self.counting[-1] if self.counting else baseline
        came_back = [t for t in names if t not in head.tables and any(t in b.tables for b in self.in_flight)]
        if len(self.in_flight) >= _MAX_OPEN or came_back:
            with pytest.raises(TooManyOpenBarriersError):
                self.world.open(next(self.days), max_open=_MAX_OPEN)
            return
        opened = self.world.open(next(self.days), max_open=_MAX_OPEN)
        assert opened.barrier_id == len(self.barriers) + 1
        assert opened.predecessor == head.number
        jobs = {name: self.all_jobs[name] for name in self.members}
        self.barriers.append(ModelBarrier(opened.barrier_id, head, jobs, tables=dict.fromkeys(names)))

    @rule(job=st.sampled_from(_COMING_AND_GOING))
    def join_or_leave(self, job: str) -> None:
        left = [name for name in self.members if name != job] if job in self.members else [*self.members, job]
        if "top" in left and "price" not in left:
            left.remove("top")
        self.members = left
        self.world.declare([self.all_jobs[name] for name in left])

    @precondition(lambda self: self.barriers)
    @rule(job=_JOBS, which=st.integers(0, 3), unchanged=st.booleans())
    def stage(self, job: str, which: int, unchanged: bool) -> None:
        """A task runs: it adopts, waits, stages, or is refused."""
        barrier = self.barriers[-1 - which % len(self.barriers)]
        if job not in barrier.jobs:
            return
        if barrier.state == "ABORTED":
            with pytest.raises(BarrierAbortedError):
                self.world.request(barrier.number, job)
            return
        table = self.all_jobs[job].sinks[0]
        newest = self.meta.current_attempt(self.name, barrier.number, job)
        generation = newest.generation if newest else "first"
        attempt = self.world.request(barrier.number, job, generation)
        if barrier.tables[table] is not None:
            assert newest is not None
            assert attempt.attempt_id == newest.attempt_id
            return
        started = self.meta.start_attempt(attempt.attempt_id)
        assert barrier.before is not None
        reads = self.all_jobs[job].sources
        needed = [barrier.tables[source] for source in reads]
        needed += [barrier.staging_before(each) for each in (table, *reads)]
        if not all(needed):
            assert isinstance(started, tuple)
            assert len(started) == sum(each is None for each in needed)
            return
        assert isinstance(started, Attempt)
        self.world.close(started, unchanged)
        self.meta.report_processed(started.attempt_id, "test")
        snapshot = self.world.snapshots(barrier.number)[table]
        barrier.tables[table] = Staging(snapshot, tuple(each for each in needed if each is not None))
        self.settle()

    @precondition(lambda self: self.barriers)
    @rule(job=_JOBS, which=st.integers(0, 3))
    def clear(self, job: str, which: int) -> None:
        barrier = self.barriers[-1 - which % len(self.barriers)]
        if job not in barrier.jobs or barrier.state == "ABORTED":
            return
        generation = f"cleared {next(self.generations)}"
        if barrier.state in ("COMMITTING", "BLOCKED", "COMMIT"):
            with pytest.raises(AlreadyCommittedError):
                self.world.request(barrier.number, job, generation)
            return
        self.world.request(barrier.number, job, generation)
        table = self.all_jobs[job].sinks[0]
        staging = barrier.tables[table]
        if staging is None:
            return
        gone = {staging}
        for later in self.in_flight:
            for name, each in later.tables.items():
                if each is not None and (each in gone or each.stands_on(gone)):
                    later.tables[name] = None
        self.settle()

    @precondition(lambda self: self.barriers)
    @rule(which=st.integers(0, 3))
    def abort(self, which: int) -> None:
        barrier = self.barriers[-1 - which % len(self.barriers)]
        if barrier.state in ("COMMITTING", "BLOCKED", "COMMIT"):
            with pytest.raises(AlreadyCommittedError):
                self.world.abort(barrier.number)
            return
        gone = [b for b in self.in_flight if b.number >= barrier.number] if barrier.state != "ABORTED" else []
        assert self.world.abort(barrier.number) == [each.number for each in gone]
        for each in gone:
            each.state, each.tables = "ABORTED", dict.fromkeys(each.tables)

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 2), crash=st.booleans())
    def commit(self, which: int, crash: bool) -> None:
        barrier = self.in_flight[which % len(self.in_flight)]
        first = barrier is self.in_flight[0]
        if barrier.state == "OPEN" or not first:
            with pytest.raises(NotPrecommitError):
                self.world.begin_commit(barrier.number)
            return
        self.world.begin_commit(barrier.number)
        barrier.state = "COMMITTING"
        if crash:
            return
        assert self.world.publish(barrier.number)
        barrier.state = "COMMIT"

    # --- what must hold after every step ----------------------------------------------------------

    @invariant()
    def states_agree(self) -> None:
        for barrier in self.barriers[-4:]:
            assert self.world.state(barrier.number) == BarrierState(barrier.state)
            done = TableState.WRITTEN if barrier.state == "COMMIT" else TableState.PROCESSED
            expected = {t: TableState.PENDING if s is None else done for t, s in barrier.tables.items()}
            assert self.world.tables(barrier.number) == expected

    @invariant()
    def readers_agree(self) -> None:
        if not self.barriers:
            return
        for level, states in (
            (Level.REPEATABLE_READ, {"COMMIT"}),
            (Level.READ_COMMITTED, {"PRECOMMIT", "COMMITTING", "COMMIT"}),
        ):
            served = [barrier for barrier in self.counting if barrier.state in states]
            resolution = self.meta.resolve(self.name, level)
            assert resolution.barrier_id == (served[-1].number if served else 0)
            found = {name: table.snapshot_id for name, table in resolution.tables.items()}
            if served:
                assert found == {name: each.snapshot for name, each in served[-1].tables.items() if each is not None}
        if self.counting:
            uncommitted = self.meta.resolve(self.name, Level.READ_UNCOMMITTED).tables
            assert set(uncommitted) == set(self.counting[-1].tables)
            for name, table in uncommitted.items():
                newest = next((b for b in reversed(self.counting) if b.tables.get(name) is not None), None)
                if newest is not None and all(name in b.tables for b in self.counting[self.counting.index(newest) :]):
                    assert table.barrier_id == newest.number


def test_any_order_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/barrier.db"
        monkeypatch.setattr(Protocol, "meta", MetaService(url), raising=False)
        run_state_machine_as_test(
            Protocol,
            settings=settings(
                max_examples=30,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
        Protocol.meta.close()
        check_audit(url)
