"""Numbers about topologies as they are now, for whoever keeps numbers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_barrier.coordinator.lateness import LOOKED_BACK, overdue, readable_of
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.metaservice.store import MetaService


class Measure(NamedTuple):
    name: str
    value: float
    tags: Mapping[str, str]


def measures(meta: MetaService, topologies: Sequence[str]) -> list[Measure]:
    """Of each topology its age, and how much of it is open, late, waiting and not delivered. One that nobody has
    registered has none; before the first commit there is no age.
    """
    return [
        *meta.overviews.together(lambda rows: _standing(rows, topologies)),
        *(
            Measure("barrier.sinks_behind", lacks, {"topology": name, "sink": sink})
            for name in topologies
            for sink, (lacks, _) in meta.deliveries.lags(name).items()
        ),
    ]


def _standing(rows: Overviews, topologies: Sequence[str]) -> list[Measure]:
    known = {each.name: each.freshness for each in rows.known() if each.name in topologies}
    names = list(known)
    recent, in_flight, now = rows.recent(names, LOOKED_BACK), rows.in_flight(names), rows.now()
    late, waiting = overdue(rows, recent, in_flight, known), rows.requested(names)
    found = []
    for name in names:
        readable = readable_of(rows, name, recent[name])
        values = {
            "barrier.age_seconds": None if readable is None else (now - readable.timestamp).total_seconds(),
            "barrier.open": len(in_flight[name]),
            "barrier.late": len(late[name]),
            "barrier.waiting_tasks": waiting[name],
        }
        found += [Measure(what, value, {"topology": name}) for what, value in values.items() if value is not None]
    return found
