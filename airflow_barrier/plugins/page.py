"""Where Airflow's API server serves the pages of barriers and revisions.

A page shows of a job, and of the tables that it writes, what is there if the user may read its DAG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from starlette.requests import Request

from airflow_barrier.api.access import BarrierId, RevisionNumber, Told, not_found
from airflow_barrier.api.app import create_api
from airflow_barrier.coordinator.status import BarrierStatus, RevisionStatus, barrier_status, revision_status
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.plugins.access import AirflowAccess, airflow_access
from airflow_barrier.plugins.bundle import BUNDLE, ROUTE, VERSION
from airflow_barrier.plugins.html import render, render_revision
from airflow_barrier.protocol.records import NO_RUN
from airflow_barrier.protocol.topology import Job

_AccessDep = Annotated[AirflowAccess, Depends(airflow_access)]

# Airflow mounts a plugin's application without any authentication of its own.
app = FastAPI(title="Barriers", dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)
_pages = APIRouter(route_class=Told)


def bundle(request: Request) -> FileResponse:
    """The page of Airflow's UI: the same for everybody, and it says nothing, so nobody is asked who they are.

    While an upgrade is rolled out the URL of another version may come here: what it gets is not to be kept.
    """
    is_this = request.query_params.get("v") == VERSION
    kept = "public, max-age=31536000, immutable" if is_this else "no-cache"
    return FileResponse(BUNDLE, media_type="text/javascript", headers={"Cache-Control": kept})


# not one of FastAPI's routes: those have the dependencies above
app.add_route(ROUTE, bundle)


@_pages.get("/{conn_id}/{topology}/revision/{number}", response_class=HTMLResponse)
def revision_page(conn_id: str, topology: str, number: RevisionNumber, access: _AccessDep) -> str:
    """Served in a thread, as the other one."""
    meta, dags = _visible(conn_id, topology, access)
    status = revision_status(meta, topology, number)
    jobs = meta.topologies.get(topology).jobs
    asked = {job.owner for job in jobs if job.name in status.revision.jobs} | {run.dag_id for run in status.runs}
    dags |= access.readable(asked - dags)
    if asked <= dags:
        return render_revision(status)
    return render_revision(_revision_of(status, jobs, dags), hidden=len(asked - dags))


@_pages.get("/{conn_id}/{topology}/{barrier_id}", response_class=HTMLResponse)
def barrier_page(conn_id: str, topology: str, barrier_id: BarrierId, access: _AccessDep) -> str:
    """Served in a thread, since the MetaService is asked synchronously."""
    meta, dags = _visible(conn_id, topology, access)
    barrier = meta.barriers.get(topology, barrier_id)
    jobs = meta.topologies.get(topology, barrier.topology_version).jobs
    asked = {job.owner for job in jobs}
    dags |= access.readable(asked - dags)
    status = barrier_status(meta, barrier)
    if asked <= dags:
        return render(status, meta.leases.of(topology, barrier_id))
    return render(_barrier_of(status, _of(jobs, dags)), hidden=len(asked - dags))


def _visible(conn_id: str, topology: str, access: AirflowAccess) -> tuple[MetaService, set[str]]:
    """The MetaService, and which of the topology's DAGs the user may read: asked before any number is looked up."""
    meta = access.meta_service(conn_id)
    dags = access.readable({job.owner for job in meta.topologies.get(topology).jobs})
    if not dags:
        raise not_found()
    return meta, dags


def _of(jobs: Sequence[Job], dags: set[str]) -> set[str]:
    return {job.name for job in jobs if job.owner in dags}


def _barrier_of(status: BarrierStatus, jobs: set[str]) -> BarrierStatus:
    """Of a barrier what concerns these jobs. Its reason may be the error of another one."""
    return BarrierStatus(
        replace(status.barrier, reason=None, run=NO_RUN),
        tuple(table for table in status.tables if table.job in jobs),
        tuple(job for job in status.jobs if job.job in jobs),
    )


def _revision_of(status: RevisionStatus, jobs: Sequence[Job], dags: set[str]) -> RevisionStatus:
    mine = _of(jobs, dags)
    tables = {table for job in jobs if job.name in mine for table in job.outlets}
    revision = status.revision
    return RevisionStatus(
        replace(revision, reason=None, tables=tuple(table for table in revision.tables if table in tables)),
        tuple(_barrier_of(barrier, mine) for barrier in status.barriers),
        tuple(run for run in status.runs if run.dag_id in dags),
        missing=(),
    )


# before the pages, whose paths have any first part
app.include_router(create_api(airflow_access))
app.include_router(_pages)
