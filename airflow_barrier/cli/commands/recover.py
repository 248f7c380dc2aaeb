"""`airflow-barrier recover`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import reason_option, topology_argument
from airflow_barrier.cli.asking import refused, yes_option
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.errors import UnknownTopologyError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.recovering import Recovered


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.recovering import recover

    with connected(options.conn_id, new=True) as deployment:
        code = refused(options, _given_up(deployment, options.topology), "Recover? Its DAGs have to be stopped.")
        if code is not None:
            return code
        recovered = recover(deployment, options.topology, actor=actor(), reason=options.reason)
    answer(options, recovered, _show)
    return DONE


def _given_up(deployment: Deployment, topology: str) -> list[str]:
    """Return what the MetaService knows to be in flight; of a lost one, nothing."""
    try:
        in_flight = deployment.meta.barriers.uncommitted(topology)
    except UnknownTopologyError:
        in_flight = []
    revision = deployment.meta.revisions.under_way(topology)
    found = [f"{each} is {each.state.value}" for each in in_flight]
    return [*found, *([f"{revision} is {revision.state.value}"] if revision is not None else [])]


def _show(recovered: Recovered, console: Console) -> None:
    for table in recovered.reattached:
        line(console, f"table {table}: the catalog points to its newest metadata again")
    for entry in recovered.entries:
        line(console, f"{entry} is COMMIT again")
    for number in recovered.revisions:
        line(console, f"revision {number} of {recovered.topology} is COMMIT again")
    line(
        console,
        f"topology {recovered.topology}: {len(recovered.entries)} barriers put back, the newest is "
        f"{recovered.newest or 'the baseline'}; MetaService incarnation {recovered.incarnation} leads it now. "
        "Clear the start tasks of the runs that were in flight, which opens their barriers anew.",
    )


RECOVER = Command(
    "recover",
    "Catch a MetaService up that was lost or restored from a backup. It is caught up from the tables and the journal "
    "beside them. Stop the topology's DAGs before. Barriers and a revision that were in flight are given up: their "
    "epochs join the next barrier's.",
    (
        topology_argument,
        reason_option("why, for the audit and for the tasks of what is given up"),
        yes_option,
        connection_option,
    ),
    _run,
    examples=('shopping --conn-id barrier_prod --reason "restored from last night"',),
)
