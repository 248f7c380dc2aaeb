"""`airflow-barrier delay`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import one_or_more, span, topology_argument
from airflow_barrier.cli.connection import database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, moment, row, table
from airflow_barrier.protocol.spans import short

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.delay import BarrierDelay, Delay, Share, SinkDelay
    from airflow_barrier.protocol.delay import Segment, TableDelay


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        type=span,
        default=timedelta(days=7),
        metavar="SPAN",
        help="the barriers that became readable since so long, such as 7d, 12h or 90m (default: 7d)",
    )
    parser.add_argument("--table", help="who held up this table, until it was staged; then who held up the barrier")
    parser.add_argument(
        "--objective", type=span, metavar="SPAN", help="count how often readers had something older, such as 15m"
    )
    parser.add_argument("--barrier", type=one_or_more, metavar="BARRIER", help="where the time of this barrier went")


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.delay import barrier_delay, delay

    with meta_service(options) as meta:
        if options.barrier is not None:
            answer(options, barrier_delay(meta, options.topology, options.barrier), _show_barrier, _told_of_barrier)
            return DONE
        found = delay(meta, options.topology, options.window, table=options.table, objective=options.objective)
    answer(options, found, _show, _told)
    return DONE


def _told(found: Delay) -> models.Delay:
    from airflow_barrier.api.delay import told

    return told(found)


def _told_of_barrier(found: BarrierDelay) -> models.BarrierDelay:
    from airflow_barrier.api.delay import told_of_barrier

    return told_of_barrier(found)


def _show(found: Delay, console: Console) -> None:
    whose = found.topology if found.table is None else f"table {found.table} of {found.topology}"
    barriers = f"{len(found.points):,} barrier{'' if len(found.points) == 1 else 's'}"
    line(console, f"{whose}: {barriers} became readable in {short(found.window)}", "bold")
    _show_present(found, console)
    if not found.points:
        line(console, "Ask for a longer --window, or see by `status` what holds up the next barrier.")
        return
    said = found.percentiles
    line(
        console,
        f"  from timestamp to readable: half within {short(said['p50'])}, 95 % within {short(said['p95'])}, "
        f"all within {short(said['max'])}",
    )
    half, most = short(found.scheduled["p50"]), short(found.scheduled["max"])
    line(console, f"  of that until a run opened the barrier: half within {half}, all within {most}")
    if found.objective is not None:
        of = f"{found.missed:,} of {len(found.points):,} barriers"
        line(console, f"  readers had something older than {short(found.objective)} before {of}")
    _show_blame(found.blame, found.looked_into, console)
    _show_sinks(found.deliveries, console)


def _show_present(found: Delay, console: Console) -> None:
    now, objective = found.present, found.objective
    if now.barrier_id is not None and now.seconds is not None:
        line(console, f"  now: barrier {now.barrier_id} is open, {short(now.seconds)} after its timestamp")
    if now.stale is not None:
        late = objective is not None and now.stale > objective.total_seconds()
        of = f", older than {short(objective)}" if late and objective is not None else ""
        line(console, f"  now: what readers have is {short(now.stale)} old{of}", "red" if late else "")


def _show_sinks(sinks: Sequence[SinkDelay], console: Console) -> None:
    for one in sinks:
        took = one.percentiles
        said = f"half within {short(took['p50'])}, all within {short(took['max'])}" if took else "nothing in that time"
        lacks = f"; it lacks {one.lacks:,} since {moment(one.since)} UTC" if one.since else ""
        line(console, f"  from readable to sink {one.sink} (DAG {one.dag}): {said}{lacks}")


def _show_blame(blame: Sequence[Share], barriers: int, console: Console) -> None:
    if not blame:
        line(console, "  Who took the time is not known: these barriers were computed again, or trimmed.")
        return
    line(console, f"  who took the time after that, of the newest {barriers:,} and of the one that is open:")
    shown = table(console, "share", "time", "job", "DAG", "on what")
    for one in blame:
        row(shown, f"{one.share:.0%}", short(one.seconds), one.job, one.dag, one.part.value)
    console.print(shown)


def _show_barrier(found: BarrierDelay, console: Console) -> None:
    barrier = found.barrier
    until = "until it was readable" if barrier.commit_at else f"up to now, and it is {barrier.state.value}"
    line(console, f"{barrier}: {short(found.seconds)} from its timestamp {until}", "bold")
    if found.since < barrier.timestamp:
        line(console, f"  It took along the epochs of aborted barriers, since {moment(found.since)} UTC.")
    if barrier.computed_in:
        line(console, f"  It was computed again, by revision {barrier.computed_in}: where the time went is not known.")
    _show_path(found.critical_path, console)
    _show_tables(found.tables, console)
    for one in found.deliveries:
        line(console, f"  sink {one.sink} (DAG {one.owner}) had it {short(one.seconds)} later")


def _show_path(path: Sequence[Segment], console: Console) -> None:
    shown = table(console, "from (UTC)", "time", "job", "barrier", "on what")
    for one in path:
        row(shown, one.begin, short(one.seconds), one.job, one.barrier_id, one.part.value)
    console.print(shown)


def _show_tables(tables: Sequence[TableDelay], console: Console) -> None:
    if not tables:
        return
    parts = [part for part in tables[0].parts if any(one.parts[part] for one in tables)]
    shown = table(console, "table", "job", "own", "inherited", *(part.value for part in parts))
    for one in sorted(tables, key=lambda each: (-each.own, each.table)):
        row(shown, one.table, one.job, *map(short, (one.own, one.inherited, *(one.parts[part] for part in parts))))
    console.print(shown)


DELAY = Command(
    "delay",
    "Show how late tables are readable, and who took the time. Over a window: from the barriers' timestamps until "
    "readers had them, and the share of each job and of each wait. Of one barrier: its critical path, and of each "
    "table what was its own job's time and what it inherited from its inputs.",
    (topology_argument, _options, database_options),
    _run,
    examples=(
        "shopping",
        "shopping --window 12h --table shop.category_spend --objective 15m",
        "shopping --barrier 421",
        "shopping --json | jq '.blame[0]'",
    ),
)
