"""What tasks do: as Airflow's operators call the coordinator, and as a Spark driver works for a job."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.compacting import Compactor, compact, let_go, open_compaction
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.next import JobTask, next_step
from airflow_barrier.coordinator.opening import open_barrier
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import cancel_revision, publish_revision
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, Waiting, begin, begin_again, close, give_up
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.records import Barrier, RunRef, StagedTable
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec
from tests.model.epochs import Epoch, difference
from tests.model.inputs import records_of
from tests.model.tasks import Task, stepping
from tests.model.topology import COMING_AND_GOING, EXTRA, NAME
from tests.model.world import World
from tests.support.memory_tables import Rows
from tests.support.runs import run_of
from tests.support.scheduling import Scheduled

#: How the operations begin with which a driver writes to a table.
WRITES = ("write t.", "rewrite t.")
#: What tasks ask with on their first try.
FIRST = "g0"
_MONDAY = datetime(2025, 12, 1, tzinfo=timezone.utc)


def moment_of(day: int) -> datetime:
    """The timestamp of a day's barrier (UTC)."""
    return _MONDAY + timedelta(days=day)


def day_of(moment: datetime) -> int:
    return (moment - _MONDAY).days


def opening(world: World, day: int) -> Task:
    """The start task of a day's run."""
    moment = moment_of(day)

    def work(task: Task) -> Any:
        return open_barrier(
            world.deployment,
            world.fragment,
            moment,
            timestamp_from="test",
            run=run_of(f"run/{day}"),
            actor=task.name,
            now=moment,
        )

    return _repeated(Task(f"open day {day} #{next(world.numbers)}", work), partial(opening, world, day))


def taking_part(
    world: World, job: str, day: int, generation_at: Callable[[Barrier], str] = lambda barrier: FIRST
) -> Task:
    """A member's task of a day's run: it works off what its job lacks before, and does its part in its own barrier."""
    moment = moment_of(day)
    run = Run(RunRef(EXTRA, f"day-{day}", "scheduled"), moment, "test")
    fragment = Fragment(NAME, EXTRA, tuple(world.job(name) for name in COMING_AND_GOING))

    def work(task: Task) -> Any:
        own = world.meta.barriers.at(NAME, moment)
        asking = JobTask(
            fragment,
            world.job(job),
            request_key=f"{EXTRA}/day-{day}/{job}",
            generation=FIRST if own is None else generation_at(own),
            actor=task.name,
            member=True,
        )
        while True:
            step = next_step(world.deployment, run, asking, Scheduled())
            if not isinstance(step, (Ready, Adopted)):
                return step
            task.found = world.meta.barriers.get(NAME, step.attempt.barrier_id)
            done = _go_on(world, task, step)
            if not step.earlier or done is None:
                return done
            asking = replace(asking, done=(*asking.done, step.attempt.barrier_id))

    task = Task(f"take part {job}@day {day} #{next(world.numbers)}", work)
    return _repeated(task, partial(taking_part, world, job, day, generation_at))


def _repeated(task: Task, again: Callable[[], Task]) -> Task:
    task.again = again
    return task


def committing(world: World, barrier_id: int) -> Task:
    def work(task: Task) -> Any:
        return commit_barrier(world.deployment, NAME, barrier_id, actor=task.name)

    return _repeated(Task(f"commit {barrier_id} #{next(world.numbers)}", work), partial(committing, world, barrier_id))


def aborting(world: World, barrier_id: int) -> Task:
    def work(task: Task) -> Any:
        return abort_barrier(world.deployment, NAME, barrier_id, reason="bad input", actor=task.name)

    return Task(f"abort {barrier_id} #{next(world.numbers)}", work)


def compacting(world: World, barrier: Barrier | None) -> Task:
    """A run of the compaction: at a barrier of its own, or at one that another run has begun."""
    number = next(world.numbers)

    def rewrite(table: str, branch: str) -> str:
        stepping.step(f"rewrite {table}")
        if world.tables.document(table)["last-sequence-number"] % 2:
            world.tables.write(table, branch, lambda rows: rows, operation="replace")
        return "files"

    def work(task: Task) -> Any:
        compactor = Compactor(run_of(f"upkeep/{number}"), f"upkeep/{number}", "g0", task.name)
        here = barrier or open_compaction(world.deployment, NAME, None, compactor)
        if not isinstance(here, Barrier):
            return here
        try:
            return compact(world.deployment, here, rewrite, compactor)
        except BarrierError as error:
            let_go(world.deployment, here, type(error).__name__, compactor)
            raise

    return _repeated(Task(f"compaction #{number}", work), partial(compacting, world, barrier))


