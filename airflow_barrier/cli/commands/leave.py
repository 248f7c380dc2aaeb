"""`airflow-barrier topology leave` and `join`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import reason_option, topology_argument
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.leaving import Left


def _job_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dag", required=True, help="the DAG that owns the job")
    parser.add_argument("--job", help="default: all of the DAG's")


# --- leaving --------------------------------------------------------------------------------------


def _leave(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.leaving import leave

    with connected(options.conn_id) as deployment:
        left = leave(deployment, options.topology, options.dag, options.job, reason=options.reason, actor=actor())
    answer(options, left, _show_left)
    return DONE


def _show_left(left: Left, console: Console) -> None:
    line(console, str(left.withdrawal))
    for barrier in left.open:
        line(console, f"{barrier} is {barrier.state.value} and goes on with it, until it is committed or aborted")
    if left.open:
        line(console, "its tables are not given back yet: run this command again after that")
    for table in left.tables:
        line(console, f"table {table} is given back: main and the barriers' tags stay, attempt branches are gone")


LEAVE = Command(
    "leave",
    "Take a job of a DAG, or the whole DAG, out of a topology, from the next barrier on. Barriers that are open go on "
    "with it. Its tables are given back as they are: main stays, and so do the tags of the barriers that published "
    "it; attempt branches are dropped, and write-audit-publish is off again if `adopt` switched it on. The DAG's next "
    "run does not bring it back: `topology join` does.",
    (topology_argument, _job_options, connection_option, reason_option("why, for the audit and for the DAG's tasks")),
    _leave,
    examples=(
        'shopping --dag pricing --reason "moves to the data platform"',
        'shopping --dag pricing --job price --reason "is replaced"',
    ),
)


# --- coming back ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Readmitted:
    """``job`` None: the whole DAG. ``readmitted`` is False if it had not left."""

    topology: str
    dag: str
    job: str | None
    readmitted: bool


def _join(options: argparse.Namespace) -> int:
    with connected(options.conn_id) as deployment:
        back = deployment.meta.topologies.readmit(options.topology, options.dag, options.job, actor())
    answer(options, Readmitted(options.topology, options.dag, options.job, back), _show_readmitted)
    return DONE


def _show_readmitted(found: Readmitted, console: Console) -> None:
    what = f"job {found.job} of DAG {found.dag}" if found.job else f"DAG {found.dag}"
    back = "may take part again, from its next run on"
    line(console, f"{what} {back if found.readmitted else f'has not left {found.topology}'}")


JOIN = Command(
    "join",
    "Let what left take part again: its tasks join when they run next.",
    (topology_argument, _job_options, connection_option),
    _join,
    examples=("shopping --dag pricing",),
)
