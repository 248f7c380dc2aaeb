"""The cuts of external sources: made when a barrier opens, checked before Spark starts, let go at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import (
    BarrierError,
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
    Retryable,
    SourceDataError,
    SourceUnavailableError,
    StoreUnavailableError,
)
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import Attempt, Barrier, Cut
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import CutRequest, Kept, NotReady, Source

log = logging.getLogger(__name__)

#: What is no fault of a source.
_OURS = (StoreUnavailableError, CatalogUnavailableError, CatalogRefusedError, MemoryError)
_LONGEST_REASON = 2_000


def cut_sources(
    deployment: Deployment,
    topology: Topology,
    head: Barrier | None,
    timestamp: datetime,
    now: datetime,
    already: Mapping[str, Mapping[str, Any]],
    holder: str | None = None,
) -> list[Cut] | NotReady:
    """The cut of every external source for the barrier after ``head``, or the first source that is not ready.

    ``already``: by source, what is in the tables of jobs that join, as
    :class:`~airflow_barrier.protocol.records.JobStart` has it. ``holder``: the rehearsal that the cuts are for.

    A source that cannot be looked into holds up the jobs that read it, and nobody else: its cut is put off until one of
    them begins. Only the first cut of a source is not: what the jobs join with has to be known. Its error says so.
    """
    meta = deployment.meta
    before = meta.cuts.of(topology.name, head.barrier_id, items_of=()) if head and topology.externals else {}
    cuts: list[Cut] = []
    for declared in topology.externals:
        start, after = before.get(declared.name), head
        if start is None and head is not None:
            # where its jobs left off, if they left and come back: nothing is read twice, and nothing is skipped
            found = meta.cuts.last(topology.name, declared.name, before=head.barrier_id + 1)
            after, start = found or (head, None)
        if start is not None and start.put_off is not None:  # safety: put-off-follows
            why = f"its cut at {after} is put off, and comes first: {start.put_off}"
            cuts.append(_put_off(topology, declared, why))
            continue
        request = _request(
            deployment, topology.name, declared, (head.barrier_id if head else 0) + 1, timestamp, now, holder
        )
        try:
            cut = deployment.source_of(declared).cut(
                replace(
                    request,
                    after=after.timestamp if after and after.barrier_id else None,
                    start=start.end if start else None,
                    already=_position(already[declared.name]) if declared.name in already else None,
                    anew=start.anew if start else None,
                )
            )
        except _OURS:
            raise
        except Exception as error:
            if start is None:
                raise _named(topology, declared, error) from error
            cut = _put_off(topology, declared, said(error))
        if isinstance(cut, NotReady):
            return cut
        cuts.append(cut)
    return cuts


def check_allowed(deployment: Deployment, jobs: Iterable[Job]) -> None:
    """Raise ConfigurationError for a source that this deployment may not open: before its job is registered."""
    for declared in (external for job in jobs for external in job.externals):
        deployment.source_of(declared)


def check_reachable(deployment: Deployment, job: Job) -> None:
    """Raise, naming ``job``, the error of a source of it that cannot be cut."""
    for declared in job.externals:
        try:
            deployment.source_of(declared).look(deployment.tables)
        except _OURS:
            raise
        except Exception as error:
            raise _kind(error)(
                f"job {job.name} (DAG {job.owner}): expected to look into its source {declared.name} before it joins, "
                f"found: {said(error)}. Mend the source or its declaration and clear the task; barriers open without "
                "the job until then"
            ) from error


def source_fault(deployment: Deployment, declared: ExternalSource) -> str | None:
    """Return the fault that keeps a source from being cut, in words; None: nothing that can be seen before."""
    try:
        deployment.source_of(declared).look(deployment.tables)
    except _OURS:
        raise
    except BarrierError as error:
        return said(error)
    except Exception as error:
        return f"source {declared.name}: expected to look into it, found: {said(error)}"
    return None


def _request(
    deployment: Deployment,
    topology: str,
    declared: ExternalSource,
    barrier_id: int,
    until: datetime,
    now: datetime,
    holder: str | None = None,
) -> CutRequest:
    """Return the parts of a source's cut request that do not depend on where it begins."""
    # what barriers have that a rehearsal is not built on, it takes as well
    through = None if holder is None else barrier_id - 1

    def used(items: Sequence[str]) -> set[str]:
        return deployment.meta.cuts.used_items(topology, declared.name, items, through)

    return CutRequest(holder or topology, barrier_id, None, until, None, used, now, deployment.tables)


