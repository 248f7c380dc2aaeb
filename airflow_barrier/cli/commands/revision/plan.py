"""`airflow-barrier revision plan`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import topology_argument
from airflow_barrier.cli.commands.revision.wanting import (
    backfill_command,
    plan_of,
    run_command,
    wanted_arguments,
)
from airflow_barrier.cli.connection import connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, row, table

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.revisions.backfills import Backfill
    from airflow_barrier.coordinator.revisions.plan import PlannedRecut, RevisionPlan


@dataclass(frozen=True)
class Planned:
    """A plan, and how it is carried out: ``command`` begins it and names the number N that ``backfills``, the runs of
    the window, carry. ``owners`` are the DAGs whose jobs run; ``readers`` says what is seen when.
    """

    plan: RevisionPlan
    owners: tuple[str, ...]
    readers: tuple[str, ...]
    backfills: tuple[Backfill, ...]
    command: str


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.revisions.backfills import backfills_of_plan
    from airflow_barrier.coordinator.revisions.telling import seen_by_readers

    with connected(options.conn_id) as deployment:
        plan = plan_of(deployment, options)
    readers, backfills = tuple(seen_by_readers(plan)), backfills_of_plan(plan)
    answer(options, Planned(plan, plan.owners, readers, backfills, run_command(options)), _show)
    return DONE


def _show(found: Planned, console: Console) -> None:
    from airflow_barrier.coordinator.revisions.telling import notes_of, ranges

    plan = found.plan
    line(console, f"{plan.wanted.mode.value} revision of {plan.wanted.topology}, on top of {plan.predecessor}", "bold")
    changed = table(console, "computed again", "by job", "of DAG", "rows now", "came with these barriers")
    for one in plan.tables:
        row(changed, one.table, one.job, one.owner, one.rows, one.epoch_rows)
    console.print(changed)
    line(console, f"stay as they are: {', '.join(plan.untouched) or 'none'}")
    barriers = table(console, "barrier", "run of (UTC)", "data before (UTC)", "state", "replayed by")
    window = {barrier.barrier_id for barrier in plan.window}
    for barrier in plan.barriers:
        who = "its own run, in a backfill" if barrier.barrier_id in window else "our cascade"
        row(barriers, barrier.barrier_id, barrier.run_date, barrier.timestamp, barrier.state.value, who)
    console.print(barriers)
    inputs = table(console, "input of job", "", "at barriers", "")
    for each in plan.inputs:
        row(inputs, each.job, each.kind, ranges(each.barriers), each.detail)
    console.print(inputs)
    if plan.recuts:
        _show_recuts(plan.recuts, console)
    for job in plan.code_changed:
        line(console, f"code changed since: job {job}", "yellow")
    for note in notes_of(plan):
        line(console, f"note: {note}", "yellow")
    line(console, "readers see")
    for text in found.readers:
        line(console, f"  {text}")
    line(console, "it is begun, with a number N, by")
    line(console, f"  {found.command}")
    line(console, "and computed by the runs of these days, which that prints with its number, or asks Airflow for")
    for backfill in found.backfills:
        line(console, f"  {backfill_command(backfill, 'N')}")


def _show_recuts(recuts: Sequence[PlannedRecut], console: Console) -> None:
    from airflow_barrier.coordinator.revisions.telling import some

    shown = table(console, "cut anew", "at barrier", "leave", "join")
    for each in recuts:
        row(shown, each.cut.source, each.barrier_id, some(each.leaving), some(each.joining))
    console.print(shown)


PLAN = Command(
    "plan",
    "Say what a revision would do, and change nothing. From the first day to the head the affected tables are computed "
    "again, barrier by barrier, beside what readers see, and swapped at once: which tables and barriers, from which "
    "input, what readers see when, and the one command that does it."
    "\n\n"
    "Without --job, --table, --recut, --sql or --file everything is computed again. --job and --table begin with what "
    "was corrected, and take along what stands on it.",
    (topology_argument, wanted_arguments, connection_option),
    _run,
    examples=(
        "shopping --from 2017-01-05 --to 2017-01-06",
        "shopping --from 2017-01-05 --job price",
        'shopping --from 2017-01-05 --sql shop.shopping "DELETE FROM shop.shopping WHERE store_id = 367"',
        "shopping --from 2017-01-05 --file shop.shopping s3://mended/2017-01-05.parquet parquet --json",
        "shopping --from 2017-01-05 --recut shopping",
        "shopping --full --table shop.user_item_price",
    ),
)
