"""`airflow-barrier status`"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_barrier.cli.commands.sink import show_sinks
from airflow_barrier.cli.connection import credentials, database_options, meta_service
from airflow_barrier.cli.frame import DONE, LATE, REFUSED, Command, say
from airflow_barrier.cli.screen import answer, colour_of, line, moment, shortened
from airflow_barrier.protocol.errors import MetaServiceMissingError
from airflow_barrier.protocol.health import Health
from airflow_barrier.protocol.spans import short

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.failing import Failed
    from airflow_barrier.coordinator.lateness import Late
    from airflow_barrier.coordinator.status import BarrierStatus, SourceStatus, TopologyStatus
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.revisions import Revision
    from airflow_barrier.sources.port import Lag

#: Before the first barrier there is nothing here that could tell of it.
_WHERE_A_START_FAILS = "If its run has failed, the log of the task start says why."
#: What ``--check`` says of topologies that are not well.
_CODES = {Health.BLOCKED: REFUSED, Health.FAILING: REFUSED, Health.RETRYING: LATE, Health.LATE: LATE}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology", nargs="?", help="default: every topology")
    parser.add_argument(
        "--check",
        action="store_true",
        help="for probes: the exit code is that of the worst topology. 0: ok, or no barrier yet; 1: blocked or "
        "failing, a person is needed; 3: late or retrying",
    )


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.status import status

    with meta_service(options) as meta:
        names = [options.topology] if options.topology else _names(meta)
        found = [status(meta, name, credentials(options)) for name in names]
    answer(options, found, show_status)
    return _code(one.health for one in found) if options.check else DONE


def _code(found: Iterable[Health]) -> int:
    codes = {_CODES.get(health, DONE) for health in found}
    return next((code for code in (REFUSED, LATE) if code in codes), DONE)


def _names(meta: MetaService) -> list[str]:
    """None where the MetaService is not made yet, which is no fault."""
    try:
        return meta.topologies.names()
    except MetaServiceMissingError as error:
        say(str(error))
        return []


def show_status(topologies: Sequence[TopologyStatus], console: Console) -> None:
    """Print them, one after the other."""
    if not topologies:
        line(
            console,
            f"No topology is registered yet: run a DAG that has a BarrierGroup once. {_WHERE_A_START_FAILS} "
            "airflow-barrier doctor looks at what it needs.",
        )
    for one in topologies:
        line(console, f"{one.topology} (version {one.version}): {one.health.value} · {_readers(one)}", "bold")
        show_trouble(one.failed, one.late, console)
        line(console, f"  repeatable read:  {_serves(one.committed)}")
        line(console, f"  read committed:   {_serves(one.precommitted)}")
        line(console, f"  read uncommitted: {_serves_each(one.uncommitted.values())}")
        if one.revision is not None:
            _show_revision(one.revision, console)
        open_now = {each.barrier.barrier_id for each in one.open}
        for barrier in one.open:
            _show_barrier(barrier, open_now, console)
        if not one.open:
            line(console, "  no barrier is open")
            if one.committed is None:
                line(console, f"    {_WHERE_A_START_FAILS}")
        for source in one.sources:
            _show_source(source, console)
        if one.sinks:
            show_sinks(one.sinks, console)


def _readers(one: TopologyStatus) -> str:
    """Return what readers have, how old it is, and how old it may be."""
    if one.committed_timestamp is None or one.age is None:
        said = f"readers have {_serves(one.committed)}"
    else:
        at = f"barrier {one.committed} of {moment(one.committed_timestamp)} UTC"
        said = f"readers have {at}, {short(one.age)} old"
    return said if one.objective is None else f"{said}, objective {short(one.objective)}"


def show_trouble(failed: Iterable[Failed], late: Iterable[Late], console: Console) -> None:
    """Print who has failed, and who is late."""
    for one in failed:
        again = "" if one.again_at is None else f"; the next try comes at {moment(one.again_at)} UTC"
        line(console, f"  {one.summary}, at {moment(one.at)} UTC{again}", "red")
        if one.reason:
            line(console, f"    {shortened(one.reason)}", "red")
    for each in late:
        line(console, f"  {each.summary} (since {moment(each.since)} UTC)")


def _show_revision(one: Revision, console: Console) -> None:
    again = f"barriers from {one.first_barrier} on are computed again: {one.reason}"
    line(console, f"  revision {one.revision} is {one.state.value}, {again}", colour_of(one.state))
    line(console, f"    how far it is: airflow-barrier revision status {one.topology} {one.revision}")


def _show_barrier(one: BarrierStatus, open_now: Collection[int | None], console: Console) -> None:
    """Show how far a barrier is, and what its jobs do that are not done; if many wait for others, how many they are."""
    barrier = one.barrier
    staged = f"{len(one.tables) - len(one.pending)} of {len(one.tables)} tables staged"
    said = f"barrier {barrier.barrier_id} of {moment(barrier.timestamp)} UTC is {barrier.state.value}, {staged}"
    line(console, f"  {said}", colour_of(barrier.state))
    if barrier.reason:
        line(console, f"    {barrier.reason}")
    missing = [job for job in one.jobs if not job.done]
    waiting = sum(bool(job.waits_for) for job in missing)
    shown = [job for job in missing if not job.waits_for] if waiting > 1 else missing
    for job in shown:
        line(console, f"    {job.job}: {job.summary}")
    if waiting > 1:
        before = [f"barrier {barrier.predecessor}"] if barrier.predecessor in open_now else []
        count, awaited = f"{waiting}{' more' if shown else ''}", [*(["these"] if shown else []), *before]
        line(console, f"    {count} jobs wait for {' or for '.join(awaited)}")


def _show_source(one: SourceStatus, console: Console) -> None:
    lag = one.lag
    if lag is None:
        why = (one.unknown or "").removeprefix(f"source {one.source}: ")
        line(console, f"source {one.source}: how far behind it is read is not known: {why}")
        return
    urgent = lag.is_urgent
    line(console, f"{'warning: ' if urgent else ''}source {one.source}: {_behind(lag)}", "red" if urgent else "")


def _behind(lag: Lag) -> str:
    behind, worst = [part for part in lag.parts if part.behind], lag.worst
    said = f"{lag.behind:,} {lag.unit} behind"
    if worst is not None:
        said += f" in {len(behind)} {lag.called}{'s' if len(behind) > 1 else ''} ({worst.part}: {worst.behind:,})"
    if gone := sum(part.gone for part in lag.parts):
        said += f"; {gone:,} of them are gone already"
    left = lag.retention_left
    if left is not None:
        said += f"; retention takes the oldest of them {f'in {_lasting(left)}' if left > timedelta(0) else 'any time'}"
    return f"{said}; {lag.note}" if lag.note else said


def _lasting(time: timedelta) -> str:
    hours = time / timedelta(hours=1)
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def _serves(barrier_id: int | None) -> str:
    if not barrier_id:
        return "the baseline" if barrier_id == 0 else "nothing yet"
    return f"barrier {barrier_id}"


def _serves_each(barrier_ids: Collection[int]) -> str:
    first, last = min(barrier_ids, default=None), max(barrier_ids, default=None)
    if first == last:
        return _serves(last)
    return f"each table at its own, from {_serves(first)} to {_serves(last)}"


STATUS = Command(
    "status",
    "Show how each topology is, what readers see and how far each open barrier is. In one word how it is, and how old "
    "the data is that readers have; who has failed and who is late; for each level the barrier that it serves; the "
    "revision that is under way; for each barrier that is open what its jobs do that are not done; how far topics are "
    "ahead that are read; how far each sink is.",
    (_options, database_options),
    _run,
    examples=("", "shopping", "--check", "shopping --json | jq '.[0].committed'"),
)
