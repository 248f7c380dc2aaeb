"""Opening a barrier: register the topology, cut every source, store both before any job starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_barrier.coordinator.creating import check_table_names, create_declared, with_declaration
from airflow_barrier.coordinator.cuts import check_allowed, cut_sources
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_not_lost, led_look
from airflow_barrier.coordinator.starting import already, check_newest, looks, starts_of
from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.protocol.errors import (
    GatedError,
    HeadMovedError,
    MissingTableError,
    StartFromError,
    TriggeredRunError,
)
from airflow_barrier.protocol.records import Barrier, Cut, RunRef
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.sources.port import NotReady

log = logging.getLogger(__name__)

#: What somebody else did between our look and our write: the next look sees it.
_MOVED = (HeadMovedError, GatedError)


@dataclass(frozen=True)
class Opened:
    """The barrier for the timestamp; ``created`` is False when it was open already and is only observed."""

    barrier: Barrier
    created: bool
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True)
class Later:
    """The barrier cannot open yet, and why; ask again. ``gatekeeper``: the revision that is published before."""

    reason: str
    gatekeeper: Revision | None = None


def open_barrier(
    deployment: Deployment,
    fragment: Fragment,
    timestamp: datetime,
    *,
    timestamp_from: str,
    run: RunRef,
    actor: str,
    now: datetime | None = None,
    triggered: bool = False,
) -> Opened | Later:
    """Open the barrier at ``timestamp`` (UTC), or observe the one that is there.

    ``timestamp_from`` says where the timestamp came from, ``run`` which run opens. ``now`` (UTC; default: the clock) is
    what sources compare idle time with. ``triggered``: somebody asked for this run, and wants to be told if it does
    nothing.

    Raises BarrierOrderError if a later barrier is open already, TriggeredRunError, MissingTableError, TopologyError,
    SourceDataError, ForeignWriteError, StartFromError if a job joins with tables that hold nobody knows what,
    ConfigurationError if the catalog does not do what is needed or declared of it, or if a job joins with a table whose
    columns are not those declared, and LostStateError if the MetaService knows less than the tables.
    """
    if triggered:
        _check_not_done(deployment, fragment.topology, timestamp, run)
    deployment.tables.prove()  # safety: catalog-is-proved
    check_allowed(deployment, fragment.jobs)
    check_table_names(deployment, fragment.jobs)
    with deployment.meta.look():
        if deployment.meta.barriers.at(fragment.topology, timestamp) is None:
            # If the barrier is open already, nothing is registered: this run may be an old one with old code.
            deployment.meta.topologies.register(fragment.topology, fragment.owner, fragment.jobs, actor, at=timestamp)
    _create_tables(deployment, fragment)
    for attempt in looks(*_MOVED):
        with attempt:
            return _open_once(
                deployment,
                fragment.topology,
                timestamp,
                timestamp_from,
                run,
                actor,
                now or datetime.now(timezone.utc),
            )
    raise AssertionError("unreachable: tenacity returns or raises")


def _check_not_done(deployment: Deployment, topology: str, timestamp: datetime, run: RunRef) -> None:
    """Raise TriggeredRunError if a triggered run has nothing to do: all its tasks would succeed at once, unnoticed."""
    there = deployment.meta.barriers.at(topology, timestamp)
    if there is not None and there.state is BarrierState.COMMIT and there.run.key != run.key:
        raise TriggeredRunError(  # safety: triggered-run-of-a-done-barrier
            f"run {run}, which somebody triggered: expected no barrier of {topology} at {timestamp.isoformat()} "
            f"yet, found {there}, which is {there.state.value} and was opened by run {there.run}: nothing is left "
            "to do for it, so delete this run, and correct what is published by a revision: airflow-barrier "
            f"revision plan {topology} --from {there.barrier_id}"
        )


def _create_tables(deployment: Deployment, fragment: Fragment) -> None:
    """Create the declared tables of jobs that join, before all tables are asked whether a MetaService was lost."""
    meta, name = deployment.meta, fragment.topology
    if not fragment.tables:
        return
    waiting = [each for job in meta.topologies.waiting(name) for each in job.outlets]
    joining = {*meta.barriers.unjoined(name), *waiting}
    check_not_lost(deployment, name)
    create_declared(deployment, (table for table in fragment.tables if table.name in joining))


def _open_once(
    deployment: Deployment,
    name: str,
    timestamp: datetime,
    timestamp_from: str,
    run: RunRef,
    actor: str,
    now: datetime,
) -> Opened | Later:
    meta = deployment.meta
    with _led_look(deployment, name):
        # Before the other looks: if a barrier opens or a job joins from here on, ours are stale, and we look again.
        head, version = meta.barriers.head(name), meta.topologies.version(name)
        topology = meta.topologies.get(name, version)
        there = meta.barriers.at(name, timestamp)
        gatekeeper = meta.revisions.gatekeeper(name)
        open_now = meta.barriers.uncommitted(name)
        unjoined = meta.barriers.unjoined(name)
    if there is not None:
        log.info("%s is %s already, opened by %s; observing it", there, there.state.value, there.run)
        return Opened(there, created=False)
    if gatekeeper is not None:
        return Later(f"{gatekeeper}, {gatekeeper.state.value}, is published first", gatekeeper)
    if len(open_now) >= deployment.max_open_barriers:
        return Later(
            f"{len(open_now)} barriers of {name} are open (max_open_barriers={deployment.max_open_barriers}); "
            f"the oldest is {open_now[0]}, {open_now[0].state.value}"
        )
    try:
        joining = [job for job in topology.jobs if set(unjoined).issuperset(job.outlets)]
        starts = starts_of(deployment, topology, joining, timestamp)
    except StartFromError:
        check_newest(deployment, name, (head.barrier_id if head else 0, version))
        raise
    cuts = cut_sources(deployment, topology, head, timestamp, now, already(starts))
    if isinstance(cuts, NotReady):
        return Later(f"source {cuts.source}: {cuts.reason}")
    barrier = meta.barriers.open(
        Opening(
            name,
            timestamp,
            cuts=cuts,
            topology_version=version,
            predecessor=head.barrier_id if head else 0,
            run=run,
            timestamp_from=timestamp_from,
            max_open=deployment.max_open_barriers,
            baseline=deployment.tables.mains(unjoined),
            actor=actor,
            starts=starts,
        ),
    )
    log.info("opened %s: %s", barrier, "; ".join(map(_told, cuts)) or "no sources")
    return Opened(barrier, created=True, cuts=tuple(cuts))


@contextmanager
def _led_look(deployment: Deployment, topology: str) -> Iterator[None]:
    try:
        with led_look(deployment, topology):
            yield
    except MissingTableError as error:
        raise with_declaration(error) from error


def _told(cut: Cut) -> str:
    return f"{cut.source} {'is put off' if cut.put_off is not None else f'up to {brief(cut)}'}"


def brief(cut: Cut) -> str:
    """Tell the cut in a log line: in its adapter's words, else short values as they are, lists by their length."""
    if cut.words is not None:
        return cut.words
    parts = (
        f"{name}={len(value)}" if isinstance(value, (list, dict)) else f"{name}={value}"
        for name, value in cut.end.items()
    )
    return ", ".join(parts)
