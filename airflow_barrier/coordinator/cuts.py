"""The cuts of external sources: made when a barrier opens, checked before Spark starts, let go at the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Attempt, Barrier, Cut
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.topology import Job, Topology
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import CutRequest, NotReady, Source

log = logging.getLogger(__name__)


def cut_sources(
    deployment: Deployment,
    topology: Topology,
    head: Barrier | None,
    timestamp: datetime,
    now: datetime,
    already: Mapping[str, Mapping[str, Any]],
) -> list[Cut] | NotReady:
    """The cut of every external source for the barrier after ``head``, or the first source that is not ready.

    ``already``: by source, what is in the tables of jobs that join, as
    :class:`~airflow_barrier.protocol.records.JobStart` has it.
    """
    meta = deployment.meta
    before = meta.cuts(topology.name, head.barrier_id, items_of=()) if head else {}
    cuts: list[Cut] = []
    for declared in topology.externals:
        start, after = before.get(declared.name), head
        if start is None and head is not None:
            # where its jobs left off, if they left and come back: nothing is read twice, and nothing is skipped
            after, start = meta.last_cut(topology.name, declared.name) or (head, None)

        def used(items: Sequence[str], source: str = declared.name) -> set[str]:
            return meta.used_items(topology.name, source, items)

        cut = source_of(declared).cut(
            CutRequest(
                topology=topology.name,
                barrier_id=(head.barrier_id if head else 0) + 1,
                after=after.timestamp if after and after.barrier_id else None,
                until=timestamp,
                start=start.end if start else None,
                used=used,
                now=now,
                catalog=deployment.tables,
                already=_position(already[declared.name]) if declared.name in already else None,
            )
        )
        if isinstance(cut, NotReady):
            return cut
        cuts.append(cut)
    return cuts


def _position(already: Mapping[str, Any]) -> Any:
    return datetime.fromisoformat(already["time"]) if "time" in already else already["at"]


def checked_cuts(deployment: Deployment, attempt: Attempt, job: Job, actor: str) -> dict[str, Cut]:
    """The cuts that an attempt of ``job`` reads, seen to be readable as declared. Raises SourceDataError.

    A person who mended a file changed it. As long as no attempt has closed over the cut, nothing was computed from
    the old content, and a cleared task takes the file as it is now.
    """
    meta, names = deployment.meta, [declared.name for declared in job.externals]
    cuts = meta.cuts(attempt.topology, attempt.barrier_id, attempt.line, items_of=names) if names else {}
    checked: dict[str, Cut] = {}
    for declared in job.externals:
        source, cut = source_of(declared), cuts[declared.name]
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
            meta.repin_cut(attempt.topology, attempt.barrier_id, cut, actor)
            log.info("%s takes source %s as it was mended", attempt, declared.name)
        checked[declared.name] = cut
    return checked


def begins_anew(deployment: Deployment, attempt: Attempt) -> bool:
    """Whether it is the first of a revision that clears its tables, and so computes all that there was up to there."""
    if not attempt.line:
        return False
    revision = deployment.meta.revisions.get(attempt.topology, attempt.line)
    return revision.mode is RevisionMode.FULL and attempt.barrier_id == revision.first_barrier


def whole_cut(deployment: Deployment, source: Source, topology: str, cut: Cut, barrier_id: int) -> Cut:
    """All that the source had up to ``cut``, which is the one of ``barrier_id``."""
    earlier = deployment.meta.cuts_up_to(topology, source.name, barrier_id - 1)
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


def release_sources(deployment: Deployment, barrier: Barrier, cut_of: int) -> None:
    """Let go of what the cuts of barrier ``cut_of`` hold; ``barrier`` says which sources there are."""
    topology = deployment.meta.topology(barrier.topology, barrier.topology_version)
    declared = {source.name: source for source in topology.externals}
    for name, cut in deployment.meta.cuts(barrier.topology, cut_of, items_of=()).items():
        if name in declared:
            source_of(declared[name]).release(cut, deployment.tables)


def _cleared_before_anything_closed(deployment: Deployment, attempt: Attempt, source: str) -> bool:
    barrier = deployment.meta.barrier(attempt.topology, attempt.barrier_id)
    topology = deployment.meta.topology(attempt.topology, barrier.topology_version)
    readers = {job.name for job in topology.jobs if any(external.name == source for external in job.externals)}
    attempts = [a for a in deployment.meta.attempts(attempt.topology, attempt.barrier_id) if a.job in readers]
    cleared = any(a.job == attempt.job and a.generation != attempt.generation for a in attempts)
    return cleared and all(a.closed_at is None for a in attempts)
