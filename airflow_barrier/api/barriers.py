"""Barriers: the list of them, and all about one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_barrier.api import models, offers
from airflow_barrier.api.access import BarrierId, BeforeBarrier, Told
from airflow_barrier.api.cells import Cell, States, cell_of, seen_tables, states_at
from airflow_barrier.api.sight import Sight, SightDep, owners
from airflow_barrier.api.summaries import barrier_of, failed_of, late_of, task_of
from airflow_barrier.api.waits import again_at, explained
from airflow_barrier.coordinator.lateness import Standing, standings
from airflow_barrier.metaservice.overviews import Overviews, TableAt
from airflow_barrier.protocol.deliveries import DeliveryRecord
from airflow_barrier.protocol.health import health_of
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import NO_RUN, AttemptProgress, Barrier, Cut
from airflow_barrier.protocol.topology import Job

#: Characters of a position that are told.
_LONGEST_POSITION = 500

router = APIRouter(route_class=Told)


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/barriers",
    operation_id="barriers",
    summary="Barriers, the newest first",
)
def barriers(
    sight: SightDep, before: BeforeBarrier = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> models.Barriers:
    found = sight.meta.overviews.before(sight.name, before, limit + 1)
    return barriers_of(sight, found, limit)


def barriers_of(sight: Sight, found: Sequence[Barrier], limit: int) -> models.Barriers:
    """The first ``limit`` of those that were found; if there are more, they come next."""
    page = found[:limit]
    # others' reasons are not told: of most barriers there is none to tell
    topologies = sight.versions({each.topology_version for each in page if each.reason})
    whole = {number for number, topology in topologies.items() if sight.sees_all(owners(topology.jobs))}
    return models.Barriers(
        barriers=[barrier_of(each, whole=each.topology_version in whole) for each in page],
        before=page[-1].barrier_id if len(found) > limit else None,
    )


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/barriers/{barrier_id}",
    operation_id="barrier",
    summary="One barrier: its tables, attempts, cuts and deliveries",
)
def barrier(sight: SightDep, barrier_id: BarrierId) -> models.BarrierDetail:
    meta = sight.meta
    found = meta.barriers.get(sight.name, barrier_id)
    topology = sight.versions({found.topology_version})[found.topology_version]
    sight.ask({found.run.dag_id} if found.run != NO_RUN else ())
    column = seen_tables(sight, found, topology)
    mine = sight.tables
    seen_jobs = {job.name: job for job in sight.jobs(topology)}
    sources = {source.name for job in seen_jobs.values() for source in job.externals}
    sinks = [each.name for each in meta.deliveries.of(sight.name) if sight.sees(each.owner)]

    def look(rows: Overviews) -> tuple[States, Standing, list[TableAt], list[AttemptProgress], list[DeliveryRecord]]:
        tables, attempts = rows.tables_at(sight.name, barrier_id), rows.attempts(sight.name, barrier_id)
        states = states_at(rows, sight.name, barrier_id, tables, attempts)
        standing = standings(rows, {sight.name: None})[sight.name].at(barrier_id)
        return states, standing, tables, attempts, rows.deliveries(sight.name, barrier_id, sinks)

    states, standing, progress, attempts, deliveries = meta.overviews.together(look)
    states = states.explained(sight)
    actions = offers.of_barrier(sight, found)
    (found,) = states.barriers
    rows = {row.table: row for row in progress}
    cuts = meta.cuts.of(sight.name, barrier_id, items_of=())
    run = found.run if found.run != NO_RUN and sight.sees(found.run.dag_id) else None
    whole = sight.sees_all(owners(topology.jobs))
    dags = owners(seen_jobs.values())
    failed, is_late = failed_of(standing.failed, dags), bool(late_of(standing.late, dags))
    waits = sight.waits_of((*standing.late, *standing.expected))
    late = explained(standing, waits)
    return models.BarrierDetail.of(
        barrier_of(found, whole=whole),
        topology=sight.name,
        tag=found.tag,
        opening=found.opening if run is not None else found.timestamp_from,
        expiring_at=found.expiring_at,
        dag_id=None if run is None else run.dag_id,
        run_id=None if run is None else run.run_id,
        health=health_of([found.state], again_at(failed, late, waits), late=is_late, sink_fails=False),
        failed=failed,
        late=late_of(late, dags),
        tables=[
            _table(sight, cell_of(sight, states, found, table, job), rows.get(table))
            for table, job in sorted(column.items())
        ],
        attempts=[_attempt(sight, each, seen_jobs[each.job], mine) for each in attempts if each.job in seen_jobs],
        cuts=[_cut(cut) for name, cut in sorted(cuts.items()) if name in sources],
        deliveries=[models.Delivery.of(each) for each in deliveries],
        actions=actions,
        hidden_dags=sight.hidden(owners(topology.jobs)),
    )


def _table(sight: Sight, cell: Cell, row: TableAt | None) -> models.TableAtBarrier:
    """``row`` None: it was trimmed. A table may be seen whose job, a compaction, is not."""
    job = cell.job if cell.job is not None and sight.sees(cell.job.owner) else None
    return models.TableAtBarrier(
        table=cell.table,
        job=None if job is None else job.name,
        dag=None if job is None else job.owner,
        state=cell.state,
        snapshot_id=None if row is None or row.snapshot_id is None else str(row.snapshot_id),
        unchanged_since=None if row is None else row.carried_from,
        processed_at=None if row is None else row.processed_at,
        written_at=None if row is None else row.written_at,
        waits=None if cell.wait is None else cell.wait.summary,
    )


def _attempt(sight: Sight, attempt: AttemptProgress, job: Job, tables: Collection[str]) -> models.Attempt:
    task = task_of(attempt.request_key)
    return models.Attempt.of(
        attempt,
        dag=job.owner,
        waits_for=sight.waits(attempt, tables),
        reason=sight.reason(attempt),
        task=task if task is not None and sight.sees(task.dag_id) else None,
    )


def _cut(cut: Cut) -> models.Cut:
    put_off = cut.put_off
    said = "" if put_off is not None else cut.words or json.dumps(cut.end, ensure_ascii=False, default=str)
    return models.Cut(source=cut.source, summary=one_line(said)[:_LONGEST_POSITION], put_off=put_off)
