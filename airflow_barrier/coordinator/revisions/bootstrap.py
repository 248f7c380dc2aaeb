"""Jobs that join a running topology with a history: what is planned for them beyond what any revision needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.starting import rows_of
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Job, Topology


def says_that_it_waits(topology: str, job: str) -> str:
    """Return the message of the task of a job that waits for its history, with what to do."""
    return (
        f"job {job} waits for its history and has no part in any barrier yet; to have its tables computed at the "
        f"barriers of the past: airflow-barrier revision run {topology} --job {job} --reason ..."
    )


def joining_jobs(
    waiting: Sequence[Job], topology: str, changed: Sequence[str], tables: Sequence[str], *, others: bool
) -> tuple[Job, ...]:
    """Return the ``waiting`` jobs that a revision of these jobs and tables lets join. ``others``: True if it was asked
    for something that only members have, such as corrections.

    Raises RevisionRefusedError for members beside them, and for a job that reads what another one has yet to compute.
    """
    found = tuple(job for job in waiting if job.name in changed or set(tables) & set(job.outlets))
    if not found:
        return ()
    names, outlets = {job.name for job in found}, {outlet for job in found for outlet in job.outlets}
    members = sorted({*changed} - names | {*tables} - outlets)
    if members or others:
        besides = ", ".join(members) or "corrections, --reuse, --recut or --full"
        raise RevisionRefusedError(  # safety: joins-alone
            f"topology {topology}: expected nothing beside the jobs that wait for their history, "
            f"{', '.join(sorted(names))}, found {besides}; let them join first, and correct the rest by another "
            "revision"
        )
    for job in found:
        missing = sorted(other.name for other in waiting if other not in found and set(other.outlets) & set(job.inlets))
        if missing:
            raise RevisionRefusedError(  # safety: joins-with-what-it-reads
                f"topology {topology}: expected the history of all that job {job.name} reads, found that "
                f"{', '.join(missing)} wait for theirs; name them too: --job {' --job '.join(missing)}"
            )
    return found


def first_with_inlets(deployment: Deployment, jobs: Sequence[Job], newest_first: Sequence[Barrier]) -> Barrier:
    """The first barrier from which on all that ``jobs`` read is there, and can be read, among some that are COMMIT,
    the newest first. Raises RevisionRefusedError.
    """
    first = None
    for barrier in newest_first:
        if barrier.expiring_at is not None or _missing(deployment, jobs, barrier):
            break
        first = barrier
    if first is None:
        newest = newest_first[0]
        raise RevisionRefusedError(  # safety: history-of-what-is-there
            f"expected a barrier that has all that {', '.join(job.name for job in jobs)} read, found that {newest} "
            f"lacks {', '.join(_missing(deployment, jobs, newest))}; {_WAY}"
        )
    return first


def check_history(deployment: Deployment, jobs: Sequence[Job], barriers: Sequence[Barrier]) -> Mapping[str, int | None]:
    """See that the tables of ``jobs`` can be computed from nothing, at ``barriers``. Returns what `main` of each is at.

    Raises RevisionRefusedError, MissingTableError.
    """
    for barrier in barriers:
        missing = _missing(deployment, jobs, barrier)
        if missing:
            raise RevisionRefusedError(  # safety: history-of-what-is-there
                f"expected that {barrier} has all that {', '.join(job.name for job in jobs)} read, found that it lacks "
                f"{', '.join(missing)}; begin later (--from), or {_WAY}"
            )
    cuts = deployment.meta.cuts.of(barriers[0].topology, barriers[0].barrier_id, items_of=())
    for job in jobs:
        begun = [source.name for source in job.externals if cuts[source.name].start is not None]
        if begun:
            raise RevisionRefusedError(  # safety: history-from-the-sources-beginning
                f"job {job.name}: expected to begin with the first cut of its source {begun[0]}, found that "
                f"{barriers[0]} has a later one: what came before would be in no epoch of it; begin earlier, or {_WAY}"
            )
    mains = deployment.tables.mains(sorted(outlet for job in jobs for outlet in job.outlets))
    full = [table for table, main in mains.items() if rows_of(deployment.tables.load(table), main) != 0]
    if full:
        raise RevisionRefusedError(  # safety: history-into-empty-tables
            f"expected empty tables to compute history into, found rows in {', '.join(full)}; empty them, or say by "
            "start_from what of the inlets is in them: then their jobs join with the next barrier"
        )
    return mains


def with_joining(topology: Topology, joining: Sequence[Job]) -> Topology:
    """The topology as it will be."""
    return Topology.of(topology.name, [*topology.jobs, *joining]) if joining else topology


_WAY = (
    "let the job join with the next barrier instead, with all that its inlets hold by then as its first epoch: "
    "start_from='earliest'"
)


def _missing(deployment: Deployment, jobs: Sequence[Job], barrier: Barrier) -> list[str]:
    """Return the inputs of the jobs that a barrier lacks: tables, and external sources that it has no cut of."""
    had = set(deployment.meta.topologies.get(barrier.topology, barrier.topology_version).tables)
    had |= {outlet for job in jobs for outlet in job.outlets}
    tables = {table for job in jobs for table in job.inlets} - had
    cut = deployment.meta.cuts.of(barrier.topology, barrier.barrier_id, items_of=())
    sources = {source.name for job in jobs for source in job.externals} - cut.keys()
    return sorted(tables | sources)
