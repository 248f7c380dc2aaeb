"""What a task does next. One place decides it, whoever asks: an operator, a command, the model, a test.

    next_step      a job's task          Ready | Adopted | Wait | Nothing | Skip
    next_opening   the start task        Opened | Wait | Skip
    next_check     a check's task        Checkable | Wait | Nothing
    next_commit    the commit task       Committed | Published | Wait | Nothing | Skip
    next_delivery  a delivery's task     Due | Wait | Nothing | Skip

What is refused is raised. Nobody who waits is remembered: a task that is told to go on asks again from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import Committed, NotYet, check_not_aborted, commit_found, in_flight
from airflow_barrier.coordinator.cuts import keep_up
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import StaysOut, take_part, takes_part, waits_for_history
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.coordinator.revisions.bootstrap import says_that_it_waits
from airflow_barrier.coordinator.revisions.checks import cannot_correct
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.revisions.runs import (
    attach,
    barrier_of_run,
    close_gate_if_near,
    newest_revision_of_run,
    next_unstaged,
    revision_of_run,
    runs_at,
    stays_out_until_published,
    wake_runs,
    wake_those_left_out,
)
from airflow_barrier.coordinator.runs import Run, Scheduler
from airflow_barrier.coordinator.staging import (
    Adopted,
    Asking,
    Ready,
    Waiting,
    begin_after,
    find_barrier,
    give_up,
    take_over,
)
from airflow_barrier.coordinator.waiting import (
    AttemptEnd,
    Condition,
    CutMade,
    Delivered,
    DelivererEnd,
    RevisionEnd,
    Room,
    Unseen,
    Wait,
    barriers_before,
    lacks,
)
from airflow_barrier.protocol.deliveries import Position, SinkDeclaration, SinkRecord, SinkState
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    AttemptTakenError,
    FencedAttemptError,
    NotProcessedError,
    RevisionEndedError,
    SinkTakenError,
    TriggeredRunError,
    UnknownBarrierError,
    UnknownTopologyError,
    VoidedAttemptError,
)
from airflow_barrier.protocol.records import Attempt, Barrier, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import (
    DECIDED_BARRIERS,
    STAGING_BARRIERS,
    UNDER_WAY_ATTEMPTS,
    BarrierState,
    TableState,
)
from airflow_barrier.protocol.topology import Fragment, Job

log = logging.getLogger(__name__)

#: Seconds after which a task looks again for what nobody tells it: a source, the task of another run, a run's end.
_LOOK_AGAIN = 60.0
#: Seconds after which sources that keep up with their systems do so again, while no barrier may open.
_KEEP_UP = 300.0
_LOOK_FOR_RUNS = 10.0
#: How long an opening that cannot be done yet waits before it asks the sources again.
SOURCE_INTERVAL = timedelta(seconds=60)


@dataclass(frozen=True)
class Nothing:
    """The task ends well, and has done nothing for ``barrier``, its run's (None: that has none), so that it emits no
    asset event for it. ``level``: of the line in its log.
    """

    reason: str
    barrier: Barrier | None = None
    level: int = logging.INFO

    @property
    def barrier_id(self) -> int:
        return self.barrier.barrier_id if self.barrier is not None else 0


@dataclass(frozen=True)
class Skip:
    """The task is skipped, and gives its slot back."""

    reason: str


@dataclass(frozen=True)
class Published:
    """``revision`` is COMMIT, and with it ``barriers``, which it computed; ``barrier`` is the run's."""

    barrier: Barrier
    revision: Revision
    barriers: tuple[Barrier, ...]


@dataclass(frozen=True)
class Checkable:
    """All of ``barrier`` is staged, and the checks of those before it have passed."""

    barrier: Barrier


@dataclass(frozen=True)
class Due:
    """A delivery that is due: what ``sink`` lacks up to and including barrier ``through``, which is COMMIT."""

    sink: SinkRecord
    through: Barrier


Step = Ready | Adopted | Wait | Nothing | Skip

#: Who is told which barrier a task works for, as soon as that is known: also where the step then fails.
Known = Callable[[Barrier], None]


def _nobody(_: Barrier) -> None:
    pass


