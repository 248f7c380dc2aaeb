"""`airflow-barrier topology validate` and `adopt`: try what DAG files declare on existing tables, and take them in."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import connected
from airflow_barrier.cli.dag_files import groups_in, plan_of
from airflow_barrier.cli.frame import DONE, REFUSED, Command
from airflow_barrier.cli.job_text import remarks_on
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.adopting import AdoptionPlan, TableStep
    from airflow_barrier.operators.group import BarrierGroup


@dataclass(frozen=True)
class Adoption:
    """The changes of taking part, and the tables of which this call set properties."""

    plan: AdoptionPlan
    can_be_done: bool
    dry_run: bool
    switched_on: tuple[str, ...]


def dag_files_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dag_files", nargs="+", metavar="DAG_FILE_OR_FOLDER")
    parser.add_argument("--conn-id", help="Airflow connection (default: the groups' own)")


def _dry_run_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="as `validate`: only say it")


def _validate(options: argparse.Namespace) -> int:
    return _answer(options, dry_run=True)


def _adopt(options: argparse.Namespace) -> int:
    return _answer(options, options.dry_run)


def _answer(options: argparse.Namespace, dry_run: bool) -> int:
    from airflow_barrier.coordinator.adopting import carry_out

    groups = load_groups(options.dag_files)
    with connected(conn_id_of(groups, options.conn_id), new=not dry_run) as deployment:
        plan = _with_remarks(plan_of(deployment, groups), groups)
        does = plan.can_be_done and not dry_run
        switched = tuple(carry_out(deployment, plan)) if does else ()
    answer(options, Adoption(plan, plan.can_be_done, dry_run, switched), _show)
    return DONE if plan.can_be_done else REFUSED


def _with_remarks(plan: AdoptionPlan, groups: Sequence[BarrierGroup]) -> AdoptionPlan:
    """The plan, with what the jobs' text says of itself."""
    remarks = [(f"DAG {each.dag_id}: {each.text}", each.hinders) for each in remarks_on(groups)]
    return replace(
        plan,
        problems=(*plan.problems, *(text for text, hinders in remarks if hinders)),
        notes=(*plan.notes, *(text for text, hinders in remarks if not hinders)),
    )


def load_groups(files: Sequence[str]) -> list[BarrierGroup]:
    found: list[BarrierGroup] = []
    for file in files:
        groups, errors = groups_in(file)
        if errors:
            raise ConfigurationError("\n".join(f"{where}: {error}" for where, error in errors.items()))
        found += groups
    if not found:
        raise ConfigurationError(f"{', '.join(files)}: expected DAGs with a BarrierGroup, found none")
    return found


def conn_id_of(groups: Sequence[BarrierGroup], given: str | None) -> str:
    own = sorted({group.barrier_conn_id for group in groups})
    if given is None and len(own) > 1:
        raise ConfigurationError(
            f"expected groups of one connection, found {', '.join(own)}; name the one to look at with --conn-id"
        )
    return given or own[0]


# --- what is printed ------------------------------------------------------------------------------


def _show(found: Adoption, console: Console) -> None:
    show_plan(found.plan, console)
    if not found.can_be_done:
        line(console, "refused: nothing was changed")
    elif found.dry_run:
        line(console, "nothing was changed")
    elif found.switched_on:
        line(console, f"this is on now for {', '.join(found.switched_on)}")
    else:
        line(console, "nothing to change")


def show_plan(plan: AdoptionPlan, console: Console) -> None:
    """Print what is there and what would change, table by table."""
    for step in plan.steps:
        line(console, f"{step.table} (topology {step.topology})", "bold")
        for text in _lines(step):
            line(console, f"  {text}")
        if step.problem:
            line(console, f"  problem: {step.problem}", "red")
    for note in plan.notes:
        line(console, f"note: {note}")
    for problem in plan.problems:
        line(console, f"problem: {problem}", "red")


#: By whether they are deleted; None: nobody has said.
_METADATA = {
    None: "kept for ever -> deleted once a hundred newer ones are there",
    False: "kept for ever (write.metadata.delete-after-commit.enabled=false): each barrier adds some",
    True: "deleted",
}


def _lines(step: TableStep) -> Iterator[str]:
    if step.exists:
        where = f"main at snapshot {step.snapshot}" if step.snapshot is not None else "main is empty"
        rows = "an unknown number of" if step.rows is None else step.rows
        yield f"{where}, {rows} rows, format version {step.format_version}"
        yield f"write-audit-publish: {'off -> on' if step.enables_wap else 'on'}"
        yield f"old metadata documents: {_METADATA[step.deletes_old_metadata]}"
        yield f"start_from: {step.start}"
    elif step.will_be_made:
        yield "will be made when its job joins, or by airflow-barrier table create"
    if step.writer is not None:
        yield f"written by job {step.writer.name} (DAG {step.writer.owner})"
    if step.readers:
        yield f"read by {', '.join(f'job {job.name} (DAG {job.owner})' for job in step.readers)}"


VALIDATE = Command(
    "validate",
    "Load DAG files and say what taking part would change. Changes nothing. Exit code 1 if it cannot be done.",
    (dag_files_arguments,),
    _validate,
    examples=("dags/sales.py", "dags/ --conn-id barrier_prod --json"),
)

ADOPT = Command(
    "adopt",
    "Load DAG files and take their tables in. Checks what their groups declare against each other and against what is "
    "registered. Switches write-audit-publish on for their tables, and the deletion of old metadata documents unless "
    "somebody has said that they stay: neither changes anything for who reads or writes the tables. A job takes part "
    "when its DAG runs.",
    (dag_files_arguments, _dry_run_option),
    _adopt,
    examples=("dags/sales.py --dry-run", "dags/sales.py"),
)
