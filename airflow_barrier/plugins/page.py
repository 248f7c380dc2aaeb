"""The page of one barrier: the state of each of its tables and of each job's newest attempt."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from airflow_barrier.coordinator.status import BarrierStatus, barrier_status
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.errors import BarrierError, Retryable

if TYPE_CHECKING:
    from collections.abc import Iterable

# Airflow mounts a plugin's application without any authentication of its own.
app = FastAPI(
    title="Barriers",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


@app.get("/{conn_id}/{topology}/{barrier_id}", response_class=HTMLResponse)
def barrier_page(conn_id: str, topology: str, barrier_id: int) -> str:
    """Served in a thread, since the MetaService is asked synchronously."""
    try:
        meta = BarrierHook(conn_id).get_meta_service()
        return render(barrier_status(meta, meta.barrier(topology, barrier_id)))
    except Retryable as error:
        raise HTTPException(503, str(error)) from error
    except BarrierError as error:
        raise HTTPException(404, str(error)) from error


def render(status: BarrierStatus) -> str:
    """The page; all that comes from outside is escaped."""
    barrier = status.barrier
    reason = f"<p>{escape(barrier.reason)}</p>" if barrier.reason else ""
    tables = _rows(
        (
            p.table,
            p.job or "",
            p.state.value,
            "" if p.snapshot_id is None else str(p.snapshot_id),
            _carried(p.carried_from),
        )
        for p in status.tables
    )
    jobs = _rows((job.job, job.summary) for job in status.jobs)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(str(barrier))}</title>
<style>body{{font-family:sans-serif;margin:2rem}} td,th{{padding:.2rem 1rem .2rem 0;text-align:left}}</style></head>
<body><h1>{escape(str(barrier))}: {barrier.state.value}</h1>{reason}
<p>Timestamp from the {escape(barrier.timestamp_origin)}; opened by {escape(barrier.run_key)}.</p>
<table><tr><th>table</th><th>job</th><th>state</th><th>snapshot</th><th></th></tr>{tables}</table>
<h2>Jobs</h2><table><tr><th>job</th><th>newest attempt</th></tr>{jobs}</table></body></html>"""


def _carried(barrier_id: int | None) -> str:
    return "" if barrier_id is None else f"unchanged since barrier {barrier_id}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
