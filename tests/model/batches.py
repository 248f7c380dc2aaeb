"""The rules of the machine about tasks that go on past their own barrier."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionMode
from tests.model import work
from tests.model.topology import NAME
from tests.model.waits import Waits
from tests.model.world import MAX_OPEN

_INDEX = st.integers(0, 7)
#: After how many operations a leader stands still: an epoch has about twelve.
_STOPS = st.sampled_from(range(60))
MEANWHILE = ("process", "clear", "abort", "compact", "commit", "open", "revise")


class Batches(Waits):
    """One Spark job for several epochs, beside all that may happen to them."""

    @precondition(lambda self: self.oracle.chain)
    @rule(
        which=_INDEX,
        job=_INDEX,
        ahead=st.sampled_from((2, 1, 0)),
        steps=_STOPS,
        meanwhile=st.sampled_from(MEANWHILE),
        part=_INDEX,
        ready=st.booleans(),
    )
    def batch(self, which: int, job: int, ahead: int, steps: int, meanwhile: str, part: int, ready: bool) -> None:
        """A task leads. On its way it stands still, something happens to the barriers that it has done, is at or would
        go on to, and then it goes on. ``ready``: what it reads is there, also at later barriers.
        """
        for _ in range(ahead):
            if len(self.oracle.in_flight) < MAX_OPEN:
                self._open(None)
                self.oracle.check()
        led = self._led()
        if not led:
            return
        barrier = led[which % len(led) if which > 4 else 0]
        jobs = self._jobs(barrier)
        name = jobs[job % len(jobs)]
        if ready:
            self._process_before(name, led)
        leader = work.leading(self.world, barrier, name, self._generation(barrier, name), limit=1 + MAX_OPEN)
        self._settled(self.world.run(leader, steps), "job")
        self.oracle.check()
        if leader.paused:
            self._meanwhile(meanwhile, barrier, part)
            self.oracle.check()
            self.ran[f"batch beside {meanwhile}"] += 1
        if leader.paused:
            self._settled(self.world.run(leader, None), "job")
        if isinstance(leader.result, Batch):
            self.ran["batch, went on"] += len(leader.result.done) > 1
        self._done("batch")

    def _led(self) -> list[Barrier]:
        """The barriers at which a task may lead."""
        there = [each for each in self.oracle.in_flight if each.state == "OPEN" and not each.is_maintenance]
        return [self.world.meta.barriers.get(NAME, each.barrier_id) for each in there]

    def _process_before(self, job: str, barriers: list[Barrier]) -> None:
        """All that the job may read."""
        for barrier in barriers:
            for name in self._jobs(barrier):
                if name == job:
                    break
                self._settled(self.world.run(self._processing(barrier, name), None), "job")
            self.oracle.check()

    def _meanwhile(self, what: str, barrier: Barrier, part: int) -> None:
        if what == "process":  # the later barriers' own tasks begin
            for each in self._led():
                if each.barrier_id >= barrier.barrier_id + part % 2:
                    self._process_all(each)
        elif what == "revise" and self.oracle.readable:
            self._correct(part, part, delete=False)
            self._revise(part, set(), RevisionMode.INCREMENTAL, None)
            self._replay()
            if part % 2:
                self._happen("publish", part)
        else:
            self._happen(what, part)
