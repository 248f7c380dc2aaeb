"""`airflow-barrier source resnapshot`"""

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


@dataclass(frozen=True)
class Resnapshot:
    """``after``: the barrier whose successor begins anew."""

    topology: str
    source: str
    after: int


def _source_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="its name, as `topology show` has it")


def _resnapshot(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.cuts import begin_anew

    with connected(options.conn_id) as deployment:
        after = begin_anew(deployment, options.topology, options.source, reason=options.reason, actor=actor())
    answer(options, Resnapshot(options.topology, options.source, after.barrier_id), _show)
    return DONE


def _show(done: Resnapshot, console: Console) -> None:
    line(
        console,
        f"source {done.source} begins anew: its next cut, after barrier {done.after} of {done.topology}, has what is "
        "there then. A database's tables are copied, and tables that jobs keep by epoch.apply or APPLY CHANGES have "
        "how they differ at that barrier; of a stream it has the events that no barrier has had",
    )
    line(console, f"clear the task of a job that failed for the source: it goes on with barrier {done.after + 1}")


RESNAPSHOT = Command(
    "resnapshot",
    "Have a source begin anew. A database's: after its slot was lost, after the database was restored or another "
    "server took over, or for a table that was added to it. Its next cut copies the tables, and what differs from the "
    "former state is that epoch's changes: no gap, no second history; views and sinks lose what is gone. A stream's of "
    "Pravega: after events were lost, or the stream was made anew. Its next cut has the events that none has had.",
    (topology_argument, _source_argument, connection_option, reason_option()),
    _resnapshot,
    examples=('shopping shop_db --reason "the slot was lost"',),
)