@dataclass(frozen=True)
class JobTask:
    """A task that is a job, as it asks for its next step.

    ``request_key`` names the task in its run. ``generation`` is equal in all of its tries, and another one after a
    person cleared it. ``member``: another DAG opens the barriers. ``sql``, ``by_branch``, ``code``, ``server``, ``end``
    and ``profile`` are as in :class:`~airflow_barrier.coordinator.staging.Asking`. ``templated``: fields that Airflow
    rendered for this run, and that are right for no other barrier. ``done``: barriers before the run's own that this
    task has worked off. ``known`` is told the barrier that the next step is for, before anything is done for it.
    """

    fragment: Fragment
    job: Job
    request_key: str
    generation: str
    actor: str
    member: bool = False
    sql: str | None = None
    by_branch: bool = False
    code: Mapping[str, str] = field(default_factory=dict)
    server: str | None = None
    end: Callable[[str], None] | None = None
    profile: str = "auto"
    templated: tuple[str, ...] = ()
    done: tuple[int, ...] = ()
    known: Known = _nobody

    @property
    def topology(self) -> str:
        return self.fragment.topology


# --- a job ----------------------------------------------------------------------------------------


def next_step(deployment: Deployment, run: Run, task: JobTask, scheduler: Scheduler) -> Step:
    """Return the next step of a job's task for the barrier of its run.

    A member's task first works off the open barriers before it that lack its job, the oldest first: their runs were
    missed, or are none of its DAG's. Such a step says that it is ``earlier``: ask again once it is done.

    Raises NotProcessedError if what the job reads will not come, TriggeredRunError for a run that a person triggered
    and that has nothing to do, and what :func:`~airflow_barrier.coordinator.staging.begin` and
    :func:`~airflow_barrier.coordinator.joining.take_part` raise.
    """
    if not task.member:
        with deployment.meta.look():
            barrier = attach(deployment, task.topology, run, scheduler) or find_barrier(
                deployment, task.topology, run=run.ref, timestamp=run.timestamp
            )
            found = _look_at(deployment, barrier, task, scheduler)
        return _step_at(deployment, barrier, run, task, scheduler, found)
    own = attach(deployment, task.topology, run, scheduler) or take_part(
        deployment, task.fragment, task.job, run.at, task.actor
    )
    earlier = _earlier_step(deployment, run, task, scheduler, own)
    if earlier is not None:
        return earlier
    if isinstance(own, Later):
        return _until_it_opens(deployment, run, task, scheduler, own)
    if isinstance(own, StaysOut):
        return _without_barrier(run, task, own.reason)
    with deployment.meta.look():
        found = _look_at(deployment, own, task, scheduler)
    return _step_at(deployment, own, run, task, scheduler, found)


def _until_it_opens(
    deployment: Deployment, run: Run, task: JobTask, scheduler: Scheduler, later: Later
) -> Wait | Nothing | Skip:
    if later.gatekeeper is not None:
        reason = stays_out_until_published(deployment, later.gatekeeper, run)
        if reason is not None:
            return Skip(reason)
    if task.done and run.ref.kind == "manual":  # a person wanted what was missing to be done, and no barrier
        return _without_barrier(run, task, later.reason)
    # of what is templated nothing can be done for an earlier barrier: waking up for one would be in vain
    lacking = None if task.templated else (task.job.name, run.ref.dag_id)
    if run.barrier_id is not None:
        opened = Condition(None, barrier_id=run.barrier_id)
    else:
        opened = Condition(None, timestamp=run.timestamp, or_lacking=lacking, lacking_after=scheduler.at_work_until())
    return Wait((opened,), later.reason)


def _without_barrier(run: Run, task: JobTask, reason: str) -> Nothing | Skip:
    if task.done:
        return Nothing(f"did job {task.job.name} at barriers {', '.join(map(str, task.done))}; {reason}")
    if run.ref.kind == "manual":  # whoever asked for it is to see that nothing was done
        raise TriggeredRunError(  # safety: triggered-run-of-nothing
            f"{reason}; trigger the DAG with the logical date of a barrier, or let its schedule run it"
        )
    return Skip(reason)


# --- barriers before the run's own ----------------------------------------------------------------


