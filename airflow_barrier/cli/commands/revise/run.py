"""`airflow-barrier revise run`"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import one_or_more
from airflow_barrier.cli.commands.revise.wanting import (
    backfill_command,
    continue_command,
    plan_of,
    topology_option,
    wanted_arguments,
)
from airflow_barrier.cli.connection import actor, airflow_api, connected, connection_option
from airflow_barrier.cli.frame import DONE, TRY_AGAIN, USAGE, Command, say
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.revision_backfills import Backfill
    from airflow_barrier.hooks.airflow_api import AirflowApi
    from airflow_barrier.protocol.revisions import Revision

#: What :func:`~airflow_barrier.cli.commands.revise.wanting.wanted_arguments` adds and a revision that was begun knows.
_SETTLED = (
    "first",
    "last",
    "jobs",
    "tables",
    "full",
    "reused",
    "recut",
    "sql",
    "files",
    "at",
    "accept_pause",
    "reason",
)

#: Barriers that lack something, for a person: after the beginning that is all of them.
_SHOWN = 3


@dataclass(frozen=True)
class Asked:
    """A backfill: the command for it, and its number in Airflow once it was asked for."""

    backfill: Backfill
    command: str
    backfill_id: int | None


@dataclass(frozen=True)
class Ran:
    """How far a revision is. ``missing``: what it lacks before it can be published, a phrase each."""

    revision: Revision
    backfills: tuple[Asked, ...]
    missing: tuple[str, ...]


def _define(parser: argparse.ArgumentParser) -> None:
    topology_option(parser)
    parser.add_argument(
        "--revision", type=one_or_more, metavar="N", help="go on with this one, which was begun, instead of another one"
    )
    wanted_arguments(parser)
    parser.add_argument("--reason", help="why, for the audit; needed to begin one")
    parser.add_argument(
        "--airflow-conn-id", help="ask Airflow for the backfill, by this connection of type http to its API server"
    )
    connection_option(parser)


def _run(options: argparse.Namespace) -> int:
    settled = [name for name in _SETTLED if getattr(options, name)]
    if options.revision is not None and settled:
        say("expected nothing about what to revise beside --revision: that was settled when it was begun")
        return USAGE
    if options.revision is None and not options.reason:
        say("expected --reason to begin a revision, or --revision to go on with one; nothing was changed")
        return USAGE
    # asked for first: a revision is not begun for want of a connection that is not there
    api = airflow_api(options.airflow_conn_id) if options.airflow_conn_id else None
    with connected(options.conn_id) as deployment:
        if options.revision is None:
            return _begin(deployment, options, api)
        return _go_on(deployment, options, api)


def _begin(deployment: Deployment, options: argparse.Namespace, api: AirflowApi | None) -> int:
    from airflow_barrier.coordinator.revising import begin_revision
    from airflow_barrier.coordinator.revision_backfills import backfills_of_plan

    plan = plan_of(deployment, options)
    revision = begin_revision(deployment, plan, reason=options.reason, actor=actor())
    missing = deployment.meta.revisions.unstaged(revision.topology, revision.revision)
    return _ask(options, revision, backfills_of_plan(plan), missing, api)


def _go_on(deployment: Deployment, options: argparse.Namespace, api: AirflowApi | None) -> int:
    from airflow_barrier.coordinator.revision_backfills import backfills_left
    from airflow_barrier.coordinator.swapping import Swapped, publish_revision

    outcome = publish_revision(deployment, options.topology, options.revision, actor=actor())
    if isinstance(outcome, Swapped):
        answer(options, Ran(outcome.revision, (), ()), _show)
        return DONE
    left = backfills_left(deployment.meta, outcome.revision)
    asked = _ask(options, outcome.revision, left, outcome.missing, api)
    return asked or TRY_AGAIN


def _ask(
    options: argparse.Namespace,
    revision: Revision,
    backfills: Sequence[Backfill],
    missing: Sequence[str],
    api: AirflowApi | None,
) -> int:
    """Of Airflow or, without a connection to it, of the person."""
    asked: list[Asked] = []
    try:
        for issued in _issued(revision, backfills, api):
            asked.append(issued)  # one by one: the next may be refused
    except Exception:
        say(f"{revision} is begun; to go on: {continue_command(options, revision.revision)}")
        raise
    finally:  # what was begun stands, whatever Airflow says
        rest = [Asked(each, backfill_command(each, revision.revision), None) for each in backfills[len(asked) :]]
        answer(options, Ran(revision, (*asked, *rest), tuple(missing)), _show)
    return DONE


def _issued(revision: Revision, backfills: Sequence[Backfill], api: AirflowApi | None) -> Iterator[Asked]:
    if api is None:
        return
    from airflow_barrier.protocol.revisions import TOKEN

    for each in backfills:
        number = api.create_backfill(each.dag_id, each.first, each.last, {TOKEN: revision.revision})
        yield Asked(each, backfill_command(each, revision.revision), number)


def _show(found: Ran, console: Console) -> None:
    from airflow_barrier.protocol.revisions import RevisionState

    revision = found.revision
    line(console, f"{revision} is {revision.state.value}", "bold")
    if revision.state is RevisionState.COMMIT:
        line(console, f"barriers {revision.first_barrier} to {revision.last} as computed again are what readers see")
        return
    for text in found.missing[:_SHOWN]:
        line(console, f"  missing: {text}")
    if len(found.missing) > _SHOWN:
        line(console, f"  and at {len(found.missing) - _SHOWN} more barriers, which `revise status` lists")
    for each in found.backfills:
        if each.backfill_id is not None:
            line(console, f"Airflow's backfill {each.backfill_id} of DAG {each.backfill.dag_id} computes it")
    left = [each.command for each in found.backfills if each.backfill_id is None]
    if left:
        line(console, "to be run where Airflow is:")
        dags = [each.backfill.dag_id for each in found.backfills]
        if len(set(dags)) < len(dags):
            line(console, "create each when the one before it has ended: Airflow takes one backfill of a DAG at a time")
    for command in left:
        line(console, f"  {command}")


RUN = Command(
    "run",
    "Begin a revision as `revise plan` says it, and have Airflow compute it. Prints its number, and the backfill that "
    "computes it; with --airflow-conn-id Airflow is asked for that at once. The last run publishes it."
    "\n\n"
    "--revision N goes on with one that was begun: publishes it if all is computed (also after a crash in the middle "
    "of that), or else says what is missing, with exit code 75, and asks for the runs that have not come.",
    _define,
    _run,
    examples=(
        '--topology shopping --from 2017-01-05 --to 2017-01-06 --reason "ticket 19: store 367 twice"',
        '--topology shopping --from 2017-01-05 --reason "ticket 20" --airflow-conn-id barrier_airflow_api',
        "--topology shopping --revision 7",
    ),
)
