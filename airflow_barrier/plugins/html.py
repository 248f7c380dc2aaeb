"""Pages of HTML: one barrier with its tables, jobs and readers; one revision with its barriers and runs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.status import BarrierStatus, RevisionStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from airflow_barrier.protocol.leases import Lease


def render(status: BarrierStatus, leases: Sequence[Lease] = (), *, hidden: int = 0) -> str:
    """The page; all that comes from outside is escaped. ``leases``: who reads the barrier. Times are UTC.

    ``hidden``: of how many DAGs nothing is shown, since the user may not read them.
    """
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
    head = "<tr><th>holder</th><th>since</th><th>until, unless renewed</th></tr>"
    held = "" if hidden else f"<h2>Readers</h2><table>{head}{readers}</table>"
    expired = (
        f"<p>Expired {_moment(barrier.expiring_at)}: it cannot be read any more.</p>" if barrier.expiring_at else ""
    )
    revised = f"<p>As revision {barrier.computed_in} computed it.</p>" if barrier.computed_in else ""
    another = f"{barrier.timestamp_from}; opened by a run of another DAG"
    opening = another if hidden else barrier.opening
    return f"""{_head(str(barrier))}
<body><h1>{escape(str(barrier))}: {barrier.state.value}</h1>{reason}{expired}{revised}
<p>Timestamp from the {escape(opening)}.</p>{_hidden(hidden)}
<table><tr><th>table</th><th>job</th><th>state</th><th>snapshot</th><th></th></tr>{tables}</table>
<h2>Jobs</h2><table><tr><th>job</th><th>newest attempt</th></tr>{jobs}</table>
{held}
</body></html>"""


def render_revision(status: RevisionStatus, *, hidden: int = 0) -> str:
    """The page of a revision: why it is, how far its barriers are, which runs compute them. Times are UTC.

    ``hidden``: as in :func:`render`.
    """
    revision = status.revision
    barriers = _rows(
        (
            str(each.barrier.barrier_id),
            f"{each.barrier.timestamp:%Y-%m-%d %H:%M:%S}",
            each.barrier.state.value,
            "; ".join(f"{job.job}: {job.summary}" for job in each.jobs),
        )
        for each in status.barriers
    )
    runs = _rows(
        (str(run.barrier_id) if run.barrier_id else "afterwards", run.dag_id, run.run_id, _arrived(run.arrived_at))
        for run in status.runs
    )
    missing = "".join(f"<li>{escape(each)}</li>" for each in status.missing)
    actor = "somebody" if hidden else revision.actor
    lacking = "" if hidden else f"<h2>Missing</h2><ul>{missing}</ul>"
    gate = "<p>No barrier opens until it is published.</p>" if revision.gated and revision.is_under_way else ""
    return f"""{_head(str(revision))}
<body><h1>{escape(str(revision))}: {revision.state.value}</h1>
<p>{escape(revision.reason or "")} (begun {_moment(revision.created_at)} by {escape(actor)})</p>
<p>{revision.mode.value}, from barrier {revision.first_barrier} on, asked for up to {revision.window_end};
tables {escape(", ".join(revision.tables))}.</p>{gate}{_hidden(hidden)}
<h2>Barriers</h2><table><tr><th>barrier</th><th>timestamp</th><th>state</th><th>jobs</th></tr>{barriers}</table>
{lacking}
<h2>Runs</h2><table><tr><th>barrier</th><th>DAG</th><th>run</th><th>came</th></tr>{runs}</table>
</body></html>"""


def _hidden(dags: int) -> str:
    return f"<p>Of {dags} more DAGs, which you may not read, nothing is shown.</p>" if dags else ""


def _head(title: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<style>body{{font-family:sans-serif;margin:2rem}} td,th{{padding:.2rem 1rem .2rem 0;text-align:left}}</style></head>"""


def _arrived(time: datetime | None) -> str:
    return "woken" if time is None else _moment(time)


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def _carried(barrier_id: int | None) -> str:
    return "" if barrier_id is None else f"unchanged since barrier {barrier_id}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