def _earlier_step(
    deployment: Deployment, run: Run, task: JobTask, scheduler: Scheduler, own: Barrier | Later | StaysOut
) -> Step | None:
    for barrier in _lacking(deployment, run, task, scheduler, own):
        if task.templated:  # safety: rendered-for-its-run
            log.warning(
                "%s lacks job %s, and this run cannot do it: Airflow has rendered %s for this run alone. Backfill that "
                "day of DAG %s, or take what differs from the epoch ({timestamp} in SQL, epoch.timestamp)",
                barrier,
                task.job.name,
                ", ".join(task.templated),
                run.ref.dag_id,
            )
            return None
        task.known(barrier)
        log.info("First %s, which lacks job %s and has no run of this DAG at work", barrier, task.job.name)
        step = take_over(deployment, barrier, task.job.name, _asking(run, task))
        if step is not None:
            answer = _answer(deployment, barrier, run, task, step)
            return answer if isinstance(answer, Wait) else replace(answer, earlier=True)
    return None


def _lacking(
    deployment: Deployment, run: Run, task: JobTask, scheduler: Scheduler, own: Barrier | Later | StaysOut
) -> Iterator[Barrier]:
    """The open barriers before the run's own that lack its job and that no other run is at, the oldest first."""
    for barrier in _before(deployment, run, task, scheduler, own):
        if lacks(deployment.meta, barrier, task.job.name, run.ref.dag_id, asking=task.request_key):
            yield barrier


def _before(
    deployment: Deployment, run: Run, task: JobTask, scheduler: Scheduler, own: Barrier | Later | StaysOut
) -> list[Barrier]:
    """The open barriers before the run's own, without those that another run of its DAG is responsible for."""
    meta = deployment.meta
    if isinstance(own, Barrier) and own.line:
        revision = meta.revisions.get(own.topology, own.line)
        return [
            barrier
            for barrier in meta.revisions.barriers(own.topology, own.line)
            if barrier.barrier_id < own.barrier_id
            and barrier.state is BarrierState.OPEN
            # what this run worked off when they were computed first it works off again
            and runs_at(deployment, revision, meta.barriers.get(own.topology, barrier.barrier_id)).of.get(
                run.ref.dag_id
            )
            == run.ref.run_id
        ]
    if isinstance(own, Barrier):
        end = Condition(None, barrier_id=own.barrier_id)
    elif run.barrier_id is not None:
        end = Condition(None, barrier_id=run.barrier_id)
    else:
        end = Condition(None, timestamp=run.timestamp)
    before = barriers_before(meta.barriers.uncommitted(task.topology), end)
    after = scheduler.at_work_until() if before else None
    return [barrier for barrier in before if after is None or barrier.timestamp > after]


# --- one barrier ----------------------------------------------------------------------------------


def _look_at(
    deployment: Deployment, barrier: Barrier, task: JobTask, scheduler: Scheduler
) -> Nothing | Wait | Attempt | None:
    """Return why a task does nothing at a barrier now; else the newest attempt of its job there, or None."""
    newest = deployment.meta.attempts.current(barrier.topology, barrier.barrier_id, task.job.name, barrier.line)
    return _why_no_part(deployment, barrier, task) or _while_led(newest, task, scheduler) or newest


def _step_at(
    deployment: Deployment,
    barrier: Barrier,
    run: Run,
    task: JobTask,
    scheduler: Scheduler,
    found: Nothing | Wait | Attempt | None,
) -> Step:
    """``found``: as :func:`_look_at` returned it."""
    task.known(barrier)
    if isinstance(found, (Nothing, Wait)):
        return found
    asking = _asking(run, task)
    try:
        return _answer(deployment, barrier, run, task, begin_after(deployment, barrier, task.job.name, asking, found))
    except AlreadyCommittedError as error:
        alone = task.member and run.ref.kind == "backfill"  # to whoever asked for it that is no success
        level = logging.WARNING if alone else logging.INFO
        return Nothing(f"{error}: {nothing_to_do(run, barrier, member=task.member)}", barrier, level)
    except RevisionEndedError as error:
        return Nothing(str(error), barrier)
    except (AttemptTakenError, FencedAttemptError, VoidedAttemptError):
        # a task of another run began it since we looked, or what that task's attempt stood on was staged anew
        newest = deployment.meta.attempts.current(barrier.topology, barrier.barrier_id, task.job.name, barrier.line)
        if newest is None or newest.request_key == task.request_key:
            raise
        led = _while_led(newest, task, scheduler)
        if led is not None:
            return led
        return _answer(deployment, barrier, run, task, begin_after(deployment, barrier, task.job.name, asking, newest))


