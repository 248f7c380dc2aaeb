"""Numbers about topologies as they are now, for whoever keeps numbers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_barrier.coordinator.lateness import standings
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.metaservice.store import MetaService


class Measure(NamedTuple):
    name: str
    value: float
    tags: Mapping[str, str]


def measures(meta: MetaService, topologies: Sequence[str]) -> list[Measure]:
    """Measure each topology's age, and how much of it is open, failed, late, waiting and not delivered. One that nobody
    has registered has none; before the first commit there is no age.
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
    found = standings(rows, {each.name: each.freshness for each in rows.known() if each.name in topologies})
    waiting = rows.requested(list(found))
    return [
        Measure(what, value, {"topology": name})
        for name, standing in found.items()
        for what, value in (
            ("barrier.age_seconds", standing.age),
            ("barrier.open", len(standing.in_flight)),
            ("barrier.failed", sum(failed.again_at is None for failed in standing.failed)),
            ("barrier.late", len(standing.late)),
            ("barrier.waiting_tasks", waiting[name]),
        )
        if value is not None
    ]
