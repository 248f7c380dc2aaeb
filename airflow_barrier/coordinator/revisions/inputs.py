"""What a revision computes, from what, and what is known of it before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_barrier.coordinator.cuts import mended_cut, whole_cut
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.plan import PlannedInput, PlannedRecut, PlannedTable, Wanted
from airflow_barrier.coordinator.revisions.recut import check_read, readers_of
from airflow_barrier.protocol.errors import BarrierError, RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Job, Topology

#: How many revisions back a correction is looked for.
_LOOKED_AT = 1000


def changed_jobs(topology: Topology, wanted: Wanted) -> tuple[str, ...]:
    """The jobs to begin with: those that are named, those whose tables or sources are corrected, or all root jobs."""
    for table in wanted.reused:
        _known(topology, table)
    written = (*wanted.tables, *(each.table for each in wanted.corrections))
    named = [topology.job(name).name for name in wanted.changed]
    readers = [job.name for source in wanted.recut for job in readers_of(topology, source)]
    chosen = dict.fromkeys((*named, *(topology.writer(_known(topology, table)).name for table in written), *readers))
    return tuple(chosen) or tuple(job.name for job in topology.jobs if job.externals or not job.inlets)


def _known(topology: Topology, table: str) -> str:
    if table not in topology.tables:
        raise RevisionRefusedError(  # safety: written-table-is-corrected
            f"topology {topology.name}: expected a table that one of its jobs writes, which are "
            f"{', '.join(topology.tables)}, found {table}; correct the name"
        )
    return table


def planned_inputs(
    deployment: Deployment,
    wanted: Wanted,
    jobs: Sequence[Job],
    barriers: Sequence[Barrier],
    recuts: Sequence[PlannedRecut],
) -> tuple[PlannedInput, ...]:
    """Plan the origin of the rows of each root job's epochs. Raises RevisionRefusedError if the rows are gone."""
    found: list[PlannedInput] = []
    for job in jobs:
        corrected = {each.barrier_id for each in wanted.corrections if each.table in job.outlets}
        if not job.externals and not corrected:
            continue
        unknown = corrected - {each.barrier_id for each in barriers}
        if unknown:
            raise RevisionRefusedError(  # safety: corrections-are-replayed
                f"job {job.name}: expected corrections at barriers that are replayed, found one at barrier "
                f"{min(unknown)}; correct its number, or begin earlier"
            )
        _check_whole(job, wanted, barriers)
        check_read(job, wanted, recuts)
        if corrected:
            found.append(PlannedInput(job.name, "correction", tuple(sorted(corrected)), "replaced as its author says"))
        rest = tuple(each.barrier_id for each in barriers if each.barrier_id not in corrected)
        if not rest or not job.externals:
            continue
        if set(job.outlets) <= set(wanted.reused):
            found.append(PlannedInput(job.name, "reused", rest, f"the rows that {', '.join(job.outlets)} got then"))
        else:
            _check_cuts(deployment, job, wanted.mode, [each for each in barriers if each.barrier_id in rest], recuts)
            found += _read(job, rest, recuts)
    return tuple(found)


def _read(job: Job, barriers: Sequence[int], recuts: Sequence[PlannedRecut]) -> list[PlannedInput]:
    """Return the inputs that the job itself reads, of its sources."""
    names = [external.name for external in job.externals]
    own = [each for each in recuts if each.cut.source in names]
    anew = {each.barrier_id for each in own}
    sources = ", ".join(dict.fromkeys(each.cut.source for each in own))
    said = f"{', '.join(names)}, read again up to the stored positions"
    recut = tuple(barrier_id for barrier_id in barriers if barrier_id in anew)
    stored = tuple(barrier_id for barrier_id in barriers if barrier_id not in anew)
    found = (
        PlannedInput(job.name, "recut", recut, f"{said}; {sources} cut anew, as it is now"),
        PlannedInput(job.name, "cut", stored, said),
    )
    return [each for each in found if each.barriers]


def _check_whole(job: Job, wanted: Wanted, barriers: Sequence[Barrier]) -> None:
    """Check that what stands in for a job covers all its tables: its code cannot be run for one table only."""
    corrected = {each.barrier_id for each in wanted.corrections if each.table in job.outlets}
    everywhere = all(barrier.barrier_id in corrected for barrier in barriers)
    for barrier in barriers:
        here = {each.table for each in wanted.corrections if each.barrier_id == barrier.barrier_id}
        said = sorted({*here, *wanted.reused} & set(job.outlets))
        left = sorted(set(job.outlets) - set(said))
        if said and left:
            # what is reused is so at all barriers, at which the corrected table has to keep its rows then, too
            kept = left if everywhere else sorted(job.outlets)
            raise RevisionRefusedError(  # safety: corrections-are-whole
                f"job {job.name}: expected corrections of all tables that it writes, found one of {', '.join(said)} "
                f"and none of {', '.join(left)} at {barrier}; correct that too, or have them keep their rows where "
                f"nothing else is said: --reuse {' --reuse '.join(kept)}"
            )


