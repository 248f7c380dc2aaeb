"""`airflow-barrier barrier commit`: without Airflow, or without the DAG that opened the barrier."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, reason_option, topology_argument
from airflow_barrier.cli.asking import refused, yes_option
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.committing import Committed


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.committing import commit_by_hand

    topology, barrier_id = options.topology, options.barrier
    with connected(options.conn_id) as deployment:
        up_to = [
            barrier for barrier in deployment.meta.barriers.uncommitted(topology) if barrier.barrier_id <= barrier_id
        ]
        # what is not there, or has ended, needs no answer: the coordinator says so
        if up_to and up_to[-1].barrier_id == barrier_id:
            lines = [f"{barrier} is {barrier.state.value}" for barrier in up_to]
            code = refused(
                options, lines, "Publish their tables? Checks that a DAG makes before its commit are not made."
            )
            if code is not None:
                return code
        done = commit_by_hand(deployment, topology, barrier_id, reason=options.reason, actor=actor())
    answer(options, done, _show, _told)
    return DONE


def _told(found: Committed) -> models.Done:
    from airflow_barrier.api.outcomes import of_commit

    return of_commit(found)


def _show(found: Committed, console: Console) -> None:
    for barrier in found.published:
        line(console, f"committed {barrier}")
    if not found.published:
        line(console, f"{found.barrier} was committed before; nothing to do")


COMMIT = Command(
    "commit",
    "Commit a barrier, and every earlier one before it. For a barrier that is PRECOMMIT or COMMITTING while nobody "
    "commits it: Airflow is away, or the DAG that opened it was deleted or cannot be imported. The tables of each are "
    "published in one step, as by its commit task. One that is OPEN is refused. Events of Airflow's assets come from "
    "commit tasks only: the next one of the topology emits them.",
    (
        topology_argument,
        barrier_argument,
        reason_option("why a person does it, for the audit"),
        yes_option,
        connection_option,
    ),
    _run,
    examples=('shopping 3 --reason "its DAG was deleted"', 'shopping 3 --reason "its DAG was deleted" --yes --json'),
)