def expiring(world: World, keep: int) -> Task:
    """An expiry; Spark takes snapshots out."""

    def take_out(table: str, snapshot_ids: Sequence[int]) -> str:
        stepping.step(f"take out of {table}")
        return world.tables.take_out(table, snapshot_ids)

    def work(task: Task) -> Any:
        return expire(world.deployment, NAME, Retention(keep), take_out, actor=task.name)

    return Task(f"expire {keep} #{next(world.numbers)}", work)


def processing(world: World, barrier: Barrier, job: str, generation: str) -> Task:
    """One try of a job's task. A retry has the same ``generation``, a clear another one."""

    def work(task: Task) -> Any:
        step = begin(
            world.deployment, barrier, job, Asking(request_key=task.name, generation=generation, actor=task.name)
        )
        return _go_on(world, task, step)

    where = f"{barrier.barrier_id}r{barrier.line}" if barrier.line else barrier.barrier_id
    return Task(f"{job}@{where} {generation} #{next(world.numbers)}", work)


def leading(world: World, barrier: Barrier, job: str, generation: str, limit: int) -> Task:
    """A job's task that goes on past its own barrier, in the same Spark job."""

    def work(task: Task) -> Any:
        step = begin(
            world.deployment, barrier, job, Asking(request_key=task.name, generation=generation, actor=task.name)
        )
        if not isinstance(step, Ready):
            return _go_on(world, task, step)
        task.attempt_id = step.attempt.attempt_id
        batch = Batch(world.deployment, Asking(task.name, FIRST, task.name), step, limit)
        try:
            _run_batch(world, task, batch)
        except BarrierError as error:
            if batch.under_way is not None:
                give_up(world.deployment, task.attempt_id, reason=type(error).__name__, actor=task.name)
            raise
        return batch

    return Task(f"lead {job}@{barrier.barrier_id} {generation} #{next(world.numbers)}", work)


def _run_batch(world: World, task: Task, batch: Batch) -> None:
    while batch.under_way is not None:
        task.attempt_id = batch.under_way.attempt.attempt_id
        with contextlib.suppress(FileNotFoundError):  # as in `_go_on`
            drive(world, batch.under_way, lies=False)
        batch.close()
        batch.following()


def revising(world: World, wanted: Wanted) -> Task:
    """A person plans a revision and begins it."""

    def work(task: Task) -> Any:
        plan = plan_revision(world.deployment, wanted)
        return begin_revision(world.deployment, plan, reason="corrected", actor=task.name)

    task = Task(f"revise {wanted.first} #{next(world.numbers)}", work)
    task.jobs = tuple(wanted.changed)
    return task


def publishing(world: World, number: int) -> Task:
    def work(task: Task) -> Any:
        return publish_revision(world.deployment, NAME, number, actor=task.name)

    return Task(f"publish r{number} #{next(world.numbers)}", work)


def cancelling(world: World, number: int) -> Task:
    def work(task: Task) -> Any:
        return cancel_revision(world.deployment, NAME, number, reason="another way was found", actor=task.name)

    return Task(f"cancel r{number} #{next(world.numbers)}", work)


def resuming(world: World, attempt_id: int) -> Task:
    """The task of an attempt that was waiting goes on."""

    def work(task: Task) -> Any:
        task.attempt_id = attempt_id
        return _go_on(world, task, begin_again(world.deployment, attempt_id, Asking(task.name, FIRST, task.name)))

    return _repeated(Task(f"resume a{attempt_id} #{next(world.numbers)}", work), partial(resuming, world, attempt_id))


