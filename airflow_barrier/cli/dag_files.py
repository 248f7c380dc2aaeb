"""DAG files, and the groups in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_barrier.coordinator.adopting import AdoptionPlan
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.operators.group import BarrierGroup


def groups_in(file: str) -> tuple[list[BarrierGroup], dict[str, str]]:
    """The groups of all DAGs in a file or folder; and of files that cannot be read the last line of the error."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

    from airflow_barrier.operators.group import BarrierGroup

    bag = DagBag(dag_folder=os.path.abspath(file))  # a DAG file goes by its own place, as Airflow calls it
    groups = [
        group for dag in bag.dags.values() for group in dag.task_group_dict.values() if isinstance(group, BarrierGroup)
    ]
    return groups, {where: error.strip().splitlines()[-1] for where, error in bag.import_errors.items()}


def plan_of(deployment: Deployment, groups: Sequence[BarrierGroup]) -> AdoptionPlan:
    """Return what the groups declare, tried on what is there."""
    from airflow_barrier.coordinator.adopting import plan_adoption

    deliveries = [delivery for group in groups for delivery in group.deliveries]
    return plan_adoption(
        deployment,
        [group.fragment for group in groups],
        [(each.topology, each.declaration(each.dag.dag_id), each.credentials()) for each in deliveries],
        joined={group.topology for group in groups} - {group.topology for group in groups if not group.member},
    )
