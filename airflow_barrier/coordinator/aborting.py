"""Giving up a barrier before it is COMMITTING."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from airflow_barrier.coordinator.cuts import cuts_to_release, release_cuts
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.records import Barrier

log = logging.getLogger(__name__)


def abort_barrier(
    deployment: Deployment, topology: str, barrier_id: int, *, reason: str, actor: str
) -> tuple[Barrier, ...]:
    """Abort the barrier and every later uncommitted one; their epochs join the next barrier's.

    Attempts in flight are voided in the same transaction; their branches go with the next publish. Returns the
    barriers that this call aborted (none if they were already). Raises AlreadyCommittedError from COMMITTING on.
    """
    aborted = deployment.meta.barriers.abort(topology, barrier_id, reason, actor)
    for barrier in aborted:
        release_cuts(deployment, cuts_to_release(deployment, barrier, barrier.barrier_id))
        log.info("%s is ABORTED: %s", barrier, reason)
    return tuple(aborted)


@dataclass(frozen=True)
class Aborted:
    """``barriers``: what this call gave up; none if that was done before. ``left``: why tags that hold their input in
    tables outside the topology are still there; None if they are not.
    """

    barriers: tuple[Barrier, ...]
    left: str | None


def abort_by_hand(
    meta: MetaService,
    topology: str,
    barrier_id: int,
    *,
    reason: str,
    actor: str,
    connect: Callable[[], AbstractContextManager[Deployment]] | None,
) -> Aborted:
    """Abort as :func:`abort_barrier` does, but for a person: also if the tables do not answer.

    ``connect`` is called if there is something to let go of; None: who asks has no tables. Raises as that function.
    """
    aborted = tuple(meta.barriers.abort(topology, barrier_id, reason, actor))
    log.info("%s of %s aborted by %s: %s", [each.barrier_id for each in aborted], topology, actor, reason)
    cut = [each for each in aborted if meta.cuts.of(topology, each.barrier_id, items_of=())]
    if not cut or connect is None:
        return Aborted(aborted, None)
    try:
        with connect() as deployment:
            for barrier in cut:
                release_cuts(deployment, cuts_to_release(deployment, barrier, barrier.barrier_id))
    except BarrierError as error:
        return Aborted(aborted, str(error))
    return Aborted(aborted, None)