def undone_corrections(deployment: Deployment, topology: Topology, inputs: Sequence[PlannedInput]) -> tuple[str, ...]:
    """Return a note on each correction that is lost, because its sources are read again and do not have it."""
    newest_first = deployment.meta.revisions.newest(topology.name, _LOOKED_AT)
    lost = []
    for read_again in (each for each in inputs if each.kind in ("cut", "recut")):
        outlets = topology.job(read_again.job).outlets
        for barrier_id, table in ((barrier_id, table) for barrier_id in read_again.barriers for table in outlets):
            stands = next((r for r in newest_first if _decided_rows(r, read_again.job, barrier_id, table)), None)
            if stands is not None and _is_corrected(stands, barrier_id, table):
                lost.append(
                    f"the correction of {table} at barrier {barrier_id} by {stands} is lost, since job "
                    f"{read_again.job} reads its source again: correct the source too, say the correction once more, "
                    f"or keep the rows as they are (--reuse {table})"
                )
    return tuple(lost)


def _decided_rows(revision: Revision, job: str, barrier_id: int, table: str) -> bool:
    """Return True if the revision made the table's epoch what it is, and did not just reapply what there was."""
    return (
        revision.state is RevisionState.COMMIT
        and job in revision.jobs
        and revision.first_barrier <= barrier_id <= (revision.last or 0)
        and (table not in revision.reused or _is_corrected(revision, barrier_id, table))
    )


def _is_corrected(revision: Revision, barrier_id: int, table: str) -> bool:
    return any((each.barrier_id, each.table) == (barrier_id, table) for each in revision.corrections)


def _check_cuts(
    deployment: Deployment,
    job: Job,
    mode: RevisionMode,
    barriers: Sequence[Barrier],
    recuts: Sequence[PlannedRecut],
) -> None:
    """Every cut can be read: as it was, as it was mended, or as it was made anew."""
    for barrier in barriers:
        names = [declared.name for declared in job.externals]
        cuts = deployment.meta.cuts.of(barrier.topology, barrier.barrier_id, items_of=names)
        cuts.update({each.cut.source: each.cut for each in recuts if each.barrier_id == barrier.barrier_id})
        for declared in job.externals:
            source, cut = deployment.source_of(declared), cuts.get(declared.name)
            if cut is None:
                continue
            if mode is RevisionMode.FULL and barrier is barriers[0]:
                cut = whole_cut(deployment, source, barrier.topology, cut, barrier.barrier_id)
            try:
                source.check_held(cut, deployment.tables)
                mended_cut(source, cut)
            except BarrierError as error:
                raise RevisionRefusedError(  # safety: input-is-there
                    f"job {job.name}: expected its source {declared.name} to still hold the epoch of {barrier}, found: "
                    f"{error}. Reuse the rows that its tables got then: --reuse {' --reuse '.join(job.outlets)}"
                ) from error


def code_changed(deployment: Deployment, jobs: Sequence[Job], first: Barrier, head: Barrier) -> tuple[str, ...]:
    """The jobs whose code at the head is not what computed the first barrier, as far as their attempts tell."""
    then, now = (_fingerprints(deployment, barrier) for barrier in (first, head))
    return tuple(job.name for job in jobs if job.name in then and then[job.name] != now.get(job.name, then[job.name]))


def _fingerprints(deployment: Deployment, barrier: Barrier) -> dict[str, str]:
    return {
        attempt.job: attempt.code["fingerprint"]
        for attempt in deployment.meta.attempts.of(barrier.topology, barrier.barrier_id)
        if attempt.state is AttemptState.PROCESSED and "fingerprint" in attempt.code
    }


def planned_tables(
    deployment: Deployment,
    jobs: Sequence[Job],
    committed: Sequence[Barrier],
    predecessor: Barrier,
    joining: Mapping[str, int | None],
) -> tuple[PlannedTable, ...]:
    """Also those that join with a barrier that is still open, or is opened while the revision is under way."""
    meta = deployment.meta
    head = {
        row.table: row.snapshot_id for row in meta.barriers.progress(committed[-1].topology, committed[-1].barrier_id)
    }
    head.update(joining)
    before = {
        row.table: row.snapshot_id for row in meta.barriers.progress(predecessor.topology, predecessor.barrier_id)
    }
    planned = []
    for job in jobs:
        for table in job.outlets:
            at_head, at_base = (_rows(deployment, table, stands.get(table)) for stands in (head, before))
            came = None if at_head is None or at_base is None else at_head - at_base
            planned.append(PlannedTable(table, job.name, job.owner, at_head, came))
    return tuple(planned)


def _rows(deployment: Deployment, table: str, snapshot_id: int | None) -> int | None:
    if snapshot_id is None:
        return 0
    return deployment.tables.row_counts(table, [snapshot_id]).get(snapshot_id)
