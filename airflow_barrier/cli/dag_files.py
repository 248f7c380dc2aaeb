"""DAG files, and the groups in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_barrier.operators.group import BarrierGroup


def groups_in(file: str) -> tuple[list[BarrierGroup], dict[str, str]]:
    """The groups of all DAGs in a file or folder; and of files that cannot be read the last line of the error."""
    from airflow.dag_processing.dagbag import DagBag

    from airflow_barrier.operators.group import BarrierGroup

    bag = DagBag(dag_folder=os.path.abspath(file))  # a DAG file goes by its own place, as Airflow calls it
    groups = [
        group for dag in bag.dags.values() for group in dag.task_group_dict.values() if isinstance(group, BarrierGroup)
    ]
    return groups, {where: error.strip().splitlines()[-1] for where, error in bag.import_errors.items()}
