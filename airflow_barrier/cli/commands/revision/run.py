"""`airflow-barrier revision run`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import revision_argument, topology_argument
from airflow_barrier.cli.commands.revision.wanting import (
    backfill_command,
    plan_of,
    wanted_arguments,
)
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, TRY_AGAIN, USAGE, Command, say
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.revisions.backfills import Backfill
    from airflow_barrier.protocol.revisions import Revision

#: What :func:`.wanted_arguments` adds and a revision that was begun knows.
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
class ToCreate:
    """A backfill, and Airflow's command for it."""

    backfill: Backfill
    command: str


@dataclass(frozen=True)
class Ran:
    """The progress of a revision. ``missing``: what it lacks before it can be published, a phrase each."""

    revision: Revision
    backfills: tuple[ToCreate, ...]
    missing: tuple[str, ...]


def _options(parser: argparse.ArgumentParser) -> None:
    revision_argument(parser, "go on with this one, which was begun, instead of another one", nargs="?")
    wanted_arguments(parser)
    parser.add_argument("--reason", help="why, for the audit; needed to begin one")


def _run(options: argparse.Namespace) -> int:
    settled = [name for name in _SETTLED if getattr(options, name)]
    if options.revision is not None and settled:
        say("expected nothing about what to revise beside a revision's number: that was settled when it was begun")
        return USAGE
    if options.revision is None and not options.reason:
        say("expected --reason to begin a revision, or the number of one to go on with; nothing was changed")
        return USAGE
    with connected(options.conn_id) as deployment:
        if options.revision is None:
            return _begin(deployment, options)
        return _go_on(deployment, options)


def _begin(deployment: Deployment, options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.revisions.backfills import backfills_of_plan
    from airflow_barrier.coordinator.revisions.begin import begin_revision

    plan = plan_of(deployment, options)
    revision = begin_revision(deployment, plan, reason=options.reason, actor=actor())
    missing = deployment.meta.revisions.unstaged(revision.topology, revision.revision)
    _answer(options, revision, backfills_of_plan(plan), missing)
    return DONE


def _go_on(deployment: Deployment, options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.revisions.backfills import backfills_left
    from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision

    outcome = publish_revision(deployment, options.topology, options.revision, actor=actor())
    if isinstance(outcome, Swapped):
        answer(options, Ran(outcome.revision, (), ()), _show)
        return DONE
    _answer(options, outcome.revision, backfills_left(deployment.meta, outcome.revision), outcome.missing)
    return TRY_AGAIN


def _answer(
    options: argparse.Namespace, revision: Revision, backfills: Sequence[Backfill], missing: Sequence[str]
) -> None:
    to_create = tuple(ToCreate(each, backfill_command(each, revision.revision)) for each in backfills)
    answer(options, Ran(revision, to_create, tuple(missing)), _show)


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
        line(console, f"  and at {len(found.missing) - _SHOWN} more barriers, which `revision status` lists")
    if found.backfills:
        line(console, "to be run where Airflow is:")
        dags = [each.backfill.dag_id for each in found.backfills]
        if len(set(dags)) < len(dags):
            line(console, "create each when the one before it has ended: Airflow takes one backfill of a DAG at a time")
    for each in found.backfills:
        line(console, f"  {each.command}")


RUN = Command(
    "run",
    "Begin a revision as `revision plan` says it. Prints its number, and the command for the backfill that has Airflow "
    "compute it. The last run publishes it."
    "\n\n"
    "With a NUMBER it goes on with one that was begun: publishes it if all is computed (also after a crash in the "
    "middle of that), or else says what is missing, with exit code 75, and which runs have not come, as backfills.",
    (topology_argument, _options, connection_option),
    _run,
    examples=(
        'shopping --from 2017-01-05 --to 2017-01-06 --reason "ticket 19: store 367 twice"',
        "shopping 7",
    ),
)
