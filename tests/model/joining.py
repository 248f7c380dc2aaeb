"""The rules of the machine about jobs that come to a running topology with their history."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.protocol.revisions import RevisionMode
from tests.model.revising import OTHERS, Revising
from tests.model.topology import JOBS, LATECOMERS, NAME

_INDEX = st.integers(0, 7)
#: After how many operations a task stands still: mostly it does not.
_STEPS = st.sampled_from((None,) * 24 + tuple(range(40)))
_STOPS = st.sampled_from(range(60))
_JOBS = st.sets(st.sampled_from(LATECOMERS), min_size=1)


class Joining(Revising):
    """Jobs are declared, wait, and join by a revision."""

    @rule(job=st.sampled_from(LATECOMERS))
    def wait_or_leave(self, job: str) -> None:
        """A job is declared, and waits; or it leaves again, before or after it joined, and may come back."""
        left = job in self.late
        if not left and job in self._had() and JOBS[job].externals:
            return  # others have read on in its source: it would have to come back under another name
        self.late = [name for name in LATECOMERS if (name in self.late) != (name == job)]
        self._declare_late()
        waits = job not in self._had()
        self._done(("waits no longer" if left else "waits") if waits else ("leaves" if left else "is back"))
        if left and not waits and not JOBS[job].externals and self.days % 2:
            self._open(None)
            self.oracle.check()
            self.wait_or_leave(job)

    @precondition(lambda self: self._waiting() and self.oracle.readable)
    @rule(jobs=_JOBS, first=st.one_of(st.none(), st.none(), _INDEX), steps=_STEPS, gated=st.booleans())
    def bootstrap(self, jobs: set[str], first: int | None, steps: int | None, gated: bool) -> None:
        """A person begins to compute the history of what waits: from the first barrier that has its inlets, or from a
        later one.
        """
        self._bootstrap(jobs, first, steps, gated)
        self._done("bootstrap")

    @precondition(lambda self: not self.foreign and self.oracle.chain and len(self._had()) < len(LATECOMERS))
    @rule(
        jobs=_JOBS,
        first=st.one_of(st.none(), st.none(), _INDEX),
        during=st.sampled_from(OTHERS),
        steps=_STOPS,
        then=st.sampled_from(OTHERS),
        part=_INDEX,
        past=st.integers(0, 2),
    )
    def bootstrap_through(
        self, jobs: set[str], first: int | None, during: str, steps: int, then: str, part: int, past: int
    ) -> None:
        """From the declaration to the publish, as `revise_through` does it."""
        self.late = [name for name in LATECOMERS if name in self.late or name in jobs - self._had()]
        self._declare_late()
        if self.oracle.under_way is None:
            self._commit_another(past)
            if self._waiting():
                self._bootstrap(jobs, first, None, gated=part % 2 == 0)
        swapped = self._through(during, steps, then, part)
        self._done("bootstrap through, refused" if swapped is None else f"bootstrap through, {then}")

    # --- parts ------------------------------------------------------------------------------------

    def _had(self) -> set[str]:
        """The latecomers that some barrier has."""
        there = [self.oracle.opened[barrier.barrier_id].tables for barrier in self.oracle.chain]
        return {name for name in LATECOMERS if any(set(JOBS[name].outlets) & tables for tables in there)}

    def _waiting(self) -> list[str]:
        return [name for name in self.late if name not in self._had()]

    def _commit_another(self, how_many: int) -> None:
        """So many barriers are committed, and one at least can be read."""
        for _ in range(how_many):
            if not self.oracle.in_flight:
                self.world.input.arrive("clicks", 1)
                self._open(None)
                self.oracle.check()
            if self.oracle.in_flight:
                self._finish()
        while not self.oracle.readable:
            self._finish()

    def _bootstrap(self, jobs: set[str], first: int | None, steps: int | None, gated: bool) -> None:
        if any(task.name.startswith("expire") for task in self.world.tasks):
            return  # it may have looked already, and take what the revision builds on: its attempts fail then
        waiting, readable = self._waiting(), self.oracle.readable
        changed = tuple(name for name in waiting if name in jobs) or tuple(waiting)
        number = None if first is None else readable[first % len(readable)].barrier_id
        begun = self._begin(Wanted(NAME, number, changed=changed, accept_pause=True), steps, gated=gated)
        if begun is not None:
            assert begun.mode is RevisionMode.HISTORY
            assert set(begun.jobs) == set(changed), "it joins alone"
            self.ran["bootstrap, begun"] += 1
