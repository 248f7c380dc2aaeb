"""Giving up a barrier before it is COMMITTING."""

from __future__ import annotations

import logging

from airflow_barrier.coordinator.cuts import release_sources
from airflow_barrier.coordinator.deployment import Deployment
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
        release_sources(deployment, barrier, barrier.barrier_id)
        log.info("%s is ABORTED: %s", barrier, reason)
    return tuple(aborted)