def _put_off(topology: Topology, declared: ExternalSource, why: str) -> Cut:
    log.warning(
        "source %s of %s is not cut now: %s. Other jobs go on; it is cut when the first of its jobs begins",
        declared.name,
        _readers(topology, declared),
        why,
    )
    return Cut.later(declared.name, why)


def _named(topology: Topology, declared: ExternalSource, error: Exception) -> BarrierError:
    """The error of a source's first cut, with whose source it is and what gets the topology going again."""
    return _kind(error)(
        f"topology {topology.name}: expected the first cut of source {declared.name}, which "
        f"{_readers(topology, declared)} reads, found: {said(error)}. No barrier opens without it: mend the source or "
        f"its declaration, or take its reader out: airflow-barrier topology leave {topology.name} --dag DAG --job JOB"
    )


def _kind(error: Exception) -> type[BarrierError]:
    """Return the error's type, so that trying again helps as before."""
    return type(error) if isinstance(error, BarrierError) else SourceDataError


def _readers(topology: Topology, declared: ExternalSource) -> str:
    readers = [job for job in topology.jobs if any(external.name == declared.name for external in job.externals)]
    return ", ".join(f"job {job.name} (DAG {job.owner})" for job in readers)


def said(error: Exception) -> str:
    """Return the part of an error that is kept: ours say nothing of data; others' may, so only their type is."""
    return one_line(str(error))[:_LONGEST_REASON] if isinstance(error, BarrierError) else type(error).__name__


def _position(already: Mapping[str, Any]) -> Any:
    return datetime.fromisoformat(already["time"]) if "time" in already else already["at"]


def checked_cuts(deployment: Deployment, attempt: Attempt, job: Job, actor: str) -> dict[str, Cut]:
    """The cuts that an attempt of ``job`` reads, seen to be readable as declared. Raises SourceDataError.

    A person who mended a file changed it. As long as no attempt has closed over the cut, nothing was computed from
    the old content, and a cleared task takes the file as it is now.
    """
    meta, names = deployment.meta, [declared.name for declared in job.externals]
    cuts = meta.cuts.of(attempt.topology, attempt.barrier_id, attempt.line, items_of=names) if names else {}
    checked: dict[str, Cut] = {}
    for declared in job.externals:
        cut = cuts[declared.name]
        if cut.put_off is not None:
            cut = _cut_now(deployment, attempt, declared, actor)
        source = deployment.source_of(declared)
        if attempt.line:  # a revision is for what was corrected since: it reads the same cut as it is now
            if begins_anew(deployment, attempt):
                whole = whole_cut(deployment, source, attempt.topology, cut, attempt.barrier_id)
                # an item is used up by the barrier that it came with, whoever reads it once more
                mended = replace(mended_cut(source, whole), items=cut.items)
            else:
                mended = mended_cut(source, cut)
            if mended != cut:
                meta.revisions.recut(attempt.topology, attempt.line, attempt.barrier_id, mended, actor)
                log.info("%s takes source %s as it was mended", attempt, declared.name)
            checked[declared.name] = mended
            continue
        try:
            source.check(cut)
        except SourceDataError:
            if not _cleared_before_anything_closed(deployment, attempt, declared.name):
                raise
            cut = source.repin(cut)
            source.check(cut)
            meta.cuts.repin(attempt.topology, attempt.barrier_id, cut, actor)
            log.info("%s takes source %s as it was mended", attempt, declared.name)
        checked[declared.name] = cut
    return checked


