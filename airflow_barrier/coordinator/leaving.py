"""A job, or a whole DAG, leaves its topology and takes its tables along, as they are."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError, MissingTableError
from airflow_barrier.protocol.records import Barrier, Withdrawal
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import Kept

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Left:
    """The result of leaving. ``tables`` were given back, unless barriers are ``open`` that have what left: they keep
    it.
    """

    withdrawal: Withdrawal
    open: tuple[Barrier, ...]
    tables: tuple[str, ...]


def leave(deployment: Deployment, topology: str, dag: str, job: str | None, *, reason: str, actor: str) -> Left:
    """Take a job of ``dag`` (None: all) out of ``topology``, from the next barrier on. Again goes on where it ended.

    Its tables keep their `main`, and the tags of the barriers that published it, which readers may still go by.
    Attempt branches are dropped, and write-audit-publish is off again if `adopt` switched it on. Raises StillReadError
    naming who still reads a table, TopologyError if there is no such job.
    """
    gone = deployment.meta.topologies.leave(topology, dag, job, reason, actor)
    left = {outlet for each in gone.jobs for outlet in each.outlets}
    still = tuple(
        barrier
        for barrier in deployment.meta.barriers.uncommitted(topology)
        if any(row.table in left for row in deployment.meta.barriers.progress(topology, barrier.barrier_id))
    )
    if still:
        return Left(gone, still, ())
    taken = deployment.topologies_by_table()  # another DAG may have taken one over meanwhile
    for table in sorted(left & taken.keys()):
        log.info("table %s is not given back: topology %s writes it now", table, taken[table])
    given_back = tuple(outlet for outlet in sorted(left - taken.keys()) if _give_back(deployment, topology, outlet))
    _release_sources(deployment, gone)
    return Left(gone, (), given_back)


def _give_back(deployment: Deployment, topology: str, table: str) -> bool:
    try:
        deployment.tables.give_back([table], topology, deployment.meta.leases.held(topology))
    except (MissingTableError, ConfigurationError) as error:  # dropped, or no table any more whose refs we can edit
        log.warning("nothing to give back: %s", error)
        return False
    log.info("table %s is given back as it is", table)
    return True


def _release_sources(deployment: Deployment, gone: Withdrawal) -> None:
    """Let go of what held the input of an epoch that will not come; a source that others read stays held."""
    read = {source.name for source in deployment.meta.topologies.get(gone.topology).externals}
    for source in {source.name: source for job in gone.jobs for source in job.externals}.values():
        last = deployment.meta.cuts.last(gone.topology, source.name)
        if source.name not in read and last is not None and last[1].put_off is None:
            source_of(source).release(last[1], deployment.tables)
        if source.name not in read:
            _leave(deployment, gone.topology, source)


def _leave(deployment: Deployment, topology: str, declared: ExternalSource) -> None:
    if not isinstance(source_of(declared), Kept):
        return
    try:
        source = deployment.source_of(declared)
        assert isinstance(source, Kept)
        source.leave(topology, deployment.tables)
    except BarrierError as error:  # it need not be there any more
        log.warning("source %s: expected to let go of what its system holds for it, found: %s", declared.name, error)
