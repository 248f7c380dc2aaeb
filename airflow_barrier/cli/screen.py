"""What `airflow-barrier status` looks like."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_barrier.coordinator.status import BarrierStatus, TopologyStatus

_COLOURS = {"OPEN": "yellow", "PRECOMMIT": "cyan", "COMMITTING": "cyan", "BLOCKED": "red", "COMMIT": "green"}


def show_status(topologies: Sequence[TopologyStatus], console: Console | None = None) -> None:
    """Print them, one after the other."""
    console = console or Console()
    if not topologies:
        console.print("No topology is registered yet: the first run of a DAG with a BarrierGroup does it.")
    for one in topologies:
        console.print(f"[bold]{one.topology}[/bold] (version {one.version})")
        console.print(f"  repeatable read: {_serves(one.committed, one.committed_timestamp)}")
        console.print(f"  read committed:  {_serves(one.precommitted, None)}")
        console.print(_barriers(one.open) if one.open else "  no barrier is open")
        for barrier in (each.barrier for each in one.open if each.barrier.reason):
            # on lines of its own, unbroken: it holds commands to be copied
            console.print(Text(f"{barrier} is {barrier.state.value}: {barrier.reason}"), soft_wrap=True)


def _serves(barrier_id: int | None, timestamp: datetime | None) -> str:
    if not barrier_id:
        return "the baseline" if barrier_id == 0 else "nothing yet"
    return f"barrier {barrier_id}" + (f" ({timestamp:%Y-%m-%d %H:%M:%S} UTC)" if timestamp else "")


def _barriers(barriers: Sequence[BarrierStatus]) -> Table:
    table = Table("barrier", "timestamp (UTC)", "state", "staged", "jobs")
    for one in barriers:
        state = one.barrier.state.value
        done = [progress for progress in one.tables if progress.state.value != "PENDING"]
        table.add_row(
            str(one.barrier.barrier_id),
            f"{one.barrier.timestamp:%Y-%m-%d %H:%M:%S}",
            Text(state, _COLOURS.get(state, "white")),
            f"{len(done)} of {len(one.tables)} tables",
            # names come from outside: as plain strings they would be read as rich's own markup
            Text("\n".join(f"{job.job}: {job.summary}" for job in one.jobs)),
        )
    return table