def _go_on(world: World, task: Task, step: Ready | Adopted | Waiting) -> Any:
    if isinstance(step, Waiting):
        task.again = partial(resuming, world, step.attempt.attempt_id)
    if not isinstance(step, Ready):
        return step
    task.attempt_id = step.attempt.attempt_id
    with contextlib.suppress(FileNotFoundError):  # its barrier is over, and its spec went: the driver dies over that
        drive(world, step, lies=task.lies)
    if task.orphan:
        return None
    return close(world.deployment, step.attempt, actor=task.name)


# --- the driver -----------------------------------------------------------------------------------


def drive(world: World, ready: Ready, *, lies: bool) -> None:
    """A Spark driver: knows its spec, writes each outlet on the attempt's branch, says last what it wrote.

    One that lies calls a table unchanged that it wrote, or names another snapshot.
    """
    tables = world.tables
    spec = EpochSpec.loads(tables.read_text(ready.spec_uri), ready.digest)
    world.read[spec.attempt_id] = {name: cut.end["edition"] for name, cut in spec.cuts.items()}
    for inlet, snapshot_id in spec.inputs.items():
        _check_there(world, ready.attempt.line, inlet, spec.previous[inlet], snapshot_id)
    staged: dict[str, StagedTable] = {}
    for table in sorted(spec.bases):
        epoch = epoch_of(world, spec, ready.attempt.generation)
        if not epoch and spec.attempt_id % 2:
            staged[table] = StagedTable(table, None, unchanged=True)
            continue
        staged[table] = StagedTable(table, _write(world, table, spec, epoch))
        if lies:
            base, odd = spec.bases[table], spec.attempt_id % 2 == 1
            staged[table] = (
                StagedTable(table, None, unchanged=True) if odd or base is None else StagedTable(table, base)
            )
    tables.write_text(spec.closing_uri, ClosingRecord(spec.attempt_id, staged).dumps(spec.nonce))


def epoch_of(world: World, spec: EpochSpec, generation: str) -> Epoch:
    """What the job does: what came into its inlets, and went, marked with who made it of what.

    The generation stands for the code, which may have been corrected before a clear.
    """
    texts: list[str] = []
    weights: Rows = Counter()
    for name, cut in spec.cuts.items():
        texts += records_of(spec.externals[name].kind, cut)
    for inlet, snapshot_id in spec.inputs.items():
        delta = difference(world.tables.rows(snapshot_id), world.tables.rows(spec.previous[inlet]))
        weights.update({(row, inlet): times for row, times in delta.items()})
    return Epoch(f"{spec.job} {generation}", tuple(texts), weights)


def _write(world: World, table: str, spec: EpochSpec, epoch: Epoch) -> int:
    """As an INSERT, a DELETE or a MERGE; or what goes and what comes by a statement each.

    Spark puts no stamp on a DELETE that drops whole files, which this one does or does not.
    """
    stamp, before = spec.stamp.properties(), world.tables.rows(spec.bases[table])
    after = epoch.onto(before)
    gone, came = before - after, after - before
    write = partial(world.tables.write, table, spec.branch)
    stepping.step(f"write {table}")
    if not gone:
        return write(lambda rows: rows + came, properties=stamp)
    if came and spec.attempt_id % 2:
        return write(lambda rows: rows - gone + came, operation="overwrite", properties=stamp)
    snapshot_id = write(lambda rows: rows - gone, operation="delete", properties=stamp if spec.attempt_id % 3 else None)
    if came:
        stepping.step(f"write {table}")
        snapshot_id = write(lambda rows: rows + came, properties=stamp)
    return snapshot_id


def _check_there(world: World, line: int, inlet: str, previous: int | None, snapshot_id: int | None) -> None:
    """What came into an inlet is read from the steps between two snapshots.

    For a revision that was given up nothing is kept: its drivers die over that.
    """
    steps = world.tables.steps(inlet, snapshot_id)
    if line and (not steps or previous not in (None, *steps)):
        under_way = world.meta.revisions.under_way(NAME)
        if under_way is None or under_way.revision != line:
            raise FileNotFoundError(f"{inlet}: snapshot {snapshot_id} is gone with revision {line}")
    assert snapshot_id is None or steps, f"{inlet}: snapshot {snapshot_id} is gone"
    assert previous is None or previous in steps, f"{inlet}: of the steps from {previous} on only {steps} are there"


Change = Callable[[Rows], Rows]