def _asking(run: Run, task: JobTask) -> Asking:
    return Asking(
        task.request_key,
        task.generation,
        task.actor,
        run.ref.dag_id,
        task.sql,
        task.by_branch,
        task.code,
        task.server,
        task.end,
        task.profile,
    )


def _why_no_part(deployment: Deployment, barrier: Barrier, task: JobTask) -> Nothing | None:
    """Return the reason why the job has nothing to do at a barrier; None: it has."""
    job = task.job
    if not takes_part(deployment, barrier, job.name):
        if waits_for_history(deployment, barrier.topology, job.name):
            return Nothing(says_that_it_waits(barrier.topology, job.name), barrier, logging.WARNING)
        gone = deployment.meta.topologies.withdrawal(barrier.topology, job.owner, job.name)
        if gone is not None:
            which = f"--dag {job.owner}" + (f" --job {gone.job}" if gone.job else "")
            reason = (
                f"{gone}: nothing to run for {barrier}. Take the job out of the DAG's group, or let it take part "
                f"again: airflow-barrier topology join {barrier.topology} {which}"
            )
            return Nothing(reason, barrier, logging.WARNING)
    if barrier.line and job.name not in deployment.meta.revisions.get(barrier.topology, barrier.line).jobs:
        kept = f"{barrier} does not change what job {job.name} made of it: {', '.join(job.outlets)} stay as they are"
        return Nothing(kept, barrier)
    return None


def led_by(attempt: Attempt | None, request_key: str, generation: str) -> str | None:
    """Return the task that already does the work of an attempt which ``request_key`` would begin; None: no other does.

    After a clear the task asks with another ``generation``, and stages anew whoever is at it.
    """
    if attempt is None or attempt.state not in UNDER_WAY_ATTEMPTS:
        return None
    if attempt.request_key == request_key or attempt.generation != generation:
        return None
    return attempt.request_key


def _while_led(attempt: Attempt | None, task: JobTask, scheduler: Scheduler) -> Wait | None:
    """Return a wait while the same task of another run does the work of ``attempt``; None: it does not."""
    leader = led_by(attempt, task.request_key, task.generation)
    if attempt is None or leader is None:
        return None
    if not scheduler.is_running(leader):
        log.info("%s was led by %s, which does not run any more", attempt, leader)
        return None
    # whether the other task is alive only the scheduler knows, and only a task can ask it
    ended = AttemptEnd(attempt.attempt_id, f"{attempt}, which {leader} leads")
    return Wait((ended,), f"{attempt} is led by {leader}", look_again=_LOOK_AGAIN)


def _answer(
    deployment: Deployment, barrier: Barrier, run: Run, task: JobTask, step: Ready | Adopted | Waiting
) -> Ready | Adopted | Wait:
    if not isinstance(step, Waiting):
        return step
    waiting = (step.attempt.attempt_id,)
    if step.away is not None:
        # nobody is told when a source can be cut, unless another job has done it; the triggerer may not open it
        ended = AttemptEnd(step.attempt.attempt_id, f"a source ({step.away.why})")
        made = CutMade(step.away.source, barrier.barrier_id)
        return Wait((ended, made), step.away.why, any_of=True, attempt_ids=waiting, look_again=_LOOK_AGAIN)
    topology = deployment.meta.topologies.get(barrier.topology, barrier.topology_version)
    dead = [
        need
        for need in step.needs
        # tasks of one DAG follow each other by edges: this table's has ended, and nothing more will come
        if (need.barrier_id, need.line) == (barrier.barrier_id, barrier.line)
        and topology.job(need.job).owner == run.ref.dag_id
    ]
    if dead:
        give_up(deployment, step.attempt.attempt_id, reason="its input was never staged", actor=task.actor)
        raise NotProcessedError(  # safety: input-never-comes
            f"{step.attempt} cannot run: not PROCESSED although the task before it has ended: "
            f"{', '.join(map(str, dead))}. Marking a task success stages nothing: clear it and what follows it"
        )
    conditions = tuple(
        Condition("PROCESSED", barrier_id=need.barrier_id, tables=(need.table,), line=need.line) for need in step.needs
    )
    return Wait(conditions, f"{step.attempt} waits for {step.reason}", attempt_ids=waiting)


