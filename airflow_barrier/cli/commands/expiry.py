"""`airflow-barrier expiry plan`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import lasting, one_or_more, topology_argument
from airflow_barrier.cli.connection import connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, row, table

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.expiring import ExpiryPlan


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=one_or_more, required=True, metavar="N", help="how many barriers stay at least")
    parser.add_argument(
        "--keep-days", type=lasting("days"), default="0", metavar="D", help="and those committed in so many days"
    )


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.expiring import plan_expiry
    from airflow_barrier.protocol.retention import Retention

    with connected(options.conn_id) as deployment:
        retention = Retention(options.keep, options.keep_days)
        found = plan_expiry(deployment, options.topology, retention)
    answer(options, found, _show)
    return DONE


def _show(plan: ExpiryPlan, console: Console) -> None:
    barriers = table(console, "barrier", "timestamp", "verdict", "reason")
    for barrier in plan.barriers:
        verdict = "keep" if barrier.keep else "expire"
        row(barriers, barrier.barrier.barrier_id, barrier.barrier.timestamp, verdict, barrier.reason)
    console.print(barriers)
    snapshots = table(console, "table", "snapshot", "verdict", "reason")
    for name, verdicts in plan.tables.items():
        for one in verdicts:
            row(snapshots, name, one.snapshot_id, "keep" if one.keep else "expire", one.reason)
    console.print(snapshots)
    line(console, f"{len(plan.expiring)} barriers and {plan.snapshots} snapshots would expire")
    for said in (*plan.failed, *([plan.cut_short] if plan.cut_short else [])):
        line(console, said, "yellow")


PLAN = Command(
    "plan",
    "Say which barriers and snapshots an expiry would take, and explain each that stays. Changes nothing: what does it "
    "is ExpireSnapshotsOperator, since deleting files takes Spark.",
    (topology_argument, _options, connection_option),
    _run,
    examples=("shopping --keep 31", "shopping --keep 7 --keep-days 30 --json"),
)
