"""`airflow-barrier status`"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_barrier.cli.commands.sink import show_sinks
from airflow_barrier.cli.connection import database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, moment, row, state_of, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_barrier.coordinator.status import BarrierStatus, TopologyStatus


def _define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology", nargs="?", help="default: every topology")
    database_options(parser)


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.status import status

    with meta_service(options) as meta:
        names = [options.topology] if options.topology else meta.topologies.names()
        found = [status(meta, name) for name in names]
    answer(options, found, show_status)
    return DONE


def show_status(topologies: Sequence[TopologyStatus], console: Console) -> None:
    """Print them, one after the other."""
    if not topologies:
        line(console, "No topology is registered yet: the first run of a DAG with a BarrierGroup does it.")
    for one in topologies:
        console.print(f"[bold]{one.topology}[/bold] (version {one.version})")
        line(console, f"  repeatable read:  {_serves(one.committed, one.committed_timestamp)}")
        line(console, f"  read committed:   {_serves(one.precommitted, None)}")
        line(console, f"  read uncommitted: {_serves_each(one.uncommitted.values())}")
        if one.open:
            console.print(_barriers(one.open, console))
        else:
            line(console, "  no barrier is open")
        for barrier in (each.barrier for each in one.open if each.barrier.reason):
            line(console, f"{barrier} is {barrier.state.value}: {barrier.reason}")
        if one.sinks:
            show_sinks(one.sinks, console)


def _serves(barrier_id: int | None, timestamp: datetime | None) -> str:
    if not barrier_id:
        return "the baseline" if barrier_id == 0 else "nothing yet"
    return f"barrier {barrier_id}" + (f" ({moment(timestamp)} UTC)" if timestamp else "")


def _serves_each(barrier_ids: Collection[int]) -> str:
    first, last = min(barrier_ids, default=None), max(barrier_ids, default=None)
    if first == last:
        return _serves(last, None)
    return f"each table at its own, from {_serves(first, None)} to {_serves(last, None)}"


def _barriers(barriers: Sequence[BarrierStatus], console: Console) -> Table:
    shown = table(console, "barrier", "timestamp (UTC)", "state", "staged", "jobs")
    for one in barriers:
        done = [progress for progress in one.tables if progress.state.value != "PENDING"]
        row(
            shown,
            one.barrier.barrier_id,
            one.barrier.timestamp,
            state_of(one.barrier.state),
            f"{len(done)} of {len(one.tables)} tables",
            [f"{job.job}: {job.summary}" for job in one.jobs],
        )
    return shown


STATUS = Command(
    "status",
    "Show what readers see and how far each open barrier is. For each level the barrier that it serves; for each "
    "barrier that is open what its jobs do, and what waits for whom; how far each sink is.",
    _define,
    _run,
    examples=("", "shopping", "shopping --json | jq '.[0].committed'"),
)