def nothing_to_do(run: Run, barrier: Barrier, *, member: bool = False) -> str:
    """Return the message of a committed barrier's tasks if cleared, or run by a backfill that no revision answers."""
    again = "a backfill of a member's DAG alone" if member and run.ref.kind == "backfill" else "clearing"
    return (
        f"its tables are published, and {again} changes nothing about them. To correct them, and all that was computed "
        f"from them, backfill that day of DAG {barrier.run.dag_id}, or plan a revision: airflow-barrier revision plan "
        f"{barrier.topology} --from {barrier.barrier_id}; it says what would be done, and by which command"
    )


# --- opening --------------------------------------------------------------------------------------


def next_opening(
    deployment: Deployment, run: Run, fragment: Fragment, scheduler: Scheduler, *, actor: str, triggered: bool
) -> Opened | Wait | Skip:
    """Return the start task's next step: open the barrier of its run with ``fragment``'s jobs, observe it, or wait.

    ``triggered`` and what is raised: see :func:`~airflow_barrier.coordinator.opening.open_barrier`.
    """
    revised = attach(deployment, fragment.topology, run, scheduler)
    if revised is not None:
        return Opened(revised, created=False)
    outcome = open_barrier(
        deployment,
        fragment,
        run.timestamp,
        timestamp_from=run.timestamp_from,
        run=run.ref,
        actor=actor,
        triggered=triggered,
    )
    if isinstance(outcome, Opened):
        return outcome
    if outcome.gatekeeper is not None:
        reason = stays_out_until_published(deployment, outcome.gatekeeper, run)
        if reason is not None:
            return Skip(reason)
    full = len(deployment.meta.barriers.uncommitted(fragment.topology)) >= deployment.max_open_barriers
    return Wait(
        (Room(deployment.max_open_barriers),),
        f"the barrier at {run.timestamp.isoformat()} cannot open yet: {outcome.reason}",
        not_before=None if full else datetime.now(timezone.utc) + SOURCE_INTERVAL,
        look_again=_KEEP_UP if full and keep_up(deployment, fragment.topology) else None,
    )


# --- checking -------------------------------------------------------------------------------------


def next_check(
    deployment: Deployment, run: Run, topology: str, scheduler: Scheduler, *, known: Known = _nobody
) -> Checkable | Wait | Nothing:
    """Return a check's next step: look at what the barrier of its run has staged, as the run's revision computes it if
    it is one's. ``known`` is told the barrier first.

    It waits for tables of other DAGs. And it waits until the barriers before have passed the same check, since a commit
    publishes all barriers before its own. Airflow's ``depends_on_past`` would do that as well, but for ever where a
    barrier that failed its check was aborted.

    Raises BarrierAbortedError, UnknownBarrierError and, if a table of the run's own DAG is missing although its task
    has ended, NotProcessedError.
    """
    meta, revision = deployment.meta, revision_of_run(deployment, topology, run)
    if revision is None:
        barrier = find_barrier(deployment, topology, run=run.ref, timestamp=run.timestamp)
    else:
        number = barrier_of_run(deployment, revision, run.at, run.ref.dag_id).barrier_id
        barrier = meta.barriers.get(topology, number, revision.revision)
    known(barrier)
    check_not_aborted(barrier)
    if barrier.state in DECIDED_BARRIERS:
        return Nothing(f"{barrier} is {barrier.state.value}: there is nothing to hold up any more", barrier)
    if barrier.state is BarrierState.OPEN:
        return _until_staged(deployment, barrier, run)
    unchecked = _unchecked_before(deployment, barrier, run, scheduler)
    if unchecked:  # safety: checked-in-order
        conditions = tuple(Condition("COMMIT", barrier_id=each.barrier_id, line=each.line) for each in unchecked)
        reason = f"{barrier} waits for the same check of {', '.join(map(str, unchecked))}"
        # as a rule the commit follows such a check at once; that the check alone has passed nobody is told
        return Wait(conditions, reason, look_again=_LOOK_AGAIN)
    return Checkable(barrier)