@dataclass(frozen=True)
class Away:
    """A source that cannot be cut yet, and why."""

    source: str
    why: str


def cut_put_off(deployment: Deployment, attempt: Attempt, actor: str) -> Away | None:
    """Make the cuts of the attempt's job that were put off. Returns the source that cannot be cut yet; None: all are
    made, or the attempt lacks tables and it is not its turn yet.

    Before the attempt starts, since one that has started cannot wait. Raises the error of a source that no trying again
    mends.
    """
    if attempt.line:  # a revision's barriers stand on cuts that were made
        return None
    meta = deployment.meta
    barrier = meta.barriers.get(attempt.topology, attempt.barrier_id)
    job = meta.topologies.get(attempt.topology, barrier.topology_version).job(attempt.job)
    if not job.externals:
        return None
    cuts = meta.cuts.of(attempt.topology, attempt.barrier_id, items_of=())
    put_off = {external: why for external in job.externals if (why := cuts[external.name].put_off) is not None}
    if not put_off or meta.attempts.needs(attempt):
        return None
    for declared, why in put_off.items():
        try:
            _cut_now(deployment, attempt, declared, actor)
        except _OURS:
            raise
        except Retryable as error:
            return Away(declared.name, f"{error}. It was put off at {barrier.opened_at} already, since {why}")
    return None


def _cut_now(deployment: Deployment, attempt: Attempt, declared: ExternalSource, actor: str) -> Cut:
    """The cut that was put off when the barrier opened, made as it would have been then.

    Raises what the source does, and SourceUnavailableError (retryable) if it is not ready.
    """
    meta = deployment.meta
    barrier = meta.barriers.get(attempt.topology, attempt.barrier_id)
    after, before = meta.cuts.last(attempt.topology, declared.name, before=attempt.barrier_id) or (None, None)
    if after is None or before is None or before.put_off is not None:
        raise SourceUnavailableError(  # safety: put-off-follows
            f"{attempt}: expected the cut of source {declared.name} before it, which this one begins at, found that it "
            f"is put off until a job that reads it begins at {after}; try again then"
        )
    now = datetime.now(timezone.utc)
    request = _request(deployment, attempt.topology, declared, attempt.barrier_id, barrier.timestamp, now)
    found = f"{attempt}: expected to cut source {declared.name}, which was put off when the barrier opened, found"
    try:
        cut = deployment.source_of(declared).cut(
            replace(request, after=after.timestamp, start=before.end, anew=before.anew)
        )
    except _OURS:
        raise
    except Exception as error:
        kind = _kind(error)
        remedy = "it is tried again" if issubclass(kind, Retryable) else "mend the source and clear the task"
        raise kind(f"{found}: {said(error)}; {remedy}, other jobs go on") from error
    if isinstance(cut, NotReady):
        raise SourceUnavailableError(f"{found} that it is not ready: {cut.reason}; it is tried again")
    made = meta.cuts.make(attempt.topology, attempt.barrier_id, cut, actor)
    log.info("%s has cut source %s, which was put off when the barrier opened", attempt, declared.name)
    return made


def keep_up(deployment: Deployment, topology: str) -> bool:
    """Have sources take what has come meanwhile, where their systems would hold it for us until a barrier opens.

    Returns whether there are any. One that fails says so in the log.
    """
    kept = [each for each in deployment.meta.topologies.get(topology).externals if isinstance(source_of(each), Kept)]
    for declared in kept:
        last = deployment.meta.cuts.last(topology, declared.name, made=True)
        if last is None or last[1].anew is not None:
            continue
        try:
            source = deployment.source_of(declared)
            assert isinstance(source, Kept)
            source.keep_up(last[1], deployment.tables)
        except BarrierError as error:
            log.error("source %s cannot keep up while no barrier may open: %s", declared.name, error)
    return bool(kept)


