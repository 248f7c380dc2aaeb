"""The rules of the machine about readers, and about those who let go of what readers no longer hold."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from airflow_barrier.protocol import errors
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState
from tests.model import readers, work
from tests.model.parts import Parts
from tests.model.readers import LEASE_SECONDS, Reader, Refreshed
from tests.model.tasks import Task
from tests.model.topology import JOBS

_INDEX = st.integers(0, 7)
#: After how many operations a reader stands still: mostly it does not.
_STEPS = st.sampled_from((None,) * 6 + tuple(range(4)))
#: After how many operations an expiry does: mostly it does.
_STOPS = st.sampled_from((None,) * 20 + tuple(range(40)))
_LEVELS = st.sampled_from((*Level, Level.READ_COMMITTED, Level.READ_COMMITTED))


class Reading(Parts):
    """Sessions that stay open over what others do, and expiry."""

    @precondition(lambda self: self.oracle.chain)
    @rule(level=_LEVELS, at=st.one_of(st.none(), st.none(), _INDEX), steps=_STEPS)
    def read(self, level: Level, at: int | None, steps: int | None) -> None:
        """A reader opens a session: at the newest barrier, or at one of the past."""
        number = None if at is None else max(self.oracle.opened) - at % max(self.oracle.opened)
        if level is Level.READ_UNCOMMITTED:
            number = None
        self._went_on(self.world.run(readers.opening(self.world, level, number), steps))
        self._done("read")

    @precondition(lambda self: self._idle())
    @rule(which=_INDEX, steps=_STEPS)
    def refresh(self, which: int, steps: int | None) -> None:
        """A reader wants newer data; some stand still in the middle, for ever or for a while."""
        reader = self._idle()[which % len(self._idle())]
        since = len(self.oracle.answers[reader.level]) - 1
        self._went_on(self.world.run(readers.refreshing(self.world, reader, since), steps))
        self._done("refresh")

    @precondition(lambda self: self.oracle.in_flight and not self.foreign)
    @rule(
        level=_LEVELS,
        others=st.sampled_from(("clear", "expire", "abort", "commit", "clear and stop", "process on")),
        job=_INDEX,
        steps=_STEPS,
    )
    def read_on(self, level: Level, others: str, job: int, steps: int | None) -> None:
        """A reader has the oldest barrier that is not committed, then something becomes of it, then he looks again."""
        barrier = self._oldest_in_flight()
        if barrier.state is BarrierState.OPEN:
            self._process_all(barrier)
            self.oracle.check()
        opened = self.world.run(readers.opening(self.world, level, None), None)
        self._went_on(opened)
        if not isinstance(opened.result, Reader):
            return
        refresh = readers.refreshing(self.world, opened.result, len(self.oracle.answers[level]) - 1)
        self._went_on(self.world.run(refresh, steps or 0))
        if others.startswith("clear"):
            jobs = self._jobs(barrier)
            cleared = self._processing(barrier, jobs[job % len(jobs)], cleared=True)
            stop = work.WRITES if others == "clear and stop" else ()
            self._settled(self.world.run(cleared, None, stop), "job")
        elif others == "abort":
            self._settled(self.world.run(work.aborting(self.world, barrier.barrier_id), None), "abort")
        elif others == "process on":
            self._process_all(barrier)
        else:
            self._settled(self.world.run(work.committing(self.world, barrier.barrier_id), None), "commit")
        self.oracle.check()
        if others == "expire":
            self._expire(1, None)
        if refresh.paused:
            self._went_on(self.world.run(refresh, None))
        self.ran[f"read on, {others}"] += 1
        self._done("read on")

    @precondition(lambda self: self._idle())
    @rule(which=_INDEX, dies=st.booleans())
    def leave(self, which: int, dies: bool) -> None:
        """A reader is done and says so, or its process dies: then it holds what it holds until its time is over."""
        reader = self._idle()[which % len(self._idle())]
        if dies:
            reader.dead = True
        else:
            reader.session._close()
            self.oracle.readers.remove(reader)
        self._done("reader dies" if dies else "reader leaves")

    @rule(parts=st.integers(1, 4), hearts=st.sampled_from(("beat", "stand still", "beat again")))
    def time_passes(self, parts: int, hearts: str) -> None:
        """Leases are renewed meanwhile, as sessions do it; or machines hang, for a while or on, and some run out."""
        for part in range(1, parts + 1):
            self.world.bench.ticks.pass_by(LEASE_SECONDS / 3)
            if hearts == "beat" or (hearts == "beat again" and part == parts):
                for reader in self._idle():
                    self._beat(reader)
        self._done("time passes")

    @precondition(lambda self: self.oracle.chain)
    @rule(keep=st.integers(1, 3), steps=_STOPS)
    def expire(self, keep: int, steps: int | None) -> None:
        """What nobody holds goes; an expiry that dies on its way is gone on with by the next one, or wakes."""
        self._expire(keep, steps)

    # --- parts ------------------------------------------------------------------------------------

    def _expire(self, keep: int, steps: int | None) -> None:
        if self._awaits_the_past():
            return
        paused = any(reader.busy for reader in self.oracle.readers)
        stay = self.oracle.must_stay(keep)
        task = self.world.run(work.expiring(self.world, keep), steps)
        self._went_on(task)
        self._done("expire" if task.error is None and not task.paused else "expire, stopped")
        readable = {barrier.barrier_id for barrier in self.oracle.readable}
        assert stay <= readable, f"an expiry took {stay - readable}"
        if task.error is None and not task.paused:
            assert paused or stay == readable, f"an expiry left {readable - stay}"
            self.oracle.check_taken()

    def _awaits_the_past(self) -> bool:
        """Whether a job will join with a moment that tables' logs have to tell. If it is expired before, the barrier is
        not opened until a person says another start, or takes the job out.
        """
        had = {table for barrier in self.oracle.chain for table in self.oracle.opened[barrier.barrier_id].tables}
        return any(start == "moment" and not had >= set(JOBS[job].outlets) for job, start in self.world.starts.items())

    def _idle(self) -> list[Reader]:
        return [reader for reader in self.oracle.readers if not reader.busy and not reader.dead]

    def _beat(self, reader: Reader) -> None:
        lived = self.oracle.lives(reader)
        reader.session._heartbeat._renew()
        self._lost(reader, lived)

    def _lost(self, reader: Reader, lived: bool) -> None:
        """A session knows if what it holds was lost, and then it is at its end."""
        try:
            reader.session.check()
        except errors.LeaseLostError:
            assert not lived, f"reader {reader.number} is said to have lost what it holds"
            reader.session._close()
            self.oracle.readers.remove(reader)
            self.ran["lease lost"] += 1

    def _went_on(self, task: Task) -> None:
        """A task has ended, or stands still: a reader's or another's."""
        kind = task.name.partition(" ")[0]
        if kind not in ("read", "refresh"):
            self._settled(task, kind)
        elif isinstance(task.result, Reader):
            self.oracle.opened_session(task.result)
        elif isinstance(task.result, Refreshed):
            self.ran["fell back"] += self.oracle.refreshed(task.result) is not None
        elif kind == "refresh" and task.error is not None:
            assert isinstance(task.error, errors.LeaseLostError), f"{type(task.error).__name__}: {task.error}"
            number = int(task.name.split()[1])
            reader = next(each for each in self.oracle.readers if each.number == number)
            self._lost(reader, self.oracle.lives(reader))
        elif task.error is not None:
            self._refused(task)

    def _refused(self, task: Task) -> None:
        """A barrier of the past cannot be read: why not?"""
        number = int(task.name.split()[2])
        barrier, end = self.oracle.barriers[number], self.oracle.ends[number]
        if isinstance(task.error, errors.ExpiredBarrierError):
            assert end.expiring_at is not None, task.error
        elif isinstance(task.error, errors.NotReadableYetError):
            assert barrier.state != "COMMIT", task.error
        else:
            assert isinstance(task.error, errors.BarrierAbortedError), task.error
            assert barrier.state == "ABORTED", task.error
        self.ran["refused"] += 1
