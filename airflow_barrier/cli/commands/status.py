"""`airflow-barrier status`"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_barrier.cli.commands.sink import show_sinks
from airflow_barrier.cli.connection import credentials, database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import answer, line, moment, row, state_of, table
from airflow_barrier.protocol.errors import MetaServiceMissingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_barrier.coordinator.status import BarrierStatus, SourceStatus, TopologyStatus
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.sources.port import Lag


def _define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology", nargs="?", help="default: every topology")
    database_options(parser)


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.status import status

    with meta_service(options) as meta:
        names = [options.topology] if options.topology else _names(meta)
        found = [status(meta, name, credentials(options)) for name in names]
    answer(options, found, show_status)
    return DONE


def _names(meta: MetaService) -> list[str]:
    """None where the MetaService is not made yet, which is no fault."""
    try:
        return meta.topologies.names()
    except MetaServiceMissingError as error:
        say(str(error))
        return []


def show_status(topologies: Sequence[TopologyStatus], console: Console) -> None:
    """Print them, one after the other."""
    if not topologies:
        line(
            console,
            "No topology is registered yet: run a DAG that has a BarrierGroup once. airflow-barrier doctor checks the "
            "connection.",
        )
    for one in topologies:
        console.print(f"[bold]{one.topology}[/bold] (version {one.version}): {one.health.value}")
        for failed in one.failed:
            again = "" if failed.again_at is None else f"; the next try comes at {moment(failed.again_at)} UTC"
            line(console, f"  {failed.summary}, at {moment(failed.at)} UTC{again}: {failed.reason}", "red")
        for late in one.late:
            line(console, f"  {late.summary} (since {moment(late.since)} UTC)")
        line(console, f"  repeatable read:  {_serves(one.committed, one.committed_timestamp)}")
        line(console, f"  read committed:   {_serves(one.precommitted, None)}")
        line(console, f"  read uncommitted: {_serves_each(one.uncommitted.values())}")
        if one.open:
            console.print(_barriers(one.open, console))
        else:
            line(console, "  no barrier is open")
        for barrier in (each.barrier for each in one.open if each.barrier.reason):
            line(console, f"{barrier} is {barrier.state.value}: {barrier.reason}")
        for source in one.sources:
            _show_source(source, console)
        if one.sinks:
            show_sinks(one.sinks, console)


def _show_source(one: SourceStatus, console: Console) -> None:
    lag = one.lag
    if lag is None:
        why = (one.unknown or "").removeprefix(f"source {one.source}: ")
        line(console, f"source {one.source}: how far behind it is read is not known: {why}")
        return
    urgent = lag.is_urgent
    line(console, f"{'warning: ' if urgent else ''}source {one.source}: {_behind(lag)}", "red" if urgent else "")


def _behind(lag: Lag) -> str:
    behind, worst = [part for part in lag.parts if part.behind], lag.worst
    said = f"{lag.behind:,} {lag.unit} behind"
    if worst is not None:
        said += f" in {len(behind)} {lag.called}{'s' if len(behind) > 1 else ''} ({worst.part}: {worst.behind:,})"
    if gone := sum(part.gone for part in lag.parts):
        said += f"; {gone:,} of them are gone already"
    left = lag.retention_left
    if left is not None:
        said += f"; retention takes the oldest of them {f'in {_lasting(left)}' if left > timedelta(0) else 'any time'}"
    return f"{said}; {lag.note}" if lag.note else said


def _lasting(time: timedelta) -> str:
    hours = time / timedelta(hours=1)
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


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
    "Show how each topology is, what readers see and how far each open barrier is. In one word how it is, who has "
    "failed and who is late; for each level the barrier that it serves; for each "
    "barrier that is open what its jobs do, and what waits for whom; how far topics are ahead that are read; how far "
    "each sink is.",
    _define,
    _run,
    examples=("", "shopping", "shopping --json | jq '.[0].committed'"),
)
