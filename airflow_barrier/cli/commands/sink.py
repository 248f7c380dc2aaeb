"""`airflow-barrier sink list`, `show`, and what a person decides about one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import lasting, one_or_more, reason_option, topology_argument
from airflow_barrier.cli.connection import actor, database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command, Group
from airflow_barrier.cli.screen import answer, line, row, table
from airflow_barrier.protocol.deliveries import Remedy

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.status import SinkStatus
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.deliveries import DeliveryRecord


def show_sinks(sinks: Sequence[SinkStatus], console: Console) -> None:
    """Print them as a table, and below it why deliveries fail."""
    if not sinks:
        line(console, "No sink is registered: the first delivery of a DAG does it (barrier.deliver).")
        return
    shown = table(console, "sink", "kind", "DAG", "state", "is at", "lacks", "since (UTC)")
    for one in sinks:
        sink = one.sink
        failures = "once" if sink.failures == 1 else f"{sink.failures} times"
        state = sink.state.value if sink.error is None else f"{sink.state.value}, failed {failures}"
        at = "nothing yet" if sink.position is None else f"barrier {sink.position}"
        row(shown, sink.name, sink.definition.kind, sink.owner, state, at, one.lacks or None, one.since)
    console.print(shown)
    for sink in (one.sink for one in sinks):
        if sink.error is not None:
            line(console, f"{sink} failed: {sink.error}")
        if sink.remedy is not None:
            line(console, f"{sink}: {sink.remedy.value} is done by its next delivery, a task of DAG {sink.owner}")


def _list(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        _answer(options, meta)
    return DONE


def _answer(options: argparse.Namespace, meta: MetaService) -> None:
    """Answer with all sinks of the topology."""
    from airflow_barrier.coordinator.status import sink_statuses

    def told(found: Sequence[SinkStatus]) -> models.Sinks:
        from airflow_barrier.api import models
        from airflow_barrier.api.summaries import sinks_of
        from airflow_barrier.cli.telling import sight_of

        return models.Sinks(sinks=sinks_of(sight_of(options, meta), found))

    answer(options, sink_statuses(meta, options.topology), show_sinks, told)


def _sink_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sink", help="its name, as `sink list` shows it")


_SINK = (topology_argument, _sink_argument, database_options)


def _limit_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=one_or_more, default=20, help="how many deliveries (default: 20)")


def _show(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        found = meta.deliveries.history(options.topology, options.sink, options.limit)
    answer(options, found, _show_history)
    return DONE


def _show_history(deliveries: Sequence[DeliveryRecord], console: Console) -> None:
    shown = table(console, "barrier", "revision", "inserted", "updated", "deleted", "seconds", "at (UTC)", "by")
    for one in deliveries:
        counts = f"{one.inserted:,}", f"{one.updated:,}", f"{one.deleted:,}"
        row(shown, one.barrier_id, one.revision, *counts, f"{one.seconds:.1f}", one.delivered_at, one.actor)
    console.print(shown)


# --- what a person decides ------------------------------------------------------------------------


def _days_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=lasting("days"), required=True, help="0: nothing is kept for it")


def _doing(change: Callable[[MetaService, argparse.Namespace], object]) -> Callable[[argparse.Namespace], int]:
    """A command that changes something about a sink and shows all of them afterwards."""

    def run(options: argparse.Namespace) -> int:
        with meta_service(options) as meta:
            change(meta, options)
            _answer(options, meta)
        return DONE

    return run


def _hold(meta: MetaService, options: argparse.Namespace) -> object:
    days: timedelta = options.days
    return meta.deliveries.hold(options.topology, options.sink, int(days.total_seconds()), actor())


def _decide(remedy: Remedy) -> Callable[[MetaService, argparse.Namespace], object]:
    return lambda meta, of: meta.deliveries.decide(of.topology, of.sink, remedy, actor(), of.reason)


SINK = Group(
    "sink",
    "How far systems are that tables are delivered to, and what becomes of one that went wrong.",
    (
        Command(
            "list",
            "List the sinks of a topology: how far each is, what it lacks since when, and why deliveries fail.",
            (topology_argument, database_options),
            _list,
            examples=("shopping", "shopping --json | jq '.sinks[] | select(.lacks > 3)'"),
        ),
        Command(
            "show",
            "Show what a sink was delivered: barrier, rows, how long it took, and by which task; newest first.",
            (*_SINK, _limit_option),
            _show,
            examples=("shopping prices", "shopping prices --limit 100 --json"),
        ),
        Command(
            "pause",
            "Deliver nothing to a sink until `sink resume`. What it lacks is kept for it meanwhile, within its limit.",
            (*_SINK, reason_option()),
            _doing(lambda meta, of: meta.deliveries.pause(of.topology, of.sink, actor(), of.reason)),
            examples=('shopping prices --reason "the database is migrated"',),
        ),
        Command(
            "resume",
            "Let deliveries to a sink go on: the next one catches up.",
            (*_SINK, reason_option()),
            _doing(lambda meta, of: meta.deliveries.resume(of.topology, of.sink, actor(), of.reason)),
            examples=('shopping prices --reason "the database is there again"',),
        ),
        Command(
            "hold",
            "Say for how long barriers that a sink lacks are kept from expiry (a week, unless this was said). What it "
            "lacks for longer may expire, and then it has to be loaded anew.",
            (*_SINK, _days_option),
            _doing(_hold),
            examples=("shopping prices --days 30",),
        ),
        Command(
            "adopt",
            "Have the next delivery go on from what the sink's ledger says, whoever wrote it: after the sink was "
            "restored from a backup, moved to a copy, or the MetaService was recovered. Its rows have to be those that "
            "the ledger tells of; where that is not sure, take `sink redeliver`.",
            (*_SINK, reason_option()),
            _doing(_decide(Remedy.ADOPT)),
            examples=('shopping prices --reason "restored from last night"',),
        ),
        Command(
            "redeliver",
            "Have the next delivery compare the sink's targets with the tables and change what differs. Rows that were "
            "never delivered stay; of rows that the tables have no more, those go that are known to have been "
            "delivered.",
            (*_SINK, reason_option()),
            _doing(_decide(Remedy.REDELIVER)),
            examples=('shopping prices --reason "somebody changed prices by hand"',),
        ),
        Command(
            "release",
            "Let go of a sink: nothing is kept for it any more, and another DAG may deliver to it. What was delivered "
            "stays there, with the sink's ledger, and what was decided about it counts again with the next run of a "
            "DAG that delivers to it.",
            (*_SINK, reason_option()),
            _doing(lambda meta, of: meta.deliveries.release(of.topology, of.sink, actor(), of.reason)),
            examples=('shopping prices --reason "the report is gone"',),
        ),
    ),
)
