"""What an attempt of a revision runs instead of its job, where its author said so."""

from __future__ import annotations

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.codec import decode
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.topology import Job
from airflow_barrier.spark.corrections import CorrectBySql, Correction, ReuseRows


def corrections_of(deployment: Deployment, attempt: Attempt, job: Job, by_branch: bool) -> tuple[Correction, ...]:
    """The corrections of ``attempt``, in the order in which they run; none: the job runs.

    Raises RevisionRefusedError for a job whose code nothing can stand in for: one that knows nothing of its epoch, or
    that writes other tables too.
    """
    if not attempt.line:
        return ()
    revision = deployment.meta.revisions.get(attempt.topology, attempt.line)
    said = {
        each.table: decode(Correction, each.correction)
        for each in revision.corrections
        if each.barrier_id == attempt.barrier_id and each.table in job.outlets
    }
    reused = [table for table in job.outlets if table in revision.reused and table not in said]
    if not said and not reused:
        return ()
    others = sorted(set(job.outlets) - {*said, *reused})
    if by_branch or others:
        found = f"it writes {', '.join(others)} too" if others else "its code knows nothing of its epoch"
        raise RevisionRefusedError(  # safety: stands-in-for-a-whole-job
            f"{attempt}: expected a job whose work can be replaced, that is a SparkEpochOperator with corrections of "
            f"all its tables, found that {found}; correct its source instead and let the job read it again, or say "
            "corrections for all its tables"
        )
    found_corrections: list[Correction] = []
    for table in sorted(job.outlets):
        correction = said.get(table)
        old_epoch = _old_epoch(deployment, attempt, table)
        if correction is None:
            found_corrections.append(old_epoch)
        elif isinstance(correction, CorrectBySql) and attempt.bases[table] != old_epoch.end:
            # a statement changes what the epoch brought, on top of what was revised before it
            found_corrections += [old_epoch, correction]
        else:
            found_corrections.append(correction)
    return tuple(found_corrections)


def _old_epoch(deployment: Deployment, attempt: Attempt, table: str) -> ReuseRows:
    """Return the table's epoch as it is in the revision that stands."""
    meta = deployment.meta
    barrier = meta.barriers.get(attempt.topology, attempt.barrier_id)
    before, here = (
        {row.table: row.snapshot_id for row in meta.barriers.progress(attempt.topology, number)}
        for number in (barrier.predecessor or 0, attempt.barrier_id)
    )
    if table not in before:
        before[table] = next(
            (r.snapshot_id for r in meta.barriers.progress(attempt.topology, 0) if r.table == table), None
        )
    return ReuseRows(table, before[table], here[table])
