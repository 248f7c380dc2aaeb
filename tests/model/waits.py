"""The rules of the machine about those who wait: every wait has an end.

Whoever is told "later" is deferred with a condition. Once everybody who can run has run, each of them has been reached,
or is over, or is refused with a reason: nobody waits for ever, and nobody is sent to wait again.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from airflow_barrier.coordinator.revisions.publish import Swapped
from airflow_barrier.coordinator.waiting import Condition
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier, TableProgress
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState, TableState
from tests.model import work
from tests.model.beside import STEPS
from tests.model.joining import Joining
from tests.model.told import Kept, told_later
from tests.model.topology import COMING_AND_GOING, JOBS, NAME, TABLES

#: More rounds than there is to do: a barrier needs one, and so does a revision.
_ROUNDS = 8
#: How many days ahead somebody may wait for.
_AHEAD = 2
_STEPS = st.sampled_from((None,) * 12 + tuple(range(12)))
_STATES = st.sampled_from((None, TableState.PROCESSED, BarrierState.PRECOMMIT, BarrierState.COMMIT))


class Waits(Joining):
    """Sensors, members whose barrier is not there, and what becomes of all who wait."""

    @rule(
        how=st.sampled_from(("number", "time", "at least")),
        at=st.integers(-4, _AHEAD),
        state=_STATES,
        table=st.one_of(st.none(), st.sampled_from(TABLES)),
    )
    def wait(self, how: str, at: int, state: TableState | BarrierState | None, table: str | None) -> None:
        """A sensor begins to wait for a barrier: one of the past, one in flight, or one that is to come."""
        number, moment = max(1, max(self.oracle.opened, default=0) + at), work.moment_of(max(1, self.days + at))
        target, tables = None if state is None else state.value, None if table is None else (table,)
        if how == "number":
            condition = Condition(target, barrier_id=number, tables=tables)
        elif how == "time":
            condition = Condition(target, timestamp=moment, tables=tables)
        else:
            level = Level.REPEATABLE_READ if state is BarrierState.COMMIT else Level.READ_COMMITTED
            condition = Condition.newer(level, moment, tables)
        self.kept.append(Kept("sensor", (condition,)))
        self._done("wait")

    @rule(job=st.sampled_from(COMING_AND_GOING), at=st.integers(-2, _AHEAD), steps=_STEPS)
    def take_part(self, job: str, at: int, steps: int | None) -> None:
        """A member's task has started, of a run whose barrier is there, or passed by, or yet to come."""
        every = self.cadences.get(job, 1)
        day = max(every, (self.days + at) // every * every)
        task = work.taking_part(self.world, job, day, lambda barrier: self._generation(barrier, job))
        self._settled(self.world.run(task, steps), "take")
        self.ran["take part, and process"] += task.found is not None and task.error is None and not task.paused
        self.ran["take part, of another schedule"] += every > 1 and task.found is not None
        self._done("take part")

    @precondition(lambda self: self.oracle.in_flight and not self.foreign and self.oracle.under_way is None)
    @rule()
    def catch_up(self) -> None:
        """Members have missed their runs: the next one of each does all that its job lacks, and no person is asked."""
        self._open(None)
        self.oracle.check()
        compacted = any(
            each.is_maintenance for each in self.oracle.in_flight
        )  # whose end jobs wait for, members or not
        open_now = [each for each in self.oracle.in_flight if each.state == "OPEN" and not compacted]
        barriers = [self.world.meta.barriers.get(NAME, each.barrier_id) for each in open_now]
        taken = {
            (barrier.barrier_id, job)
            for barrier in barriers
            for job in COMING_AND_GOING
            if (attempt := self.world.meta.attempts.current(NAME, barrier.barrier_id, job)) is not None
            and attempt.state in LIVE_ATTEMPTS
        }
        for barrier in barriers:
            for job in self._jobs(barrier):
                if job not in COMING_AND_GOING:
                    self._settled(self.world.run(self._processing(barrier, job), None), "job")
        newest = work.day_of(barriers[-1].timestamp) if barriers else self.days
        came = [self.world.run(work.taking_part(self.world, job, newest), None) for job in COMING_AND_GOING]
        for task in came:
            self._settled(task, "take")
        self.oracle.check()
        for barrier in barriers if all(task.error is None for task in came) and not taken else ():
            there = self.world.meta.barriers.get(NAME, barrier.barrier_id)
            waits = [each.job for each in self._lacking(there)]
            assert not set(waits) & set(COMING_AND_GOING), f"{there} lacks {waits} although their DAG has run since"
            self.ran["caught up"] += 1
        self._done("catch up")

    @precondition(lambda self: self.kept and not self.foreign)
    @rule(wake=st.booleans())
    def settle(self, wake: bool) -> None:
        """Everybody who can run runs until nothing moves, and some days go by. Then nobody waits any more."""
        self._settle(wake)
        self._done("settle")

    @rule(what=st.sampled_from(STEPS))
    def beside(self, what: str) -> None:
        """Something happens in the other topology."""
        self.neighbour.step(what)
        self._done(f"beside, {what}")

    # --- parts ------------------------------------------------------------------------------------

    def _lacking(self, barrier: Barrier) -> list[TableProgress]:
        """The tables that are missing although all that their jobs read is there."""
        rows = {row.table: row for row in self.world.meta.barriers.progress(NAME, barrier.barrier_id)}
        pending = {name for name, row in rows.items() if row.state is TableState.PENDING}
        return [rows[name] for name in sorted(pending) if pending.isdisjoint(JOBS[rows[name].job or ""].inlets)]

    def _settle(self, wake: bool) -> None:
        kept, self.kept = self.kept, []
        if wake:
            for task in tuple(self.world.tasks):
                self._went_on(self.world.run(task, None))
                self.oracle.check()
        self._until_nothing_moves()
        for _ in range(_AHEAD + 1):
            self._open(None)
            self.oracle.check()
            self._until_nothing_moves()
        for each in kept:
            waits = each.waits_for(self.world.meta)
            assert not waits, f"{each.who} waits for ever: {waits}"
            self.ran[f"settled, {each.who.partition(' ')[0]}"] += 1
        for each in kept:
            if each.again is not None:
                task = self.world.run(each.again(), None)
                self._went_on(task)
                self.oracle.check()
                assert not told_later(task), f"{each.who} is sent to wait again: {task.result or task.error}"
        self.kept = []

    def _until_nothing_moves(self) -> None:
        for _ in range(_ROUNDS):
            before = self.oracle.standing()
            self._everybody_runs()
            if self.oracle.standing() == before:
                return
        raise AssertionError(f"after {_ROUNDS} rounds there is still something to do")

    def _everybody_runs(self) -> None:
        """A revision is staged and published, or a person gives it up; each barrier is completed."""
        revision = self.oracle.under_way
        if revision is not None:
            self._replay()
            publisher = self.world.run(work.publishing(self.world, revision.number), None)
            self._settled(publisher, "publish")
            self.oracle.check()
            if not isinstance(publisher.result, Swapped):
                assert self.oracle.revisions[revision.number].state != "COMMITTING", publisher.error
                self._cancel(None)
                self.oracle.check()
        while self.oracle.in_flight:
            self._finish()
