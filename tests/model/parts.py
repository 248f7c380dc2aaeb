"""What the machine's steps are made of, and whether their outcomes may happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, ClassVar

from airflow_barrier.coordinator.committing import Committed, publications_of
from airflow_barrier.coordinator.compacting import Compacted
from airflow_barrier.coordinator.opening import Later, Opened
from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.coordinator.staging import Adopted, Waiting
from airflow_barrier.protocol import errors
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState, Decision
from airflow_barrier.tables._metadata import snapshots_of
from tests.model import work
from tests.model.beside import Neighbour
from tests.model.oracle import Oracle
from tests.model.tasks import Task
from tests.model.told import Kept, kept_of
from tests.model.topology import COMING_AND_GOING, EXTRA, FRAGMENT, JOBS, LATE, NAME, ORDER, TABLES
from tests.model.world import World
from tests.support.memory_tables import StillNamedError

#: What there is to do at a maintenance barrier.
COMPACTION = "compaction"
_ALLOWED: dict[str, tuple[type[errors.BarrierError], ...]] = {
    "open": (errors.BarrierOrderError, errors.HeadMovedError, errors.TooManyOpenBarriersError, errors.GatedError),
    "take": (),
    # another one may have carried out, meanwhile, what this one began
    "revise": (errors.RevisionRefusedError, errors.RevisionEndedError),
    "publish": (errors.RevisionRefusedError, errors.HeadMovedError),
    "cancel": (errors.RevisionEndedError,),
    "commit": (errors.BarrierAbortedError,),
    "abort": (errors.AlreadyCommittedError,),
    "expire": (),
    "compaction": (
        errors.FencedAttemptError,
        errors.VoidedAttemptError,
        errors.BarrierAbortedError,
        errors.AlreadyCommittedError,
        errors.AttemptTakenError,
        errors.StagedTableError,
        errors.GatedError,
    ),
    "job": (
        errors.FencedAttemptError,
        errors.VoidedAttemptError,
        errors.BarrierAbortedError,
        errors.AlreadyCommittedError,
        errors.AttemptTakenError,
        errors.StagedTableError,
        errors.NotClosedError,
        errors.GatedError,
    ),
}


class Parts:
    """One world, and the oracle that watches it."""

    #: of the whole process: schedules that ran to their end, steps, and what happened in them
    ran: ClassVar[Counter[str]] = Counter()

    world: World
    oracle: Oracle

    def _start(self, world: World) -> None:
        self.world, self.oracle = world, Oracle(world)
        self.neighbour = Neighbour(world)
        #: those of the latecomers that are declared
        self.late: list[str] = []
        self.days = 0
        #: line, barrier and job -> how often its task was cleared
        self.generations: dict[tuple[int, int, str], int] = {}
        #: who was told to come back later
        self.kept: list[Kept] = []
        #: job -> of how many days one has a run; of each, if not said
        self.cadences: dict[str, int] = {}
        #: attempts whose tasks are deferred
        self.sleeping: list[int] = []
        #: tables whose rows somebody else changed, ever
        self.foreign: set[str] = set()

    def _done(self, what: str) -> None:
        self.ran["steps"] += 1
        self.ran[what] += 1
        self.oracle.check()
        self.neighbour.check()

    @property
    def members(self) -> list[str]:
        """Those that come and go, and are there now."""
        return [name for name in self.oracle.declared() if name in COMING_AND_GOING]

    def _declare(self, members: Collection[str]) -> None:
        self.world.meta.topologies.register(
            NAME, EXTRA, [self.world.job(name) for name in ORDER if name in members], "test"
        )

    def _declare_late(self) -> None:
        self.world.meta.topologies.register(NAME, LATE, [self.world.job(name) for name in self.late], "test")

    def _open(self, steps: int | None, again: bool = False) -> None:
        self.days += not again
        self._settled(self.world.run(work.opening(self.world, self.days), steps), "open")

    def _barrier(self, which: int, *states: str) -> Barrier:
        """For small numbers the oldest in one of ``states``; else from the newest back, whatever it is."""
        likely = [barrier.barrier_id for barrier in self.oracle.chain if barrier.state in states]
        newest = max(self.oracle.opened)
        number = likely[0] if likely and which < 4 else newest - which % min(4, newest)
        return self.world.meta.barriers.get(NAME, number)

    def _oldest_in_flight(self) -> Barrier:
        return self.world.meta.barriers.get(NAME, self.oracle.in_flight[0].barrier_id)

    def _expected(self, barrier_id: int) -> dict[str, int | None]:
        return self.world.tables.mains(sorted(self.oracle.opened[barrier_id].tables))

    def _jobs(self, barrier: Barrier) -> list[str]:
        if barrier.is_maintenance:
            return [COMPACTION]
        if barrier.line:
            rows = self.world.meta.revisions.progress(NAME, barrier.line, barrier.barrier_id)
            tables = frozenset(row.table for row in rows)
        else:
            tables = self.oracle.opened[barrier.barrier_id].tables
        return [name for name in ORDER if set(JOBS[name].outlets) <= tables]

    def _process_all(self, barrier: Barrier) -> None:
        for job in self._jobs(barrier):
            if not self._runs_at(job, barrier):
                self.ran["no run of its own"] += 1
                continue
            counts = self.world.meta.attempts.current(NAME, barrier.barrier_id, job)
            task = self._processing(barrier, job)
            self._settled(self.world.run(task, None), "job")
            if (
                counts is not None
                and counts.state is AttemptState.PROCESSED
                and task.name.split()[1] == counts.generation
            ):
                assert isinstance(task.result, Adopted), "a retry repeats nothing"
                assert task.result.attempt.attempt_id == counts.attempt_id

    def _finish(self) -> None:
        barrier = self._oldest_in_flight()
        if barrier.state in (BarrierState.OPEN, BarrierState.PRECOMMIT):
            for job in self._jobs(barrier):
                tries = [self._processing(barrier, job) for _ in range(3)]
                for task in tries:
                    self.world.run(task, None)
                    if task.error is None:
                        break
                    assert isinstance(task.error, errors.Retryable), task.error
                assert isinstance(task.result, (Adopted, Barrier, Compacted)), task.result
        task = self.world.run(work.committing(self.world, barrier.barrier_id), None)
        assert task.error is None, task.error
        assert isinstance(task.result, Committed), task.result
        self.oracle.check()

    def _processing(self, barrier: Barrier, job: str, cleared: bool = False) -> Task:
        if job == COMPACTION:
            return work.compacting(self.world, barrier)
        key = (barrier.line, barrier.barrier_id, job)
        self.generations[key] = self.generations.get(key, 0) + cleared
        return work.processing(self.world, barrier, job, self._generation(barrier, job))

    def _generation(self, barrier: Barrier, job: str) -> str:
        number = self.generations.get((barrier.line, barrier.barrier_id, job), 0)
        return f"r{barrier.line}g{number}" if barrier.line else f"g{number}"

    def _runs_at(self, job: str, barrier: Barrier) -> bool:
        """Whether the job's DAG has a run of the barrier's day. Where it has none, a batch does the work, or its next
        run.
        """
        return work.day_of(barrier.timestamp) % self.cadences.get(job, 1) == 0

    def _settled(self, task: Task, kind: str) -> None:
        """A task has ended or stands still: was that what may happen?"""
        if (kept := kept_of(task)) is not None:
            self.kept.append(kept)
        if task.error is not None:
            if kind not in _ALLOWED or task.found is not None:
                kind = "job"
            allowed: tuple[Any, ...] = _ALLOWED[kind]
            if kind == "publish" and task.name.split()[1][1:] in self._cancelled():
                allowed += (errors.RevisionEndedError,)
            if kind == "revise" and not self._registered().issuperset(task.jobs):
                allowed += (errors.TopologyError,)  # a job that the person named has left
            if kind == "job" and self.oracle.revisions:
                allowed += (errors.RevisionEndedError,)
            if kind == "job" and self.world.input.edition:
                # the input of a barrier that is committed was corrected; or once more, after it was read
                allowed += (errors.SourceDataError, errors.IllegalTransitionError)
            if self.foreign:
                allowed += (errors.ForeignWriteError, errors.HeadMovedError, StillNamedError)
            if kind in ("open", "take") and any(
                self.foreign.intersection(JOBS[name].outlets) for name in (*self.members, *self.late)
            ):
                # a table that is not where its job left it joins anew when the job comes back
                allowed += (errors.StartFromError,)
            if any(end.expiring_at for end in self.oracle.ends.values()):
                # some of what came into the inlets of a job that comes back is gone; or, since a person began to
                # plan, what a revision was to begin with
                allowed += {
                    "open": (errors.StartFromError,),
                    "take": (errors.StartFromError,),
                    "revise": (errors.SnapshotMissingError,),
                }.get(kind, ())
            attempt = self.oracle.attempts.get(task.attempt_id)
            # a revision that is published forgets its attempts at barriers that were given up
            forgotten = attempt is None and task.attempt_id is not None and self.oracle.revisions
            if forgotten or (attempt is not None and self.oracle.trimmed(attempt.barrier_id)):
                allowed += (errors.UnknownBarrierError,)
            assert isinstance(task.error, allowed), f"{task.name}: {type(task.error).__name__}: {task.error}"
            return
        if isinstance(task.result, Waiting):
            attempt, needs = task.result.attempt, task.result.needs
            expected = self.oracle.needs(attempt.barrier_id, attempt.job, attempt.line)
            assert {(n.table, n.barrier_id) for n in needs} == expected
            self.sleeping.append(attempt.attempt_id)
        if isinstance(task.result, Committed):
            assert task.result.barrier.state is BarrierState.COMMIT
        if kind == "open" and not task.paused:
            assert isinstance(task.result, (Opened, Later))

    def _registered(self) -> set[str]:
        """The jobs that the topology has now, or that wait for their history."""
        return {*(job.name for job in FRAGMENT.jobs), *self.members, *self.late}

    def _cancelled(self) -> set[str]:
        self.oracle.check()
        return {str(r.number) for r in self.oracle.revisions.values() if r.state == "CANCELLED"}

    def _write_foreign(self, table: str) -> None:
        self.world.tables.write(table, "main", lambda rows: rows + Counter([f"foreign {next(self.world.numbers)}"]))
        self._touch(table)

    def _delete_foreign(self, table: str) -> None:
        """Some row goes."""
        gone = Counter([min(self.world.tables.rows(self.world.tables.main(table)), key=repr)])
        self.world.tables.write(table, "main", lambda rows: rows - gone, operation="delete")
        self._touch(table)

    def _roll_back(self, table: str) -> None:
        """To undo a foreign write, or one of ours."""
        tables = self.world.tables
        main = tables.main(table)
        parent = None if main is None else snapshots_of(tables.document(table))[main].get("parent-snapshot-id")
        if parent is not None and tables.readable(table, parent):
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
        self.oracle.meddled.add(table)

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
