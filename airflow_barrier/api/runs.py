"""What a run of a DAG is about: the barriers that it opened or worked for, and the revisions that it was part of."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path

from airflow_barrier.api import models
from airflow_barrier.api.access import Access, Told, not_found, told_in_http
from airflow_barrier.api.sight import AccessDep, known_topologies, seen
from airflow_barrier.metaservice.overviews import OfRun, Overviews
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.names import one_line

#: Of Airflow's ids.
_LONGEST_ID = 250
_Id = Annotated[str, Path(min_length=1, max_length=_LONGEST_ID)]
router = APIRouter(route_class=Told)


@router.get(
    "/v1/dags/{dag_id}/runs/{run_id}",
    operation_id="run",
    summary="The barriers and revisions that a run of a DAG is about, in all deployments",
)
def run(access: AccessDep, dag_id: _Id, run_id: _Id) -> models.Run:
    """A deployment whose MetaService does not answer is left out; if no other does, that is a 503."""
    # a host is asked about what can be the id of a DAG only
    if one_line(dag_id) != dag_id or not access.readable([dag_id]):
        raise not_found()
    found: list[models.Run] = []
    failed = None
    for deployment in access.deployments():
        try:
            found.append(_in_deployment(access, deployment, dag_id, run_id))
        except BarrierError as error:
            failed = told_in_http(error)
    if not found and isinstance(failed, HTTPException) and failed.status_code == 503:
        raise failed
    return models.Run(
        barriers=[barrier for each in found for barrier in each.barriers],
        revisions=[revision for each in found for revision in each.revisions],
    )


def _in_deployment(access: Access, deployment: str, dag_id: str, run_id: str) -> models.Run:
    meta = access.meta_service(deployment)
    topologies = seen(access, known_topologies(meta)).keys()
    if not topologies:
        return models.Run(barriers=[], revisions=[])
    return meta.overviews.together(lambda rows: _told(rows, deployment, rows.of_run(topologies, dag_id, run_id)))


def _told(rows: Overviews, deployment: str, found: OfRun) -> models.Run:
    opened = set(found.opened)
    tasks: dict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)
    for topology, line, barrier_id, job, task in found.asked:
        if line <= 0:  # it stands, or did until a revision replaced it
            tasks[topology, barrier_id].add((job, task))
    barriers = []
    for name in sorted({topology for topology, _ in opened | tasks.keys()}):
        numbers = [barrier_id for topology, barrier_id in opened | tasks.keys() if topology == name]
        for each in reversed(rows.at(name, numbers)):
            here = name, each.barrier_id
            barriers.append(
                models.RunBarrier.of(
                    each,
                    deployment=deployment,
                    opened=here in opened,
                    tasks=[_task(job, task) for job, task in sorted(tasks[here])],
                )
            )
    return models.Run(
        barriers=barriers,
        revisions=[
            models.RunRevision(
                deployment=deployment, topology=topology, revision=revision, barrier_id=barrier_id or None
            )
            for topology, revision, barrier_id in found.revised
        ],
    )


def _task(job: str, task: str) -> models.RunTask:
    task_id, _, map_index = task.partition("/")
    return models.RunTask(task_id=task_id, map_index=int(map_index), job=job)
