"""`airflow-barrier lease list` and `release`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, reason_option, topology_argument
from airflow_barrier.cli.connection import actor, database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, row, table

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.protocol.leases import Lease


def _list(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        found = meta.leases.of(options.topology, options.barrier)

        def told(found: Sequence[Lease]) -> models.Leases:
            from airflow_barrier.api.upkeep import leases_of
            from airflow_barrier.cli.telling import sight_of

            return leases_of(sight_of(options, meta), found)

        answer(options, found, _show, told)
    return DONE


def _lease_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lease", type=int, help="its number, as `lease list` shows it")


def _release(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        meta.leases.end(options.topology, options.lease, f"{actor()}: {options.reason}")
        found = meta.leases.of(options.topology)
    answer(options, found, _show, lambda _: _released(options.lease))
    return DONE


def _released(lease_id: int) -> models.Done:
    from airflow_barrier.api.outcomes import of_release

    return of_release(lease_id)


def _show(found: Sequence[Lease], console: Console) -> None:
    shown = table(console, "lease", "barrier", "holder", "since", "until", "rolled back")
    for lease in found:
        barriers = f"{lease.barrier_id}" + (f" to {lease.through_id}" if lease.through_id != lease.barrier_id else "")
        rolled_back = "yes" if lease.rolled_back else None
        row(shown, lease.lease_id, barriers, lease.holder, lease.granted_at, lease.expires_at, rolled_back)
    console.print(shown)


LIST = Command(
    "list",
    "Say who holds which barrier, since when, and until when unless it is renewed. What is held is not expired.",
    (topology_argument, partial(barrier_argument, nargs="?"), database_options),
    _list,
    examples=("shopping", "shopping 3 --json"),
)

RELEASE = Command(
    "release",
    "End a lease before its time. Its reader is told, and the audit keeps it. Shows those that are left.",
    (topology_argument, _lease_argument, reason_option(), database_options),
    _release,
    examples=('shopping 17 --reason "its reader has left"',),
)