def _unchecked_before(deployment: Deployment, barrier: Barrier, run: Run, scheduler: Scheduler) -> list[Barrier]:
    """The barriers that a commit of ``barrier`` would publish along, and that have not passed the asking check."""
    meta, topology = deployment.meta, barrier.topology
    if barrier.line:
        there = meta.revisions.barriers(topology, barrier.line)
        bound = meta.revisions.runs(topology, barrier.line)
        runs = {each.barrier_id: each.run_id for each in bound if each.dag_id == run.ref.dag_id}
    else:
        there = [each for each in meta.barriers.uncommitted(topology) if not each.is_maintenance]
        runs = {each.barrier_id: each.run.run_id for each in there}
    return [
        each
        for each in there
        if each.barrier_id < barrier.barrier_id
        and each.state in STAGING_BARRIERS
        and not (each.barrier_id in runs and scheduler.has_passed(runs[each.barrier_id]))
    ]


# --- committing -----------------------------------------------------------------------------------


def next_commit(
    deployment: Deployment,
    run: Run,
    topology: str,
    scheduler: Scheduler,
    *,
    actor: str,
    known: Known = _nobody,
    skipped: Sequence[str] = (),
    gives_up: bool = False,
) -> Committed | Published | Wait | Nothing | Skip:
    """Return the commit task's next step: commit the barrier of its run and those before it or, in a revision's run,
    publish the revision once all of it is staged. ``known`` is told the barrier first. ``skipped``: tasks before this
    one that Airflow has skipped; ``gives_up``: then the barrier is aborted.

    Raises NotProcessedError if something was skipped that is not to be given up, or if a table of the run's own DAG is
    missing although its task has ended, and what :func:`~airflow_barrier.coordinator.committing.commit_barrier` raises.
    """
    with deployment.meta.look():
        newest = newest_revision_of_run(deployment, topology, run)
        computed = revision_of_run(deployment, topology, run) or in_flight(
            deployment, find_barrier(deployment, topology, run=run.ref, timestamp=run.timestamp)
        )
    if isinstance(computed, Revision):
        return _next_publish(deployment, run, computed, scheduler, actor, known, skipped)
    barrier = computed.barrier
    known(barrier)
    if skipped and gives_up and barrier.state in STAGING_BARRIERS:
        reason = f"skipped in {run.ref}: {', '.join(skipped)}"
        abort_barrier(deployment, topology, barrier.barrier_id, reason=reason, actor=actor)
        return Skip(f"{barrier} is given up, {reason}; its epoch joins the next barrier's")
    _refuse_skipped(barrier, skipped)
    outcome = commit_found(deployment, computed, actor=actor)
    if isinstance(outcome, NotYet):
        if outcome.barrier.barrier_id == barrier.barrier_id:  # an earlier run's jobs may still deliver
            _refuse_unprocessed(deployment, barrier, outcome.missing, run)
        before = [b for b in deployment.meta.barriers.uncommitted(topology) if b.barrier_id <= barrier.barrier_id]
        conditions = tuple(Condition("PRECOMMIT", barrier_id=earlier.barrier_id) for earlier in before)
        return Wait(conditions, f"{barrier} waits: {outcome.reason}")
    if newest is not None:
        newest = deployment.meta.revisions.get(topology, newest.revision)  # the commit may have published it
        if newest.state is RevisionState.COMMIT:
            wake_those_left_out(deployment, newest, scheduler)  # if this task died when it had published
    return outcome


