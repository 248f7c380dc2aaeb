"""`airflow-barrier revision cancel`"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import revision_argument
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, REFUSED, USAGE, Command, say
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.protocol.revisions import Revision


@dataclass(frozen=True)
class Cancelled:
    """``now``: whether this call gave it up."""

    revision: Revision
    now: bool


def _define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")
    revision_argument(parser)
    parser.add_argument("--reason", required=True, help="why, for the audit and for the tasks that meet it")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")
    connection_option(parser)


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.revisions.publish import cancel_revision
    from airflow_barrier.protocol.revisions import RevisionState

    with connected(options.conn_id) as deployment:
        before = deployment.meta.revisions.get(options.topology, options.revision)
        # what cannot be cancelled, or was before, needs no answer: the MetaService says so
        if before.state is RevisionState.STAGING and not options.yes:
            if not sys.stdin.isatty():
                say("expected --yes, found no terminal to ask on; nothing was changed")
                return USAGE
            if not _is_sure(before):
                say("nothing was changed")
                return REFUSED
        revision = cancel_revision(deployment, options.topology, options.revision, reason=options.reason, actor=actor())
    answer(options, Cancelled(revision, now=before.state is RevisionState.STAGING), _show, _told)
    return DONE


def _told(found: Cancelled) -> models.Done:
    from airflow_barrier.api.outcomes import of_cancel

    return of_cancel(found.revision, changed=found.now)


def _is_sure(revision: Revision) -> bool:
    print(f"{revision} is {revision.state.value}: {revision.reason}", file=sys.stderr)
    print("Give up? What it has computed is lost. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(found: Cancelled, console: Console) -> None:
    if found.now:
        line(console, f"cancelled {found.revision}; readers have seen nothing of it")
    else:
        line(console, f"{found.revision} was cancelled before; nothing to do")


CANCEL = Command(
    "cancel",
    "Give a revision up. Readers have seen nothing of it; what it has computed is lost. Refused once it is decided.",
    _define,
    _run,
    examples=(
        'shopping 7 --reason "the wrong day"',
        'shopping 7 --reason "the wrong day" --yes --json',
    ),
)
