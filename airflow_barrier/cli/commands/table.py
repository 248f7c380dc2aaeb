"""`airflow-barrier table create`: make the tables that DAG files declare, before any run does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.commands.adopt import conn_id_of, dag_files_arguments, load_groups
from airflow_barrier.cli.connection import connected
from airflow_barrier.cli.frame import DONE, REFUSED, Command
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.creating import Found


@dataclass(frozen=True)
class Outcome:
    """A declared table: ``made``, ``will be made``, ``there already``, ``differs`` or ``not made``; ``problem``: of the
    last two why, and what to do.
    """

    table: str
    outcome: str
    problem: str | None


def _dry_run_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say it")


def _create(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.creating import create_where_missing, find_declared
    from airflow_barrier.coordinator.journal import check_not_lost

    groups = load_groups(options.dag_files)
    declared = {table.name: table for group in groups for table in group.fragment.tables}
    if not declared:
        raise ConfigurationError(
            f"{', '.join(options.dag_files)}: expected outlets that are declared with their columns, "
            "outlets=[Table('shop.visits', 'id BIGINT, …')], found none"
        )
    look = find_declared if options.dry_run else create_where_missing
    with connected(conn_id_of(groups, options.conn_id), new=not options.dry_run) as deployment:
        for topology in sorted({group.topology for group in groups}):
            check_not_lost(deployment, topology)
        outcomes = [_outcome(name, look(deployment, table)) for name, table in sorted(declared.items())]
    answer(options, outcomes, _show)
    return REFUSED if any(each.problem for each in outcomes) else DONE


def _outcome(table: str, found: Found) -> Outcome:
    if found.fault is not None:
        return Outcome(table, "differs" if found.exists else "not made", found.fault)
    if found.made:
        return Outcome(table, "made", None)
    return Outcome(table, "there already" if found.exists else "will be made", None)


def _show(outcomes: Sequence[Outcome], console: Console) -> None:
    for each in outcomes:
        line(console, f"{each.table}: {each.outcome}", "red" if each.problem else "")
        if each.problem:
            line(console, f"  {each.problem}")


CREATE = Command(
    "create",
    "Load DAG files and make the tables whose columns they declare, where they are missing. The first run of their "
    "jobs does it, too. Nothing that is there is changed. Exit code 1 if a table has other columns, or is gone after "
    "barriers have published it.",
    (dag_files_arguments, _dry_run_option),
    _create,
    examples=("dags/sales.py --dry-run", "dags/ --conn-id barrier_prod"),
)
