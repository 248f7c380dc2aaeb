"""`airflow-barrier revision status`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import one_or_more, revision_argument, topology_argument
from airflow_barrier.cli.connection import database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import Columns, answer, line, moment, row, show_table, state_of, table, tell

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.records import Barrier, TableProgress
    from airflow_barrier.protocol.revisions import Revision, RevisionRun


@dataclass(frozen=True)
class RevisedBarrier:
    """A barrier as a revision computes it, and the runs that were bound to it."""

    barrier: Barrier
    tables: tuple[TableProgress, ...]
    runs: tuple[RevisionRun, ...]


@dataclass(frozen=True)
class RevisionStatus:
    """``barriers``: while it is under way. ``missing``: what it lacks before it can be published, a phrase each;
    ``awaited``: the barriers that a person asked for and of which no run has come.
    """

    revision: Revision
    barriers: tuple[RevisedBarrier, ...]
    missing: tuple[str, ...]
    awaited: tuple[int, ...]


def _options(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    revision_argument(which, "this one, barrier by barrier", nargs="?")
    which.add_argument("--limit", type=one_or_more, default=20, metavar="N", help="how many (default: %(default)s)")


def _run(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        meta.topologies.version(options.topology)  # one that is not there has no revisions either, and is told apart
        if options.json:
            tell(options, _told(options, meta))
        elif options.revision is not None:
            answer(options, _status(meta, options.topology, options.revision), _show)
        else:
            answer(options, meta.revisions.newest(options.topology, options.limit), _show_list)
    return DONE


def _told(options: argparse.Namespace, meta: MetaService) -> models.Revisions | models.RevisionDetail:
    from airflow_barrier.api import upkeep
    from airflow_barrier.cli.telling import sight_of

    sight = sight_of(options, meta)
    if options.revision is not None:
        return upkeep.revision(sight, options.revision)
    return upkeep.revisions(sight, limit=options.limit)


def _status(meta: MetaService, topology: str, number: int) -> RevisionStatus:
    from airflow_barrier.coordinator.revisions.backfills import awaited
    from airflow_barrier.protocol.revisions import RevisionState

    revision = meta.revisions.get(topology, number)
    barriers = meta.revisions.barriers(topology, number)
    runs = meta.revisions.runs(topology, number)
    staging = revision.state is RevisionState.STAGING
    return RevisionStatus(
        revision,
        tuple(
            RevisedBarrier(
                barrier,
                tuple(meta.revisions.progress(topology, number, barrier.barrier_id)),
                tuple(run for run in runs if run.barrier_id == barrier.barrier_id),
            )
            for barrier in barriers
        ),
        tuple(meta.revisions.unstaged(topology, number)) if staging else (),
        tuple(barrier.barrier_id for barrier in awaited(meta, revision)),
    )


_LISTED: Columns[Revision] = {
    "revision": lambda one: one.revision,
    "state": lambda one: state_of(one.state),
    "mode": lambda one: one.mode.value,
    "barriers": lambda one: f"{one.first_barrier} to {'the head' if one.last is None else one.last}",
    "tables": lambda one: one.tables,
    "begun (UTC)": lambda one: one.created_at,
    "by": lambda one: one.actor,
    "why": lambda one: one.reason,
}


def _show_list(revisions: Sequence[Revision], console: Console) -> None:
    if not revisions:
        line(console, "no revision was begun yet")
        return
    show_table(console, _LISTED, revisions)


def _show(found: RevisionStatus, console: Console) -> None:
    revision = found.revision
    line(console, f"{revision} is {revision.state.value}", "bold")
    line(console, f"  {revision.mode.value}, because {', '.join(revision.changed)} changed: {revision.reason}")
    line(console, f"  begun {moment(revision.created_at)} UTC by {revision.actor}")
    line(console, f"  tables {', '.join(revision.tables)}")
    if revision.recut:
        line(console, f"  cut anew: {', '.join(revision.recut)}")
    for what, at in (
        (f"decided, at barrier {revision.head}", revision.committing_at),
        (f"published: barriers {revision.first_barrier} to {revision.last}", revision.commit_at),
        ("cancelled", revision.cancelled_at),
    ):
        if at is not None:
            line(console, f"  {what}: {moment(at)} UTC")
    if not revision.is_under_way:
        return
    gate = "closed: no barrier opens until it is published" if revision.gated else "open"
    line(console, f"  gate {gate}")
    shown = table(console, "barrier", "timestamp (UTC)", "state", "tables", "runs")
    for one in found.barriers:
        row(
            shown,
            one.barrier.barrier_id,
            one.barrier.timestamp,
            state_of(one.barrier.state),
            [f"{each.table}: {each.state.value}" for each in one.tables],
            [_run_of(run) for run in one.runs]
            or ("none has come yet" if one.barrier.barrier_id in found.awaited else ""),
        )
    console.print(shown)
    for text in found.missing:
        line(console, f"missing: {text}")
    if not found.missing:
        command = f"airflow-barrier revision run {revision.topology} {revision.revision}"
        line(console, f"all is computed; to publish it: {command}")


def _run_of(run: RevisionRun) -> str:
    since = "woken, has not come yet" if run.arrived_at is None else f"came {moment(run.arrived_at)}"
    return f"{run.dag_id}/{run.run_id}: {since}"


STATUS = Command(
    "status",
    "Show the revisions of a topology, the newest first. With a NUMBER one of them: its barriers and their tables, "
    "the runs that have come, and what is missing before it can be published.",
    (topology_argument, _options, database_options),
    _run,
    examples=(
        "shopping",
        "shopping 7",
        "shopping 7 --json | jq -r '.missing[]'",
    ),
)
