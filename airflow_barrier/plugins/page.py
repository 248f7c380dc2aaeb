"""Where Airflow's API server serves the pages of barriers and revisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from airflow_barrier.coordinator.status import barrier_status, revision_status
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.plugins.html import render, render_revision
from airflow_barrier.protocol.errors import BarrierError, Retryable

# Airflow mounts a plugin's application without any authentication of its own.
app = FastAPI(
    title="Barriers",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


@app.get("/{conn_id}/{topology}/revision/{number}", response_class=HTMLResponse)
def revision_page(conn_id: str, topology: str, number: int) -> str:
    """Served in a thread, as the other one."""
    with _in_http():
        return render_revision(revision_status(BarrierHook(conn_id).get_meta_service(), topology, number))


@app.get("/{conn_id}/{topology}/{barrier_id}", response_class=HTMLResponse)
def barrier_page(conn_id: str, topology: str, barrier_id: int) -> str:
    """Served in a thread, since the MetaService is asked synchronously."""
    with _in_http():
        meta = BarrierHook(conn_id).get_meta_service()
        return render(barrier_status(meta, meta.barrier(topology, barrier_id)), meta.leases(topology, barrier_id))


@contextmanager
def _in_http() -> Iterator[None]:
    try:
        yield
    except Retryable as error:
        raise HTTPException(503, str(error)) from error
    except BarrierError as error:
        raise HTTPException(404, str(error)) from error
