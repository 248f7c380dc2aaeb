"""`airflow-barrier revision cancel`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import reason_option, revision_argument, topology_argument
from airflow_barrier.cli.asking import refused, yes_option
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
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


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.revisions.publish import cancel_revision
    from airflow_barrier.protocol.revisions import RevisionState

    with connected(options.conn_id) as deployment:
        before = deployment.meta.revisions.get(options.topology, options.revision)
        # what cannot be cancelled, or was before, needs no answer: the MetaService says so
        if before.state is RevisionState.STAGING:
            lines = [f"{before} is {before.state.value}: {before.reason}"]
            code = refused(options, lines, "Give up? What it has computed is lost.")
            if code is not None:
                return code
        revision = cancel_revision(deployment, options.topology, options.revision, reason=options.reason, actor=actor())
    answer(options, Cancelled(revision, now=before.state is RevisionState.STAGING), _show, _told)
    return DONE


def _told(found: Cancelled) -> models.Done:
    from airflow_barrier.api.outcomes import of_cancel

    return of_cancel(found.revision, changed=found.now)


def _show(found: Cancelled, console: Console) -> None:
    if found.now:
        line(console, f"cancelled {found.revision}; readers have seen nothing of it")
    else:
        line(console, f"{found.revision} was cancelled before; nothing to do")


CANCEL = Command(
    "cancel",
    "Give a revision up. Readers have seen nothing of it; what it has computed is lost. Refused once it is decided.",
    (
        topology_argument,
        revision_argument,
        reason_option("why, for the audit and for the tasks that meet it"),
        yes_option,
        connection_option,
    ),
    _run,
    examples=(
        'shopping 7 --reason "the wrong day"',
        'shopping 7 --reason "the wrong day" --yes --json',
    ),
)