def begin_anew(deployment: Deployment, topology: str, source: str, *, reason: str, actor: str) -> Barrier:
    """Have a source begin anew after its newest cut, which is the barrier's that is returned.

    Raises ConfigurationError for a source that does not do that, and SourceDataError for one that was never cut.
    """
    declared = {each.name: each for each in deployment.meta.topologies.get(topology).externals}
    able = sorted(name for name, each in declared.items() if isinstance(source_of(each), Kept))
    if source not in able:
        raise ConfigurationError(
            f"topology {topology}: expected a source that can begin anew ({', '.join(able) or 'there is none'}), "
            f"found {source}"
        )
    return deployment.meta.cuts.begin_anew(topology, source, reason, actor)


def begins_anew(deployment: Deployment, attempt: Attempt) -> bool:
    """Return True if the attempt is at the first barrier of a revision that clears its tables. It then computes all
    that there was up to there.
    """
    if not attempt.line:
        return False
    revision = deployment.meta.revisions.get(attempt.topology, attempt.line)
    return revision.mode is RevisionMode.FULL and attempt.barrier_id == revision.first_barrier


def whole_cut(deployment: Deployment, source: Source, topology: str, cut: Cut, barrier_id: int) -> Cut:
    """All that the source had up to ``cut``, which is the one of ``barrier_id``."""
    earlier = deployment.meta.cuts.up_to(topology, source.name, barrier_id - 1)
    return source.whole([*earlier, cut])


def mended_cut(source: Source, cut: Cut) -> Cut:
    """``cut`` itself if it can be read as it was, else what has become of it. Raises SourceDataError for what is gone:
    whether it was deleted to correct the epoch, or since nobody needed it any more, only a person can say.
    """
    try:
        source.check(cut)
        return cut
    except SourceDataError:
        mended = source.repin(cut)
    gone = sorted(set(cut.items) - set(mended.items))
    if gone:
        raise SourceDataError(  # safety: gone-is-not-empty
            f"source {cut.source}: expected all that its cut holds, found that {len(gone)} of {len(cut.items)} are "
            f"gone, such as {gone[0]}; put them back, without rows if that is the correction, have the epoch cut anew "
            f"without them (--recut {cut.source}), or replace it"
        )
    source.check(mended)
    return mended


def cuts_to_release(deployment: Deployment, barrier: Barrier, cut_of: int) -> list[tuple[ExternalSource, Cut]]:
    """Return the cuts of barrier ``cut_of``, with their sources as ``barrier`` has them."""
    topology = deployment.meta.topologies.get(barrier.topology, barrier.topology_version)
    cuts = deployment.meta.cuts.of(barrier.topology, cut_of, items_of=()) if topology.externals else {}
    return [(source, cuts[source.name]) for source in topology.externals if source.name in cuts]


def release_cuts(deployment: Deployment, cuts: Iterable[tuple[ExternalSource, Cut]]) -> None:
    """Let go of what these cuts hold in their sources."""
    for declared, cut in cuts:
        if cut.put_off is None:
            source_of(declared).release(cut, deployment.tables)


def _cleared_before_anything_closed(deployment: Deployment, attempt: Attempt, source: str) -> bool:
    barrier = deployment.meta.barriers.get(attempt.topology, attempt.barrier_id)
    topology = deployment.meta.topologies.get(attempt.topology, barrier.topology_version)
    readers = {job.name for job in topology.jobs if any(external.name == source for external in job.externals)}
    attempts = [a for a in deployment.meta.attempts.of(attempt.topology, attempt.barrier_id) if a.job in readers]
    cleared = any(a.job == attempt.job and a.generation != attempt.generation for a in attempts)
    return cleared and all(a.closed_at is None for a in attempts)
