"""A table's epoch that a person stages in a revision, where no job and no file has the rows."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.replaying import left_to_a_person
from airflow_barrier.coordinator.staging import Ready, Waiting, begin, close, give_up
from airflow_barrier.protocol.errors import NotProcessedError, RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import BY_HAND, Revision
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec


def stage_by_hand(
    deployment: Deployment,
    revision: Revision,
    barrier_id: int,
    table: str,
    run: Callable[[EpochSpec], ClosingRecord],
    *,
    actor: str,
) -> Barrier:
    """Stage what a person has in place of a table's epoch, such as a DataFrame in a notebook.

    The plan said so: ``TableCorrection(barrier_id, table, {"kind": "by hand"})``; the task of the table's job waits for
    it. ``run`` is given the attempt's epoch spec, for :func:`~airflow_barrier.spark.driver.run_corrections`. Doing it
    again stages anew. Raises RevisionRefusedError if the plan did not say so, NotProcessedError while what the table
    builds on is not there yet, and what :func:`~airflow_barrier.coordinator.staging.close` does.

        stage_by_hand(deployment, revision, 5, "shop.shopping", actor="me",
                      run=lambda spec: run_corrections(spark, spec, ReplaceByFrame("shop.shopping", mended)))
    """
    barrier = deployment.meta.barrier(revision.topology, barrier_id, revision.revision)
    job = deployment.meta.topology(barrier.topology, barrier.topology_version).writer(table)
    if table not in left_to_a_person(revision, barrier_id, job):
        raise RevisionRefusedError(  # safety: by-hand-as-planned
            f"{barrier}: expected that {table} was left to a person in the plan, found that it is not; plan a revision "
            f"that says so: TableCorrection({barrier_id}, {table!r}, {{'kind': {BY_HAND!r}}})"
        )
    key = f"by hand/{uuid4().hex}"
    step = begin(deployment, barrier, job.name, request_key=key, generation=key, actor=actor)
    if not isinstance(step, Ready):
        needs = step.reason if isinstance(step, Waiting) else "nothing"
        give_up(deployment, step.attempt.attempt_id, reason="its input was not there", actor=actor)
        raise NotProcessedError(  # safety: by-hand-on-its-input
            f"{step.attempt}: expected its input, found that it waits for {needs}; try again then"
        )
    try:
        record = run(step.spec)
    except BaseException as error:
        give_up(deployment, step.attempt.attempt_id, reason=type(error).__name__, actor=actor)
        raise
    return close(deployment, step.attempt.attempt_id, actor=actor, record=record)
