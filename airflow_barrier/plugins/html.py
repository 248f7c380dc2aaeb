"""One barrier as a page of HTML: the state of each of its tables, each job's newest attempt, and who reads it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.status import BarrierStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from airflow_barrier.protocol.leases import Lease


def render(status: BarrierStatus, leases: Sequence[Lease] = ()) -> str:
    """The page; all that comes from outside is escaped. ``leases``: who reads the barrier. Times are UTC."""
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
    readers = _rows((lease.holder, _moment(lease.granted_at), _moment(lease.expires_at)) for lease in leases)
    expired = (
        f"<p>Expired {_moment(barrier.expiring_at)}: it cannot be read any more.</p>" if barrier.expiring_at else ""
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(str(barrier))}</title>
<style>body{{font-family:sans-serif;margin:2rem}} td,th{{padding:.2rem 1rem .2rem 0;text-align:left}}</style></head>
<body><h1>{escape(str(barrier))}: {barrier.state.value}</h1>{reason}{expired}
<p>Timestamp from the {escape(barrier.timestamp_origin)}; opened by {escape(barrier.run_key)}.</p>
<table><tr><th>table</th><th>job</th><th>state</th><th>snapshot</th><th></th></tr>{tables}</table>
<h2>Jobs</h2><table><tr><th>job</th><th>newest attempt</th></tr>{jobs}</table>
<h2>Readers</h2><table><tr><th>holder</th><th>since</th><th>until, unless renewed</th></tr>{readers}</table>
</body></html>"""


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def _carried(barrier_id: int | None) -> str:
    return "" if barrier_id is None else f"unchanged since barrier {barrier_id}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
