"""What somebody should be told of a topology: what is late, blocked, aborted, not delivered, or revised, and when.

Nothing is remembered here: each signal has one moment, and who looks at intervals that tile the time gets each once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from airflow_barrier.coordinator.lateness import patience, standings
from airflow_barrier.coordinator.status import SinkStatus, sink_statuses
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.metaservice.rows import STANDING
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkState
from airflow_barrier.protocol.records import AuditEntry
from airflow_barrier.protocol.signals import KINDS, Signal, SignalKind
from airflow_barrier.protocol.spans import short
from airflow_barrier.protocol.states import BarrierState

#: A transaction writes down when something happened, and is seen once it has ended: an interval is to end this long
#: before it is looked at.
SETTLED = timedelta(minutes=1)

_BLOCKED, _ABORTED = ("barrier", "blocked"), ("barrier", "aborted")
_FAILED, _REVISED = ("sink", "failed"), ("revision", "commit")
#: Which entries of the audit are of a kind.
_EVENTS: Mapping[SignalKind, tuple[str, str]] = {
    "blocked": _BLOCKED,
    "aborted": _ABORTED,
    "delivery_failing": _FAILED,
    "revised": _REVISED,
}


def signals(
    meta: MetaService, topology: str, since: datetime, until: datetime, on: Collection[SignalKind] = KINDS
) -> tuple[Signal, ...]:
    """Return the signals of the kinds ``on`` from ``since`` on and before ``until``, the oldest first.

    What was late, or not delivered, and came before anybody looked is not told. Raises UnknownTopologyError.
    """
    found: list[Signal] = []
    if not {"failed", "late"}.isdisjoint(on):
        found += [each for each in meta.overviews.together(lambda rows: _standing(rows, topology)) if each.kind in on]
    sinks = sink_statuses(meta, topology) if "delivery_failing" in on else ()
    for sink in sinks:
        found += _behind(meta, sink)
    events = [event for kind, event in _EVENTS.items() if kind in on]
    happened = meta.audit.between(topology, since, until, events) if events else []
    found += _happened(meta, topology, happened, {each.sink.name: each.sink.owner for each in sinks})
    told = [each for each in found if since <= each.at < until]
    return tuple(sorted(told, key=lambda each: (each.at, each.kind, each.barrier_id or 0, each.summary)))


# --- what is so now -----------------------------------------------------------------------------------


def _standing(rows: Overviews, topology: str) -> list[Signal]:
    freshness = rows.topology(topology, rows.version(topology)).freshness
    standing = standings(rows, {topology: freshness})[topology]
    blocked = {
        each.barrier.barrier_id for each in standing.in_flight if each.barrier.state is BarrierState.BLOCKED
    }  # a signal of another kind
    failed = [
        Signal("failed", topology, each.barrier_id, each.at, each.dag, f"{each.summary}: {each.reason}")
        for each in standing.failed
        if each.again_at is None
    ]
    late = [
        Signal("late", topology, late.barrier_id, late.at, late.dag, late.summary)
        for late in standing.late
        if late.barrier_id not in blocked
    ]
    return [*failed, *late]


def _behind(meta: MetaService, status: SinkStatus) -> list[Signal]:
    """A sink that lacks barriers for longer than its deliveries take as a rule, or than they are held for it."""
    sink, since = status.sink, status.since
    if since is None:
        return []
    lacks = f"{sink} lacks {status.lacks} committed barrier{'s' if status.lacks > 1 else ''}"
    moments = []
    if sink.state is not SinkState.PAUSED:  # a person has stopped it, and knows
        usual = patience(meta.deliveries.took(sink.topology, sink.name, until=since))
        moments.append((since + usual, f"{lacks}, for longer than the {short(usual)} that a delivery may take"))
    if sink.position is not None:
        held = timedelta(seconds=sink.hold_seconds)
        moments.append(
            (since + held, f"{lacks}, for longer than the {short(held)} that they are held for it: they may expire")
        )
    return [Signal("delivery_failing", sink.topology, None, at, sink.owner, said) for at, said in moments]


# --- what has happened --------------------------------------------------------------------------------


def _happened(
    meta: MetaService, topology: str, entries: Iterable[AuditEntry], owners: Mapping[str, str]
) -> list[Signal]:
    """``owners``: of each sink the DAG that delivers to it."""
    told = [each for each in entries if _counts(each)]
    numbers = {each.barrier_id for each in told if each.barrier_id is not None}
    dags: dict[int | None, str | None] = {
        each.barrier_id: each.run.dag_id or None for each in meta.overviews.at(topology, sorted(numbers))
    }
    found = []
    for each in told:
        what, reason = (each.kind, each.event), each.detail.get("reason")
        if what == _FAILED:
            summary = f"sink {each.subject} of {topology} fails: {each.detail['error']}"
            found.append(Signal("delivery_failing", topology, None, each.at, owners.get(each.subject), summary))
        elif what == _REVISED:
            revision = meta.revisions.get(topology, each.revision)
            tables = ", ".join(revision.tables[:3])
            more = f" and {len(revision.tables) - 3} more" if len(revision.tables) > 3 else ""
            summary = (
                f"revision {each.revision} is published: readers have {tables}{more} computed again from barrier "
                f"{revision.first_barrier} on: {revision.reason}"
            )
            found.append(Signal("revised", topology, revision.first_barrier, each.at, None, summary))
        elif what == _BLOCKED:
            summary = f"barrier {each.barrier_id} is BLOCKED: {reason}"
            found.append(Signal("blocked", topology, each.barrier_id, each.at, dags.get(each.barrier_id), summary))
        else:
            summary = f"barrier {each.barrier_id} was aborted by {each.actor}: {reason}"
            found.append(Signal("aborted", topology, each.barrier_id, each.at, dags.get(each.barrier_id), summary))
    return found


def _counts(entry: AuditEntry) -> bool:
    """Return True if the entry is told. Of a delivery that fails repeatedly only the first failure is; of a revision's
    barriers none, since nobody reads them.
    """
    if (entry.kind, entry.event) == _FAILED:
        return bool(entry.detail["failures"] == 1)
    return entry.kind == "revision" or entry.revision == STANDING
