"""DAGs as Airflow reads and keeps them, by names that some versions of it call otherwise."""

from __future__ import annotations

import json
from typing import Any

from airflow.serialization import serialized_objects

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag

__all__ = ["DagBag", "stored"]


def stored(dag: Any) -> Any:
    """Return the DAG as the scheduler has it: written to the database, and read from there."""
    # Airflow 3.1 has the second one
    kind: Any = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    return kind.from_dict(json.loads(json.dumps(kind.to_dict(dag))))
