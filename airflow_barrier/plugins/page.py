"""Where Airflow's API server serves the pages of barriers and revisions.

A page shows of a job, and of the tables that it writes, what is there if the user may read its DAG.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.models.dag import DagModel
from airflow.sdk.exceptions import AirflowException
from fastapi import Depends, FastAPI, HTTPException, Path
from fastapi.responses import FileResponse, HTMLResponse
from starlette.requests import Request

from airflow_barrier.coordinator.status import BarrierStatus, RevisionStatus, barrier_status, revision_status
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.plugins.bundle import BUNDLE, ROUTE, VERSION
from airflow_barrier.plugins.html import render, render_revision
from airflow_barrier.protocol.errors import BarrierError, Retryable
from airflow_barrier.protocol.records import NO_RUN
from airflow_barrier.protocol.topology import Job

log = logging.getLogger(__name__)

#: Says nothing of what there is: not even which connections and topologies.
_NOT_FOUND = "expected a barrier or a revision of jobs whose DAGs you may read, found none"
_UNAVAILABLE = "the MetaService cannot be asked just now; the log of the API server says why. Try again"
# what a database can count to
_Number = Annotated[int, Path(ge=0, lt=2**63)]

# Airflow mounts a plugin's application without any authentication of its own.
app = FastAPI(title="Barriers", dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)


def bundle(request: Request) -> FileResponse:
    """The page of Airflow's UI: the same for everybody, and it says nothing, so nobody is asked who they are.

    While an upgrade is rolled out the URL of another version may come here: what it gets is not to be kept.
    """
    is_this = request.query_params.get("v") == VERSION
    kept = "public, max-age=31536000, immutable" if is_this else "no-cache"
    return FileResponse(BUNDLE, media_type="text/javascript", headers={"Cache-Control": kept})


# not one of FastAPI's routes: those have the dependencies above
app.add_route(ROUTE, bundle)


@app.get("/{conn_id}/{topology}/revision/{number}", response_class=HTMLResponse)
def revision_page(conn_id: str, topology: str, number: _Number, user: GetUserDep) -> str:
    """Served in a thread, as the other one."""
    with _in_http():
        meta, dags = _visible(conn_id, topology, user)
        status = revision_status(meta, topology, number)
        jobs = meta.topologies.get(topology).jobs
        asked = {job.owner for job in jobs if job.name in status.revision.jobs} | {run.dag_id for run in status.runs}
        dags |= _readable(asked - dags, user)
        if asked <= dags:
            return render_revision(status)
        return render_revision(_revision_of(status, jobs, dags), hidden=len(asked - dags))


@app.get("/{conn_id}/{topology}/{barrier_id}", response_class=HTMLResponse)
def barrier_page(conn_id: str, topology: str, barrier_id: _Number, user: GetUserDep) -> str:
    """Served in a thread, since the MetaService is asked synchronously."""
    with _in_http():
        meta, dags = _visible(conn_id, topology, user)
        barrier = meta.barriers.get(topology, barrier_id)
        jobs = meta.topologies.get(topology, barrier.topology_version).jobs
        asked = {job.owner for job in jobs}
        dags |= _readable(asked - dags, user)
        status = barrier_status(meta, barrier)
        if asked <= dags:
            return render(status, meta.leases.of(topology, barrier_id))
        return render(_barrier_of(status, _of(jobs, dags)), hidden=len(asked - dags))


def _visible(conn_id: str, topology: str, user: BaseUser) -> tuple[MetaService, set[str]]:
    """The MetaService, and which of the topology's DAGs the user may read: asked before any number is looked up."""
    meta = BarrierHook(conn_id).get_meta_service()
    dags = _readable({job.owner for job in meta.topologies.get(topology).jobs}, user)
    if not dags:
        raise HTTPException(404, _NOT_FOUND)
    return meta, dags


def _readable(dag_ids: Iterable[str], user: BaseUser) -> set[str]:
    asked = list(dag_ids)
    teams = DagModel.get_dag_id_to_team_name_mapping(asked)

    def may_read(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return get_auth_manager().is_authorized_dag(method="GET", details=details, user=user)

    return set(filter(may_read, asked))


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


@contextmanager
def _in_http() -> Iterator[None]:
    """Errors for whoever may be no more than logged in: the log of the API server has their text."""
    try:
        yield
    except Retryable as error:
        log.warning("%s", error)
        raise HTTPException(503, _UNAVAILABLE) from error
    except (BarrierError, AirflowException) as error:  # Airflow's: there is no such connection
        log.info("%s", error)
        raise HTTPException(404, _NOT_FOUND) from error
