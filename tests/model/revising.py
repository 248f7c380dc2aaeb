"""The rules of the machine about people who correct the past, and about revisions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped
from airflow_barrier.coordinator.staging import give_up
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionMode
from airflow_barrier.protocol.states import BarrierState
from tests.model import work
from tests.model.reading import Reading
from tests.model.topology import COMING_AND_GOING, NAME, ORDER, TABLES

_INDEX = st.integers(0, 7)
#: After how many operations a task stands still: mostly it does not.
_STEPS = st.sampled_from((None,) * 24 + tuple(range(40)))
_STOPS = st.sampled_from(range(60))
_MODES = st.sampled_from((RevisionMode.INCREMENTAL,) * 4 + (RevisionMode.FULL,))
#: What happens while a revision is staged, or its publisher stands still.
OTHERS = ("none", "open", "commit", "clear", "abort", "compact", "expire", "publish", "cancel", "correct", "write")


class Revising(Reading):
    """History is corrected while barriers go on."""

    @precondition(lambda self: self.oracle.readable)
    @rule(which=_INDEX, record=_INDEX, delete=st.booleans())
    def correct(self, which: int, record: int, delete: bool) -> None:
        """A person changes what a source holds of a day that is committed."""
        self._correct(which, record, delete)
        self._done("correct")

    @precondition(lambda self: self.oracle.readable)
    @rule(which=_INDEX, jobs=st.sets(st.sampled_from(ORDER), max_size=2), mode=_MODES, steps=_STEPS)
    def revise(self, which: int, jobs: set[str], mode: RevisionMode, steps: int | None) -> None:
        """A person begins to correct a day, for input (no job is named) or code that was mended."""
        self._revise(which, jobs, mode, steps)
        self._done("revise")

    @precondition(lambda self: self.oracle.under_way)
    @rule(which=_INDEX, job=_INDEX, steps=_STEPS, how=st.sampled_from(("process", "process", "clear", "lie")))
    def process_revised(self, which: int, job: int, steps: int | None, how: str) -> None:
        """A try of a job's task at one of the revision's barriers, in any order; or it is cleared, or lies."""
        barrier, name = self._any_revised(which, job)
        if barrier is None or name is None:
            return
        task = self._processing(barrier, name, how == "clear")
        task.lies = how == "lie"
        self._settled(self.world.run(task, steps), "job")
        self._done(f"{how} revised")

    @precondition(lambda self: self.oracle.under_way)
    @rule(which=_INDEX, job=_INDEX, steps=_STOPS, how=st.sampled_from(("retry", "clear", "lost", "killed")))
    def haunt_revised(self, which: int, job: int, steps: int, how: str) -> None:
        """As for other barriers: a task stops, another one takes its place, and then the first wakes."""
        barrier, name = self._any_revised(which, job)
        if barrier is None or name is None:
            return
        zombie = self._processing(barrier, name)
        self._settled(self.world.run(zombie, steps), "job")
        self.oracle.check()
        zombie.orphan = how in ("lost", "killed")
        if how == "killed" and zombie.attempt_id is not None:
            give_up(self.world.deployment, zombie.attempt_id, reason="killed", actor="on_kill")
        self._settled(self.world.run(self._processing(barrier, name, how == "clear"), None), "job")
        self.oracle.check()
        if zombie.paused:
            self._settled(self.world.run(zombie, None), "job")
        self._done("haunt revised")

    @precondition(lambda self: self.oracle.under_way)
    @rule()
    def replay(self) -> None:
        """All that is left of the revision, one after another."""
        self._replay()
        self._done("replay")

    @precondition(lambda self: self.oracle.under_way)
    @rule(closed=st.booleans())
    def gate(self, closed: bool) -> None:
        """The publisher sees that it has caught up, or gives up on that."""
        revision = self.oracle.under_way
        assert revision is not None
        if revision.state == "STAGING":
            self.world.meta.revisions.gate(NAME, revision.number, closed=closed, actor="publisher")
        self._done("gate")

    @precondition(lambda self: self.oracle.revisions)
    @rule(which=_INDEX, steps=_STEPS)
    def publish(self, which: int, steps: int | None) -> None:
        numbers = sorted(self.oracle.revisions, reverse=True)
        task = work.publishing(self.world, numbers[which % len(numbers) if which > 5 else 0])
        self._settled(self.world.run(task, steps), "publish")
        self._done("publish")

    @precondition(lambda self: self.oracle.revisions)
    @rule(steps=_STEPS)
    def cancel(self, steps: int | None) -> None:
        self._cancel(steps)
        self._done("cancel")

    @precondition(lambda self: not self.foreign and self.oracle.chain)
    @rule(
        which=_INDEX,
        jobs=st.sets(st.sampled_from(ORDER), max_size=2),
        mode=_MODES,
        during=st.sampled_from(OTHERS),
        steps=_STOPS,
        then=st.sampled_from(OTHERS),
        part=_INDEX,
    )
    def revise_through(
        self, which: int, jobs: set[str], mode: RevisionMode, during: str, steps: int, then: str, part: int
    ) -> None:
        """A revision from its beginning to its publish; something happens while it is staged, and something else
        while its publisher stands still.
        """
        if self.oracle.under_way is None:
            while not self.oracle.readable:
                self._finish()
            self._correct(which, part, delete=part % 2 == 1)
            self._revise(which, jobs, mode, None)
        swapped = self._through(during, steps, then, part)
        self.ran["swapped"] += swapped is True
        self._done("revise through, refused" if swapped is None else f"revise through, {then}")

    # --- parts ------------------------------------------------------------------------------------

    def _correct(self, which: int, record: int, delete: bool) -> None:
        readable = self.oracle.readable
        epoch = self.oracle.opened[readable[which % len(readable)].barrier_id].epoch
        records = [each for source in sorted(epoch) for each in epoch[source]]
        if records:
            self.world.input.correct(records[record % len(records)], delete=delete)

    def _revise(self, which: int, jobs: set[str], mode: RevisionMode, steps: int | None) -> None:
        if any(task.name.startswith("expire") for task in self.world.tasks):
            return  # it may have looked already, and take what the revision builds on: its attempts fail then
        readable = self.oracle.readable
        there = self._registered()
        changed = tuple(job for job in ORDER if job in jobs and job in there)
        full = mode is RevisionMode.FULL
        first = None if full else readable[which % len(readable)].barrier_id
        wanted = Wanted(NAME, first, changed=changed, mode=mode, accept_pause=True)
        self._begin(wanted, steps, gated=which % 2 == 0)

    def _begin(self, wanted: Wanted, steps: int | None, *, gated: bool) -> Revision | None:
        """``gated``: no barrier opens until it is published."""
        task = self.world.run(work.revising(self.world, wanted), steps)
        self._settled(task, "revise")
        if not isinstance(task.result, Revision):
            return None
        self.ran["revision with members"] += any(name in task.result.jobs for name in COMING_AND_GOING)
        if not gated:
            self.world.meta.revisions.gate(NAME, task.result.revision, closed=False, actor="a person")
        return task.result

    def _through(self, during: str, steps: int, then: str, part: int) -> bool | None:
        """What is under way, up to its publish. Returns whether it stands then; None: nothing was under way."""
        self.oracle.check()
        self._happen(during, part)
        self.oracle.check()
        if self.oracle.under_way is None:
            return None
        self._replay()
        publisher = work.publishing(self.world, self.oracle.under_way.number)
        self._settled(self.world.run(publisher, steps), "publish")
        self.oracle.check()
        self._happen(then, part)
        self.oracle.check()
        if publisher.paused:
            self._settled(self.world.run(publisher, None), "publish")
        self.oracle.check()
        return isinstance(publisher.result, Swapped)

    def _cancel(self, steps: int | None) -> None:
        task = self.world.run(work.cancelling(self.world, max(self.oracle.revisions)), steps)
        self._settled(task, "cancel")
        if task.error is None and not task.paused and not self.world.tasks:
            left = self.oracle.branches_of_cancelled()
            assert not left, f"a cancelled revision left {left}"

    def _revised(self) -> list[Barrier]:
        """The barriers of the revision under way, in order."""
        revision = self.oracle.under_way
        return [] if revision is None else self.world.meta.revisions.barriers(NAME, revision.number)

    def _any_revised(self, which: int, job: int) -> tuple[Barrier | None, str | None]:
        barriers = self._revised()
        if not barriers:
            return None, None
        likely = [barrier for barrier in barriers if barrier.state is BarrierState.OPEN] if which < 4 else []
        chosen = likely[0] if likely else barriers[which % len(barriers)]
        jobs = self._jobs(chosen)
        return chosen, jobs[job % len(jobs)] if jobs else None

    def _replay(self) -> None:
        revision = self.world.meta.revisions.under_way(NAME)
        if revision is None:
            return
        if revision.state.value == "STAGING":
            try:
                self.world.meta.revisions.extend(NAME, revision.revision, "publisher")
            except RevisionRefusedError:
                self.ran["revise, overtaken"] += 1
        for barrier in self._revised():
            for job in self._jobs(barrier):
                self._settled(self.world.run(self._processing(barrier, job), None), "job")
        self.oracle.check()

    def _happen(self, what: str, part: int) -> None:
        """Something else, in between."""
        world, in_flight = self.world, self.oracle.in_flight
        if what == "open":
            self._open(None)
        elif what == "commit" and in_flight:
            barrier = self._oldest_in_flight()
            if barrier.state is BarrierState.OPEN:
                self._process_all(barrier)
                self.oracle.check()
            self._settled(world.run(work.committing(world, barrier.barrier_id), None), "commit")
        elif what == "clear" and in_flight:
            barrier = self._oldest_in_flight()
            jobs = self._jobs(barrier)
            self._settled(world.run(self._processing(barrier, jobs[part % len(jobs)], cleared=True), None), "job")
        elif what == "abort" and in_flight:
            self._settled(world.run(work.aborting(world, in_flight[part % len(in_flight)].barrier_id), None), "abort")
        elif what == "compact":
            self._settled(world.run(work.compacting(world, None), None), "compaction")
        elif what == "expire":
            self._expire(1, None)
        elif what == "publish" and self.oracle.revisions:
            self._settled(world.run(work.publishing(world, max(self.oracle.revisions)), None), "publish")
        elif what == "cancel" and self.oracle.revisions:
            self._cancel(None)
        elif what == "correct" and self.oracle.readable:
            self._correct(part, part, delete=False)
        elif what == "write":
            self._write_foreign(TABLES[part % len(TABLES)])
