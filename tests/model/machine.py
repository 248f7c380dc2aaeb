"""A Hypothesis state machine: anything that a deployment, its neighbours and its misfortunes may do, in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from airflow_barrier.coordinator.committing import Committed, publications_of
from airflow_barrier.coordinator.opening import Later, Opened
from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.coordinator.staging import Adopted, Waiting, give_up
from airflow_barrier.protocol import errors
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState, Decision
from airflow_barrier.tables._metadata import snapshots_of
from tests.model import work
from tests.model.oracle import Oracle
from tests.model.tasks import Task
from tests.model.topology import COMING_AND_GOING, EXTRA, JOBS, NAME, ORDER, SOURCES, TABLES
from tests.model.world import Bench, World

#: How many operations a task does before it stands still; mostly all of them, or nothing would come about.
_STEPS = st.sampled_from((None,) * 24 + tuple(range(40)))
_MEDDLING = ("arrive", "compact", "compact", "write", "roll back", "scribble")
_STOPS = st.sampled_from(range(36))
_INDEX = st.integers(0, 7)

_ALLOWED: dict[str, tuple[type[errors.BarrierError], ...]] = {
    "open": (errors.BarrierOrderError, errors.HeadMovedError, errors.TooManyOpenBarriersError),
    "commit": (errors.BarrierAbortedError,),
    "abort": (errors.AlreadyCommittedError,),
    "job": (
        errors.FencedAttemptError,
        errors.BarrierAbortedError,
        errors.AlreadyCommittedError,
        errors.AttemptTakenError,
        errors.StagedTableError,
        errors.NotClosedError,
    ),
}


class Schedules(RuleBasedStateMachine):
    """One example is one schedule."""

    bench: ClassVar[Bench]
    #: of the whole process: schedules that ran to their end, steps, and what happened in them
    ran: ClassVar[Counter[str]] = Counter()

    world: World

    @initialize(shared=st.booleans(), extra=st.sets(st.sampled_from(COMING_AND_GOING)), foreign=st.booleans())
    def begin(self, shared: bool, extra: set[str], foreign: bool) -> None:
        self.world = World(self.bench, shared=shared)
        self.oracle = Oracle(self.world)
        self.members = [name for name in COMING_AND_GOING if name in extra]
        self.days = 0
        self.generations: dict[tuple[int, str], int] = {}
        self.sleeping: list[int] = []
        #: tables that somebody else changed, ever
        self.foreign: set[str] = set()
        for table in TABLES:
            self.world.tables.create(table)
        for source in SOURCES:
            self.world.input.arrive(source, 2)
        if foreign:
            self._write_foreign("t.amount")
        if self.members:
            self._declare()
        self._open(None)
        self._done("begin")

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.oracle.check_audit()
            self.ran.update(barrier.state for barrier in self.oracle.barriers.values() if barrier.barrier_id)
        finally:
            self.world.close()
        self.ran["schedules"] += 1

    # --- steps: what the deployment does ----------------------------------------------------------

    @rule(arrived=st.sampled_from((None, *SOURCES)), steps=_STEPS, again=st.sampled_from((False, False, False, True)))
    def open(self, arrived: str | None, steps: int | None, again: bool) -> None:
        """The next run's start task; or the newest one's is tried again: it observes, or opens what was aborted."""
        if arrived is not None:
            self.world.input.arrive(arrived, 2)
        self._open(steps, again)
        self._done("open")

    @precondition(lambda self: self.oracle.chain)
    @rule(which=_INDEX, job=_INDEX, steps=_STEPS, how=st.sampled_from(("process", "process", "clear", "lie")))
    def process(self, which: int, job: int, steps: int | None, how: str) -> None:
        """A try of a job's task; or it was cleared, maybe after its code was corrected; or its driver lies."""
        barrier = self._barrier(which, "OPEN")
        jobs = self._jobs(barrier)
        task = self._processing(barrier, jobs[job % len(jobs)], how == "clear")
        task.lies = how == "lie"
        self._settled(self.world.run(task, steps), "job")
        self._done(how)

    @precondition(lambda self: self.oracle.chain)
    @rule(which=_INDEX)
    def process_all(self, which: int) -> None:
        """All jobs of a barrier, one after another."""
        self._process_all(self._barrier(which, "OPEN"))
        self._done("process all")

    @precondition(lambda self: self.sleeping)
    @rule(which=_INDEX, steps=_STEPS)
    def resume(self, which: int, steps: int | None) -> None:
        """A deferred task looks again."""
        attempt_id = self.sleeping.pop(which % len(self.sleeping))
        self._settled(self.world.run(work.resuming(self.world, attempt_id), steps), "job")
        self._done("resume")

    @precondition(lambda self: self.world.tasks)
    @rule(which=_INDEX, steps=_STEPS)
    def wake(self, which: int, steps: int | None) -> None:
        """A task that stood still goes on, however late: a zombie, if another took its place."""
        task = self.world.tasks[which % len(self.world.tasks)]
        self._settled(self.world.run(task, steps), task.name.partition(" ")[0])
        self._done("wake")

    @precondition(lambda self: self.oracle.chain)
    @rule(
        which=_INDEX, job=_INDEX, steps=_STOPS, how=st.sampled_from(("retry", "clear", "lost", "killed", "scribbled"))
    )
    def haunt(self, which: int, job: int, steps: int, how: str) -> None:
        """A job's task stops on its way, another one takes its place and ends, and then the first wakes.

        ``lost``: its worker died, and what wakes is the Spark driver; ``killed``: the attempt could still be given up.
        ``scribbled``: nobody takes its place, but somebody else writes to its branch.
        """
        barrier = self._barrier(which, "OPEN", "PRECOMMIT")
        jobs = self._jobs(barrier)
        name = jobs[job % len(jobs)]
        zombie = self._processing(barrier, name)
        self._settled(self.world.run(zombie, steps), "job")
        self.oracle.check()
        zombie.orphan = how in ("lost", "killed")
        if how == "killed" and zombie.attempt_id is not None:
            give_up(self.world.deployment, zombie.attempt_id, reason="killed", actor="on_kill")
        if how == "scribbled":
            self._scribble(JOBS[name].sinks[0])
        else:
            self._settled(self.world.run(self._processing(barrier, name, how == "clear"), None), "job")
        self.oracle.check()
        if zombie.paused:
            self._settled(self.world.run(zombie, None), "job")
        self._done(f"haunt, {how}")

    @precondition(lambda self: self.oracle.in_flight)
    @rule(steps=st.integers(10, 33), which=st.one_of(st.none(), _INDEX), decision=st.sampled_from((None, *Decision)))
    def contend(self, steps: int, which: int | None, decision: Decision | None) -> None:
        """A commit stops on its way, something happens, then it goes on.

        With a ``decision`` somebody writes to a table, and a person decides if that blocks the barrier. Without one
        another commit overtakes the first, and a table may be rolled back then.
        """
        barrier = self._oldest_in_flight()
        if barrier.state is BarrierState.OPEN:
            self._process_all(barrier)
            self.oracle.check()
        tables = sorted(self.oracle.opened[barrier.barrier_id].tables)
        table = None if which is None else tables[which % len(tables)]
        first = work.committing(self.world, barrier.barrier_id)
        self._settled(self.world.run(first, steps), "commit")
        self.oracle.check()
        if decision is None:
            self._settled(self.world.run(work.committing(self.world, barrier.barrier_id), None), "commit")
            self.oracle.check()
            if table is not None:
                self._roll_back(table)
        elif table is not None:
            self._write_foreign(table)
        self.oracle.check()
        if first.paused:
            self._settled(self.world.run(first, None), "commit")
        self._done("contend")
        if decision is not None and self.oracle.in_flight and self.oracle.in_flight[0].state == "BLOCKED":
            self._resolve(decision, which or 0)

    @precondition(lambda self: self.oracle.chain)
    @rule(which=_INDEX, steps=_STEPS)
    def commit(self, which: int, steps: int | None) -> None:
        barrier = self._barrier(which, "PRECOMMIT", "COMMITTING")
        self._settled(self.world.run(work.committing(self.world, barrier.barrier_id), steps), "commit")
        self._done("commit")

    @precondition(lambda self: len(self.oracle.in_flight) > 1)
    @rule()
    def jump_the_queue(self) -> None:
        """A commit that does not go in order is refused."""
        for barrier in self.oracle.in_flight[1:]:
            with pytest.raises(errors.NotPrecommitError):
                self.world.meta.begin_commit(NAME, barrier.barrier_id, self._expected(barrier.barrier_id), "hurried")
        self._done("jump the queue")

    @precondition(lambda self: self.oracle.chain)
    @rule(which=_INDEX, steps=_STEPS)
    def abort(self, which: int, steps: int | None) -> None:
        barrier = self._barrier(which)
        self._settled(self.world.run(work.aborting(self.world, barrier.barrier_id), steps), "abort")
        self._done("abort")

    @rule(job=st.sampled_from(COMING_AND_GOING), back=st.booleans())
    def join_or_leave(self, job: str, back: bool) -> None:
        """From the next barrier on; ``back``: and the other way round from the one after it on."""
        for _ in range(1 + back):
            self.members = [j for j in COMING_AND_GOING if (j in self.members) != (j == job)]
            self._declare()
            if back:
                self._open(None)
                self.oracle.check()
        self._done("join or leave")

    @precondition(lambda self: self.oracle.in_flight and not self.foreign)
    @rule()
    def finish(self) -> None:
        """Nothing that happened keeps the oldest barrier from being completed by fresh tries."""
        barrier = self._oldest_in_flight()
        if barrier.state in (BarrierState.OPEN, BarrierState.PRECOMMIT):
            for job in self._jobs(barrier):
                tries = [self._processing(barrier, job) for _ in range(3)]
                for task in tries:
                    self.world.run(task, None)
                    if task.error is None:
                        break
                    assert isinstance(task.error, errors.Retryable), task.error
                assert isinstance(task.result, (Adopted, Barrier)), task.result
        task = self.world.run(work.committing(self.world, barrier.barrier_id), None)
        assert task.error is None, task.error
        assert isinstance(task.result, Committed), task.result
        self._done("finish")

    # --- steps: what others do --------------------------------------------------------------------

    @rule(what=st.sampled_from(_MEDDLING), table=st.sampled_from(TABLES))
    def meddle(self, what: str, table: str) -> None:
        """Somebody else has his hands in a table, or input arrives."""
        tables, main = self.world.tables, self.world.tables.main(table)
        if what == "arrive":
            for source in SOURCES:
                self.world.input.arrive(source, 1)
        elif what == "write":
            self._write_foreign(table)
        elif what == "compact" and main is not None:
            tables.write(table, "main", lambda rows: rows, operation="replace")
        elif what == "roll back" and main is not None:
            self._roll_back(table)
        elif what == "scribble":
            self._scribble(table)
        self._done(what)

    @precondition(lambda self: any(barrier.state == "BLOCKED" for barrier in self.oracle.in_flight))
    @rule(decision=st.sampled_from(Decision), which=_INDEX)
    def resolve(self, decision: Decision, which: int) -> None:
        self._resolve(decision, which)

    # --- parts ------------------------------------------------------------------------------------

    def _done(self, what: str) -> None:
        self.ran["steps"] += 1
        self.ran[what] += 1
        self.oracle.check()

    def _declare(self) -> None:
        self.world.meta.register(NAME, EXTRA, [JOBS[name] for name in self.members], "test")

    def _open(self, steps: int | None, again: bool = False) -> None:
        self.days += not again
        self._settled(self.world.run(work.opening(self.world, self.days), steps), "open")

    def _barrier(self, which: int, *states: str) -> Barrier:
        """For small numbers the oldest in one of ``states``; else from the newest back, whatever it is."""
        likely = [barrier.barrier_id for barrier in self.oracle.chain if barrier.state in states]
        newest = max(self.oracle.opened)
        number = likely[0] if likely and which < 4 else newest - which % min(4, newest)
        return self.world.meta.barrier(NAME, number)

    def _oldest_in_flight(self) -> Barrier:
        return self.world.meta.barrier(NAME, self.oracle.in_flight[0].barrier_id)

    def _expected(self, barrier_id: int) -> dict[str, int | None]:
        return self.world.tables.mains(sorted(self.oracle.opened[barrier_id].tables))

    def _jobs(self, barrier: Barrier) -> list[str]:
        tables = self.oracle.opened[barrier.barrier_id].tables
        return [name for name in ORDER if set(JOBS[name].sinks) <= tables]

    def _process_all(self, barrier: Barrier) -> None:
        for job in self._jobs(barrier):
            counts = self.world.meta.current_attempt(NAME, barrier.barrier_id, job)
            task = self._processing(barrier, job)
            self._settled(self.world.run(task, None), "job")
            if (
                counts is not None
                and counts.state is AttemptState.PROCESSED
                and task.name.split()[1] == counts.generation
            ):
                assert isinstance(task.result, Adopted), "a retry repeats nothing"
                assert task.result.attempt.attempt_id == counts.attempt_id

    def _processing(self, barrier: Barrier, job: str, cleared: bool = False) -> Task:
        key = (barrier.barrier_id, job)
        number = self.generations[key] = self.generations.get(key, 0) + cleared
        return work.processing(self.world, barrier, job, f"g{number}")

    def _settled(self, task: Task, kind: str) -> None:
        """A task has ended or stands still: was that what may happen?"""
        if task.error is not None:
            if kind not in _ALLOWED:
                kind = "job"
            allowed: tuple[Any, ...] = _ALLOWED[kind]
            if self.foreign:
                allowed += (errors.ForeignWriteError, errors.HeadMovedError)
            assert isinstance(task.error, allowed), f"{task.name}: {type(task.error).__name__}: {task.error}"
            return
        if isinstance(task.result, Waiting):
            attempt, needs = task.result.attempt, task.result.needs
            assert {(n.table, n.barrier_id) for n in needs} == self.oracle.needs(attempt.barrier_id, attempt.job)
            self.sleeping.append(attempt.attempt_id)
        if isinstance(task.result, Committed):
            assert task.result.barrier.state is BarrierState.COMMIT
        if kind == "open" and not task.paused:
            assert isinstance(task.result, (Opened, Later))

    def _write_foreign(self, table: str) -> None:
        self.world.tables.write(table, "main", lambda rows: rows + Counter([f"foreign {next(self.world.numbers)}"]))
        self._touch(table)

    def _roll_back(self, table: str) -> None:
        """To undo a foreign write, or one of ours."""
        tables = self.world.tables
        main = tables.main(table)
        parent = None if main is None else snapshots_of(tables.document(table))[main].get("parent-snapshot-id")
        if parent is not None:
            tables.set_main(table, parent)
            self._touch(table)

    def _scribble(self, table: str) -> None:
        """On the newest attempt's branch, without its stamp."""
        refs = self.world.tables.document(table)["refs"]
        parsed = {name: parse_branch(name) for name, ref in refs.items() if ref["type"] == "branch"}
        attempts = {branch.attempt_id: name for name, branch in parsed.items() if branch is not None}
        if attempts:
            self.world.tables.write(table, attempts[max(attempts)], lambda rows: rows + Counter(["scribbled"]))

    def _touch(self, table: str) -> None:
        self.foreign.add(table)
        self.oracle.touched.add(table)

    def _resolve(self, decision: Decision, which: int) -> None:
        """A person decides about a table that is in the way."""
        deployment, barrier = self.world.deployment, self._oldest_in_flight()
        findings = sorted(deployment.tables.findings(publications_of(deployment, barrier)))
        table = findings[which % len(findings)] if findings else TABLES[0]
        try:
            resolve_table(
                deployment, NAME, barrier.barrier_id, table, decision, reason="looked at it", actor="a person"
            )
        except errors.ConfigurationError:
            # there may be nothing to adopt, or to keep: the other way is open
            assert not findings or decision is Decision.KEEP_OURS
        self._done(decision.value)
