"""What OpenLineage is told: of a live Airflow's tasks at their ends, and by operators of this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

    from tests.support.airflow import AirflowUnderTest

#: The file, in Airflow's folder, of OpenLineage events: one a line.
LINEAGE = "lineage.jsonl"


class Told(NamedTuple):
    """Of one dataset: its barrier, and of a table the snapshot and the name that Spark's listener has for it."""

    barrier: int
    revision: int
    topology: str
    snapshot: str | None = None
    folder: tuple[str, str] | None = None


#: By namespace and name.
Datasets = dict[tuple[str, str], Told]


def ends_of(airflow: AirflowUnderTest, task: str, kind: str = "COMPLETE") -> list[tuple[str, Datasets, Datasets]]:
    """For each end of ``task`` (with its DAG) the run, and what it has read and made, oldest first."""
    events = map(json.loads, (airflow.home / LINEAGE).read_text().splitlines())
    return [
        (event["run"]["facets"]["airflow"]["dagRun"]["run_id"], datasets(event["inputs"]), datasets(event["outputs"]))
        for event in events
        if event["eventType"] == kind and event["job"]["name"] == task
    ]


def told_by(operator: Any) -> tuple[Datasets, Datasets]:
    """What the listener would be told at the end of a task that ran in this process."""
    from openlineage.client.serde import Serde

    told = json.loads(Serde.to_json(operator.get_openlineage_facets_on_complete(None)))
    return datasets(told["inputs"]), datasets(told["outputs"])


def datasets(told: list[dict[str, Any]]) -> Datasets:
    return {(each["namespace"], each["name"]): _told(**each["facets"]) for each in told}


def _told(
    barrier: dict[str, Any], version: dict[str, Any] | None = None, symlinks: dict[str, Any] | None = None
) -> Told:
    folder = None
    if symlinks is not None:
        ((namespace, name, kind),) = [(one["namespace"], one["name"], one["type"]) for one in symlinks["identifiers"]]
        assert kind == "LOCATION"
        folder = (namespace, name)
    snapshot = None if version is None else version["datasetVersion"]
    return Told(barrier["barrier"], barrier["revision"], barrier["topology"], snapshot, folder)


def listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rest of the test OpenLineage's provider has somewhere to send events to, in this process."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
