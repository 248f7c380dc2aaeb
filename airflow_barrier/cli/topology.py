"""`airflow-barrier topology`: try on existing tables what DAG files declare, take the tables in, and give them back."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_barrier.coordinator.adopting import AdoptionPlan, TableStep
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.operators.group import BarrierGroup

_ADOPT = """\
Load DAG files, check what their groups declare against each other and against what is registered, and switch
write-audit-publish on for their tables, which changes nothing for anybody else. A job takes part when its DAG runs."""
_LEAVE = """\
Take a job of a DAG, or the whole DAG, out of a topology, from the next barrier on. Barriers that are open go on with
it. Its tables are given back as they are: main stays, and so do the tags of the barriers that published it; attempt
branches are dropped, and write-audit-publish is off again if `adopt` switched it on. The DAG's next run does not bring
it back: `topology join` does."""


def add_topology_command(commands: Any, settings: Callable[[str], Settings]) -> None:
    """``settings``: those of an Airflow connection, by its id."""
    command = commands.add_parser("topology", help="take existing tables in, and give them back")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, text, run in (
        ("validate", "Load DAG files and say what taking part would change. Changes nothing.", _adopt),
        ("adopt", _ADOPT, _adopt),
    ):
        action = _action(actions, name, text, partial(run, settings))
        action.add_argument("dag_files", nargs="+", metavar="DAG_FILE_OR_FOLDER")
        action.add_argument("--conn-id", help="Airflow connection (default: the groups' own)")
        action.set_defaults(dry_run=name == "validate")
        if name == "adopt":
            action.add_argument("--dry-run", action="store_true", help="as `validate`: only say it")
    for name, text, run in (
        ("leave", _LEAVE, _leave),
        ("join", "Let what left take part again: its tasks join when they run next.", _join),
    ):
        action = _action(actions, name, text, partial(run, settings))
        action.add_argument("topology")
        action.add_argument("--dag", required=True, help="the DAG that owns the job")
        action.add_argument("--job", help="default: all of the DAG's")
        action.add_argument("--conn-id", default="barrier_default", help="Airflow connection (default: %(default)s)")
        if name == "leave":
            action.add_argument("--reason", required=True, help="why, for the audit and for the DAG's tasks")


def _action(actions: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(
        name,
        help=text.partition(".")[0].replace("\n", " "),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action.set_defaults(run=run)
    return action


# --- taking tables in -----------------------------------------------------------------------------


def _adopt(settings: Callable[[str], Settings], options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.adopting import carry_out, plan_adoption

    groups = _groups(options.dag_files)
    with _connected(settings(_conn_id(groups, options.conn_id))) as deployment:
        plan = plan_adoption(deployment, [group.fragment for group in groups])
        console = Console(soft_wrap=True)
        show_plan(plan, console)
        if not plan.can_be_done:
            console.print("refused: nothing was changed")
            return 1
        if options.dry_run:
            console.print("nothing was changed")
            return 0
        switched = carry_out(deployment, plan)
        console.print(f"write-audit-publish is on now for {', '.join(switched)}" if switched else "nothing to change")
    return 0


def show_plan(plan: AdoptionPlan, console: Console) -> None:
    """Print what is there and what would change, table by table."""
    for step in plan.steps:
        console.print(f"[bold]{escape(step.table)}[/bold] (topology {escape(step.topology)})")
        for line in _lines(step):
            console.print(f"  {escape(line)}")
        if step.problem:
            console.print(f"  [red]problem:[/red] {escape(step.problem)}")
    for note in plan.notes:
        console.print(f"note: {escape(note)}")
    for problem in plan.problems:
        console.print(f"[red]problem:[/red] {escape(problem)}")


def _lines(step: TableStep) -> Iterator[str]:
    if step.exists:
        where = f"main at snapshot {step.snapshot}" if step.snapshot is not None else "main is empty"
        rows = "an unknown number of" if step.rows is None else step.rows
        yield f"{where}, {rows} rows, format version {step.format_version}"
        yield f"write-audit-publish: {'off -> on' if step.enables_wap else 'on'}"
        yield f"start_from: {step.start}"
    if step.writer is not None:
        yield f"written by job {step.writer.name} (DAG {step.writer.owner})"
    if step.readers:
        yield f"read by {', '.join(f'job {job.name} (DAG {job.owner})' for job in step.readers)}"


def _groups(files: Sequence[str]) -> list[BarrierGroup]:
    from airflow.dag_processing.dagbag import DagBag

    from airflow_barrier.operators.group import BarrierGroup

    found: list[BarrierGroup] = []
    for file in files:
        bag = DagBag(dag_folder=file)
        if bag.import_errors:
            raise ConfigurationError(
                "\n".join(f"{where}: {error.strip().splitlines()[-1]}" for where, error in bag.import_errors.items())
            )
        found += [
            group
            for dag in bag.dags.values()
            for group in dag.task_group_dict.values()
            if isinstance(group, BarrierGroup)
        ]
    if not found:
        raise ConfigurationError(f"{', '.join(files)}: expected DAGs with a BarrierGroup, found none")
    return found


def _conn_id(groups: Sequence[BarrierGroup], given: str | None) -> str:
    own = sorted({group.barrier_conn_id for group in groups})
    if given is None and len(own) > 1:
        raise ConfigurationError(
            f"expected groups of one connection, found {', '.join(own)}; name the one to look at with --conn-id"
        )
    return given or own[0]


# --- leaving, and coming back ---------------------------------------------------------------------


def _leave(settings: Callable[[str], Settings], options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.leaving import leave

    with _connected(settings(options.conn_id)) as deployment:
        left = leave(deployment, options.topology, options.dag, options.job, reason=options.reason, actor=_actor())
    print(left.withdrawal)
    for barrier in left.open:
        print(f"{barrier} is {barrier.state.value} and goes on with it, until it is committed or aborted")
    if left.open:
        print("its tables are not given back yet: run this command again after that")
    for table in left.tables:
        print(f"table {table} is given back: main and the barriers' tags stay, attempt branches are gone")
    return 0


def _join(settings: Callable[[str], Settings], options: argparse.Namespace) -> int:
    with _connected(settings(options.conn_id)) as deployment:
        back = deployment.meta.readmit(options.topology, options.dag, options.job, _actor())
    what = f"job {options.job} of DAG {options.dag}" if options.job else f"DAG {options.dag}"
    print(f"{what} may take part again, from its next run on" if back else f"{what} has not left {options.topology}")
    return 0


def _actor() -> str:
    return f"{getpass.getuser()} (airflow-barrier)"


@contextmanager
def _connected(settings: Settings) -> Iterator[Deployment]:
    from airflow_barrier.coordinator.deployment import Deployment

    deployment = Deployment.connect(settings)
    try:
        yield deployment
    finally:
        deployment.close()
