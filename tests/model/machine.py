"""A Hypothesis state machine: anything that a deployment, its neighbours and its misfortunes may do, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from airflow_barrier.coordinator.staging import give_up
from airflow_barrier.protocol import errors
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.model import work
from tests.model.batches import Batches
from tests.model.topology import COMING_AND_GOING, JOBS, NAME, SOURCES, STARTING, STARTS, TABLES
from tests.model.world import Bench, World, table_time_of

#: How many operations a task does before it stands still; mostly all of them, or nothing would come about.
_STEPS = st.sampled_from((None,) * 24 + tuple(range(40)))
_MEDDLING = ("arrive", "compact", "compact", "write", "delete", "roll back", "scribble")
_STOPS = st.sampled_from(range(36))
_INDEX = st.integers(0, 7)
_ARRIVES = st.sampled_from(("new", "new", "changed", "deleted"))


class Schedules(Batches, RuleBasedStateMachine):
    """One example is one schedule."""

    bench: ClassVar[Bench]

    @initialize(
        shared=st.booleans(),
        extra=st.sets(st.sampled_from(COMING_AND_GOING)),
        foreign=st.booleans(),
        settles=st.booleans(),
        starts=st.fixed_dictionaries(
            {"sums": st.sampled_from(STARTS[:-1]), **{job: st.sampled_from(STARTS) for job in STARTING}}
        ),
        cadences=st.fixed_dictionaries(dict.fromkeys(COMING_AND_GOING, st.sampled_from((1, 1, 1, 2, 3)))),
    )
    def begin(
        self,
        shared: bool,
        extra: set[str],
        foreign: bool,
        settles: bool = False,
        starts: Mapping[str, str] = MappingProxyType({}),
        cadences: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """``settles``: the schedule ends when nothing moves any more, and not anywhere. ``starts``: how jobs that join
        are declared; "latest" if not at all. ``cadences``: of how many days a member has one run.
        """
        self._start(World(self.bench, shared=shared))
        self.settles = settles
        for table in TABLES:
            self.world.tables.create(table)
        for source in SOURCES:
            self.world.input.arrive(source, 2)
        if foreign:
            self._write_foreign("t.amount")
            self._write_foreign("t.shopping")
        self.world.starts, self.world.moment = dict(starts), table_time_of(self.bench.ticks.clock)
        self.cadences = dict(cadences)
        if extra:
            self._declare(extra)
        self._open(None)
        self._done("begin")

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.settles and self.kept and not self.foreign:
                self._settle(wake=True)
                self._done("settled at the end")
            self.oracle.check_audit()
            self.oracle.check_delay()
            self.ran.update(barrier.state for barrier in self.oracle.barriers.values() if barrier.barrier_id)
            self.ran.update(self.oracle.joined())
            self.ran.update(self.oracle.shrunk())
        finally:
            self.world.close()
        self.ran["schedules"] += 1

    # --- steps: what the deployment does ----------------------------------------------------------

    @rule(
        arrived=st.sampled_from((None, *SOURCES)),
        steps=_STEPS,
        again=st.sampled_from((False, False, False, True)),
        what=_ARRIVES,
        which=_INDEX,
    )
    def open(self, arrived: str | None, steps: int | None, again: bool, what: str = "new", which: int = 0) -> None:
        """The next run's start task; or the newest one's is tried again: it observes, or opens what was aborted.

        New records have arrived, or a source says that an earlier one was changed, or deleted.
        """
        if arrived is not None and what == "new":
            self.world.input.arrive(arrived, 2)
        elif arrived is not None:
            self.world.input.change(arrived, which, delete=what == "deleted")
            self.ran[what] += 1
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
        self._done("compaction goes on" if barrier.is_maintenance else how)

    @precondition(lambda self: self.oracle.chain)
    @rule(steps=_STEPS, others=st.sampled_from(("none", "none", "process", "open", "finish")))
    def compact(self, steps: int | None, others: str) -> None:
        """Tables are rewritten at a barrier of their own; the jobs of other barriers go on meanwhile."""
        task = work.compacting(self.world, None)
        self._settled(self.world.run(task, steps), "compaction")
        self.oracle.check()
        if others == "open":
            self._open(None)
        elif others != "none" and self.oracle.in_flight:
            oldest = self._oldest_in_flight()
            if others == "finish" and not self.foreign:
                self._finish()
            else:
                self._process_all(oldest)
        self.oracle.check()
        if task.paused:
            self._settled(self.world.run(task, None), "compaction")
        self._done("compaction")

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
        self._went_on(self.world.run(task, steps))
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
            self._scribble(TABLES[0] if barrier.is_maintenance else JOBS[name].outlets[0])
        else:
            self._settled(self.world.run(self._processing(barrier, name, how == "clear"), None), "job")
        self.oracle.check()
        if zombie.paused:
            self._settled(self.world.run(zombie, None), "job")
        self._done(f"haunt, {how}")

    @precondition(lambda self: self.oracle.in_flight)
    @rule(steps=st.integers(10, 50), which=st.one_of(st.none(), _INDEX), decision=st.sampled_from((None, *Decision)))
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
        if first.paused:
            self.ran[f"contend, {self.oracle.barriers[barrier.barrier_id].state}"] += 1
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
                self.world.meta.publishing.begin(
                    NAME, barrier.barrier_id, self._expected(barrier.barrier_id), "hurried"
                )
        self._done("jump the queue")

    @precondition(lambda self: self.oracle.chain)
    @rule(which=_INDEX, steps=_STEPS)
    def abort(self, which: int, steps: int | None) -> None:
        barrier = self._barrier(which)
        self._settled(self.world.run(work.aborting(self.world, barrier.barrier_id), steps), "abort")
        self._done("abort")

    @rule(job=st.sampled_from(COMING_AND_GOING), how=st.sampled_from(("once", "once", "back", "finished and back")))
    def join_or_leave(self, job: str, how: str) -> None:
        """From the next barrier on; ``back``: and the other way round from the one after it on."""
        back = how != "once"
        while how == "finished and back" and self.oracle.in_flight and not self.foreign:
            self._finish()
        for _ in range(1 + back):
            self._declare({job} ^ set(self.members))
            if back:
                self._open(None)
                self.oracle.check()
        self._done("join or leave")

    @precondition(lambda self: self.oracle.in_flight and not self.foreign)
    @rule()
    def finish(self) -> None:
        """Nothing that happened keeps the oldest barrier from being completed by fresh tries."""
        self._finish()
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
        elif what == "delete" and tables.rows(main):
            self._delete_foreign(table)
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