def _next_publish(
    deployment: Deployment,
    run: Run,
    revision: Revision,
    scheduler: Scheduler,
    actor: str,
    known: Known,
    skipped: Sequence[str],
) -> Published | Wait | Nothing:
    """Publish the revision if this was the last barrier that it lacked, or let the next one's runs begin."""
    meta, topology = deployment.meta, revision.topology
    number = barrier_of_run(deployment, revision, run.at, run.ref.dag_id).barrier_id
    barrier = meta.barriers.get(topology, number, revision.revision)
    known(barrier)
    _refuse_skipped(barrier, skipped)
    if barrier.state is BarrierState.OPEN:
        return _until_staged(deployment, barrier, run)
    outcome = publish_revision(deployment, topology, revision.revision, actor=actor)
    if isinstance(outcome, Swapped):
        wake_those_left_out(deployment, outcome.revision, scheduler)
        return Published(barrier, outcome.revision, outcome.barriers)
    revision = close_gate_if_near(deployment, revision, actor)
    following = next_unstaged(deployment, revision, number)
    if number >= revision.window_end and following is not None:
        busy = wake_runs(deployment, revision, following, run.ref, scheduler).busy
        if busy:
            ended = Unseen(f"{', '.join(busy)} to end, to have it run again for {revision}")
            return Wait((ended,), f"{revision} waits for {ended.words}", look_again=_LOOK_FOR_RUNS)
    return Nothing(outcome.reason, barrier)


def _until_staged(deployment: Deployment, barrier: Barrier, run: Run) -> Wait:
    """Wait for tables of other DAGs. Raises NotProcessedError if a table of the run's own DAG is missing."""
    meta, number, line = deployment.meta, barrier.barrier_id, barrier.line
    rows = (
        meta.revisions.progress(barrier.topology, line, number)
        if line
        else meta.barriers.progress(barrier.topology, number)
    )
    pending = [row for row in rows if row.state is TableState.PENDING]
    _refuse_unprocessed(deployment, barrier, pending, run)
    missing = ", ".join(f"{row.table} (job {row.job})" for row in pending)
    return Wait((Condition("PRECOMMIT", barrier_id=number, line=line),), f"{barrier} waits for {missing}")


def _refuse_skipped(barrier: Barrier, skipped: Sequence[str]) -> None:
    if skipped and barrier.state in STAGING_BARRIERS:
        give_up = (
            ". Or give the barrier up, whose epoch joins the next one's: airflow-barrier barrier abort "
            f"{barrier.topology} {barrier.barrier_id}"
        )
        raise NotProcessedError(  # safety: skipped-is-not-published
            f"{barrier}: expected every task before the commit to have run, found skipped: {', '.join(skipped)}. Clear "
            "what skipped them and what follows it, once it lets them run; a job that has nothing to do on a day runs, "
            f"and says epoch.unchanged(...) of its tables{'' if barrier.line else give_up}"
        )


def _refuse_unprocessed(
    deployment: Deployment, barrier: Barrier, missing: list[TableProgress] | tuple[TableProgress, ...], run: Run
) -> None:
    topology = deployment.meta.topologies.get(barrier.topology, barrier.topology_version)
    own = [row for row in missing if topology.writer(row.table).owner == run.ref.dag_id]
    if own:
        raise NotProcessedError(  # safety: commit-has-its-own-tables
            f"{barrier} is not complete: not PROCESSED although the tasks before this one have ended: "
            f"{', '.join(f'{row.table} (job {row.job})' for row in own)}. Marking a task success stages nothing, and "
            "clearing a task voids what was built on it: clear these jobs' tasks and what follows them"
        )


# --- delivering -----------------------------------------------------------------------------------


