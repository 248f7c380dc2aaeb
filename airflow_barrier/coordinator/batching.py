"""Going on past one's own barrier: one task processes later epochs of its job as well, in the same Spark job.

Nothing is pinned ahead: the next attempt begins when the one before is PROCESSED, exactly as if its own task had begun
it. That task finds itself fenced, waits, and adopts what was done for it; if the leader dies, it does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.staging import Asking, Ready, begin_again, close, give_up
from airflow_barrier.protocol.errors import AttemptTakenError, BarrierError, FencedAttemptError, VoidedAttemptError
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.states import TableState
from airflow_barrier.spark.spec import ClosingRecord

log = logging.getLogger(__name__)


@dataclass
class Batch:
    """A leader's epochs in a row: at most ``limit`` of one job, beginning with ``first``, its own.

    Whoever runs them calls :meth:`close` after each, and :meth:`following` for the next. ``may_go_on`` is asked before
    an attempt begins, ``begun`` is told which did. ``leader``: the task that leads, with the generation that
    the later barriers' tasks ask with on their first try.
    """

    deployment: Deployment
    leader: Asking
    first: Ready
    limit: int
    may_go_on: Callable[[], bool] = lambda: True
    begun: Callable[[Attempt], None] = lambda attempt: None
    #: the epoch that Spark works on, or None between two
    under_way: Ready | None = field(init=False)
    #: the leader's own barrier, once its epoch is PROCESSED
    barrier: Barrier | None = field(init=False, default=None)
    #: the attempts that are PROCESSED, in order
    done: list[Attempt] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.under_way = self.first

    def close(self, record: ClosingRecord | None = None, idle: bool = False) -> None:
        """The epoch under way is staged: check and report it. ``record`` None: it is in the driver's file; ``idle``: as
        :func:`~airflow_barrier.coordinator.staging.close` takes it.

        Raises what :func:`~airflow_barrier.coordinator.staging.close` does.
        """
        ready, leader = self.under_way, self.leader
        if ready is None:
            return
        barrier = close(
            self.deployment, ready.attempt, actor=leader.actor, record=record, owner=leader.owner, idle=idle
        )
        if self.barrier is None:
            self.barrier = barrier
        self.done.append(ready.attempt)
        self.under_way = None
        log.info("%s is PROCESSED; %s is %s", ready.attempt, barrier, barrier.state.value)

    def following(self) -> Ready | None:
        """The next epoch, begun; None if there is none for the taking, and the batch ends."""
        if len(self.done) < self.limit and self.may_go_on():
            self.under_way = lead(self.deployment, self.done[-1], self.leader)
        if self.under_way is not None:
            self.begun(self.under_way.attempt)
        return self.under_way


def lead(deployment: Deployment, done: Attempt, leader: Asking) -> Ready | None:
    """Begin the attempt of the barrier after that of ``done``, if its inputs are there and nobody has begun it."""
    meta = deployment.meta
    barrier = next((b for b in meta.barriers.uncommitted(done.topology) if b.predecessor == done.barrier_id), None)
    if barrier is None or not _can_be_led(deployment, done, barrier):
        return None
    attempt = meta.attempts.lead(leader.request(barrier, done.job))
    if attempt is None:
        return None
    try:
        step = begin_again(deployment, attempt.attempt_id, leader)
    except (AttemptTakenError, FencedAttemptError, VoidedAttemptError):
        # its own task was faster, or somebody cleared that task, or a task whose output it reads
        return None
    except BarrierError as error:  # its own task will meet the same, and say so
        log.warning("%s is left to its own task: %s", attempt, error)
        give_up(deployment, attempt.attempt_id, reason=str(error), actor=leader.actor)
        return None
    if isinstance(step, Ready):
        return step
    # its input was staged anew since we looked
    give_up(deployment, attempt.attempt_id, reason="its input is missing", actor=leader.actor)
    return None


def _can_be_led(deployment: Deployment, done: Attempt, barrier: Barrier) -> bool:
    """The same job, and its inlets are PROCESSED."""
    meta = deployment.meta
    before = meta.barriers.get(done.topology, done.barrier_id)
    jobs = [
        {job.name: job for job in meta.topologies.get(done.topology, each.topology_version).jobs}
        for each in (before, barrier)
    ]
    job = jobs[0][done.job]
    if jobs[1].get(done.job) != job:
        return False
    states = {each.table: each.state for each in meta.barriers.progress(barrier.topology, barrier.barrier_id)}
    return all(states[inlet] is not TableState.PENDING for inlet in job.inlets)
