"""Cuts made anew for a revision: of a source from which something was taken, or to which something was delivered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.plan import PlannedRecut, Wanted
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Barrier, Cut
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology


def readers_of(topology: Topology, source: str) -> tuple[Job, ...]:
    """The jobs that read an external source. Raises RevisionRefusedError if none does."""
    readers = tuple(job for job in topology.jobs if any(external.name == source for external in job.externals))
    if not readers:
        known = ", ".join(sorted(external.name for external in topology.externals)) or "none"
        raise RevisionRefusedError(  # safety: source-is-read
            f"topology {topology.name}: expected an external source that one of its jobs reads, which are {known}, "
            f"found {source}; correct the name"
        )
    return readers


def planned_recuts(
    deployment: Deployment, wanted: Wanted, topology: Topology, window: Sequence[Barrier]
) -> tuple[PlannedRecut, ...]:
    """The cuts of ``wanted.recut`` at the barriers of the window, as the sources are now; nothing is stored.

    Raises RevisionRefusedError for a source that cannot be cut anew, SourceUnavailableError.
    """
    if wanted.recut and wanted.mode is not RevisionMode.INCREMENTAL:
        raise RevisionRefusedError(  # safety: recut-one-by-one
            f"topology {topology.name}: expected --recut where epochs are computed one by one, found that the first "
            f"one is to read all that came before it ({wanted.mode.value}); do one after the other, by two revisions"
        )
    declared = {external.name: external for external in topology.externals}
    return tuple(
        each
        for name in dict.fromkeys(wanted.recut)
        for each in _recuts(deployment, topology.name, declared[name], window)
    )


def _recuts(
    deployment: Deployment, topology: str, declared: ExternalSource, window: Sequence[Barrier]
) -> Iterator[PlannedRecut]:
    meta = deployment.meta
    stored: dict[int, Cut] = {}
    for barrier in window:
        cuts = meta.cuts.of(topology, barrier.barrier_id, items_of=[declared.name])
        if declared.name in cuts:
            stored[barrier.barrier_id] = cuts[declared.name]

    def used(items: Sequence[str]) -> set[str]:
        return meta.cuts.used_items(topology, declared.name, items)

    anew = deployment.source_of(declared).recut(list(stored.values()), used) if stored else []
    for (barrier_id, was), cut in zip(stored.items(), anew, strict=True):
        before, now = set(was.items), set(cut.items)
        yield PlannedRecut(barrier_id, cut, tuple(sorted(before - now)), tuple(sorted(now - before)))


def check_read(job: Job, wanted: Wanted, recuts: Sequence[PlannedRecut]) -> None:
    """Check that a job of a recut source reads it at each recut barrier: else new rows would be in no epoch of it."""
    names = {external.name for external in job.externals}
    corrected = {each.barrier_id for each in wanted.corrections if each.table in job.outlets}
    reused = set(job.outlets) <= set(wanted.reused)
    for each in recuts:
        if each.cut.source in names and (reused or each.barrier_id in corrected):
            raise RevisionRefusedError(  # safety: recut-is-read
                f"job {job.name}: expected to read source {each.cut.source}, which is cut anew, at barrier "
                f"{each.barrier_id}, found that something stands in for that (--reuse, --sql, --file); choose one of "
                "the two"
            )