def next_delivery(
    deployment: Deployment,
    run: Run,
    topology: str,
    declaration: SinkDeclaration,
    scheduler: Scheduler,
    *,
    request_key: str,
    actor: str,
    known: Known = _nobody,
) -> Due | Wait | Nothing | Skip:
    """Return a delivery task's next step: deliver what the sink lacks up to the barrier of its run, once that is
    COMMIT.

    A run that has no barrier, since a person triggered it, an event without a partition did, or its barrier was
    aborted, delivers up to the newest one that is COMMIT and not after it. ``known`` is told that barrier once it is
    there. ``request_key``: the task, ``#`` and its try, since a try that slept must not deliver beside its own retry.

    Raises SinkClaimedError and UnknownTableError.
    """
    meta = deployment.meta
    revision = revision_of_run(deployment, topology, run) if topology in meta.topologies.names() else None
    if revision is not None:
        return Nothing(
            f"this run computes for {revision}, which is {revision.state.value}: what it corrects is delivered to sink "
            f"{declaration.name} by the first delivery after it is published"
        )
    through = _through(deployment, run, topology)
    if isinstance(through, Nothing):
        return through
    if through is None:
        condition = Condition("COMMIT", barrier_id=run.barrier_id, timestamp=None if run.barrier_id else run.timestamp)
        reason = f"sink {declaration.name} waits for the barrier of {run.at} to be COMMIT"
        return Wait((condition,), reason, unopened=True)
    known(through)
    if through.state is not BarrierState.COMMIT:
        condition = Condition("COMMIT", barrier_id=through.barrier_id)
        return Wait((condition,), f"sink {declaration.name} waits for {through} to be COMMIT")
    sink = meta.deliveries.register(topology, declaration, actor)
    if sink.state is SinkState.PAUSED:
        resume = f"airflow-barrier sink resume {topology} {sink.name} --reason ..."
        return Skip(f"{sink} is paused; {resume} lets deliveries go on")
    revision = meta.revisions.under_way(topology)
    if revision is not None and through.barrier_id >= revision.first_barrier and cannot_correct(sink, revision.tables):
        # else it would receive what the revision is to correct, and keep it
        reason = f"waits for {revision} to be published or cancelled, since {sink} cannot take corrections"
        return Wait((RevisionEnd(revision.revision),), f"sink {sink.name} {reason}")
    there = sink.position is not None and sink.position >= Position(through.barrier_id, through.computed_in)
    if there and sink.remedy is None:
        return Nothing(f"{through} was delivered to {sink} already, which is at {sink.position}", through)
    return _take_turn(deployment, sink, through, scheduler, request_key)


def _take_turn(
    deployment: Deployment, sink: SinkRecord, through: Barrier, scheduler: Scheduler, request_key: str
) -> Due | Wait:
    """One task delivers to a sink at a time. Of those that are woken by its end one comes first, the others wait on."""
    deliveries, own = deployment.meta.deliveries, _task_of(request_key)
    while True:
        other = sink.deliverer
        if other is not None and _task_of(other) != own and scheduler.is_running(_task_of(other)):
            # one that is killed ends nothing: whether it is alive only the scheduler knows, and only a task can ask it
            ends = (Delivered(sink.name, barrier_id=through.barrier_id), DelivererEnd(sink.name, other))
            return Wait(ends, f"{other} is delivering to {sink}", any_of=True, look_again=_LOOK_AGAIN)
        try:
            return Due(deliveries.claim(sink.topology, sink.name, request_key, other), through)
        except SinkTakenError:
            sink = deliveries.get(sink.topology, sink.name)


def _task_of(request_key: str) -> str:
    return request_key.rpartition("#")[0]


def _has_barrier(deployment: Deployment, run: Run, topology: str) -> bool:
    """Return whether a barrier of the run's timestamp is to come. Airflow before 3.3 gives an event's run no partition
    that names one: it has the moment of the event, which came of a barrier before.
    """
    if run.ref.kind != "asset_triggered":
        return run.ref.kind != "manual"
    return any(job.owner == run.ref.dag_id for job in deployment.meta.topologies.get(topology).jobs)


def _through(deployment: Deployment, run: Run, topology: str) -> Barrier | Nothing | None:
    """The barrier up to which a run delivers; None: it is still to come."""
    barriers = deployment.meta.barriers
    try:
        head = barriers.head(topology)
        if run.barrier_id is not None:
            return barriers.get(topology, run.barrier_id)
        own = barriers.of_run(topology, run.ref) or barriers.at(topology, run.timestamp)
    except (UnknownTopologyError, UnknownBarrierError):  # whoever registers and opens may not have run yet
        return None
    if own is not None and own.state is not BarrierState.ABORTED:
        return own
    aborted = own or barriers.aborted_at(topology, run.timestamp)
    if aborted is None and _has_barrier(deployment, run, topology) and (head is None or head.timestamp < run.timestamp):
        return None
    before = [each for each in deployment.meta.answers.readable(topology) if each.timestamp <= run.timestamp]
    return before[-1] if before else Nothing(f"no barrier of {topology} up to {run.timestamp.isoformat()} can be read")
