"""A plan in sentences, for logs and pages, and as a command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from airflow_barrier.coordinator.revisions.plan import RevisionPlan, Wanted
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import MAX_REPLAY_BARRIERS, RevisionMode

#: Items of a cut that a person is told.
_SHOWN = 3


def plan_lines(plan: RevisionPlan) -> tuple[str, ...]:
    """The plan without its notes: which barriers and tables are computed again, from which input, and what readers see.

    >>> plan_lines(plan)[0]  # doctest: +SKIP
    'barriers 2 to 5 are computed again, on top of barrier 1 of shopping, ...'
    """
    first, last = plan.barriers[0].barrier_id, plan.barriers[-1].barrier_id
    which = f"barrier {first} is" if first == last else f"barriers {first} to {last} are"
    tables = (
        f"{each.table} by job {each.job} of DAG {each.owner}, {_number(each.rows)} rows now" for each in plan.tables
    )
    inputs = (
        f"input of job {each.job} at barrier{'s' if len(each.barriers) > 1 else ''} {ranges(each.barriers)}: "
        f"{each.kind}, {each.detail}"
        for each in plan.inputs
    )
    recuts = (
        f"source {each.cut.source} is cut anew at barrier {each.barrier_id}: {some(each.leaving)} leave, "
        f"{some(each.joining)} join"
        for each in plan.recuts
    )
    return (
        f"{which} computed again, on top of {plan.predecessor}, because of {', '.join(plan.changed)}",
        *(f"computed again: {table}" for table in tables),
        f"stay as they are: {', '.join(plan.untouched) or 'none'}",
        *inputs,
        *recuts,
        *(f"code changed since: job {job}" for job in plan.code_changed),
        *(f"readers see {text}" for text in seen_by_readers(plan)),
    )


def seen_by_readers(plan: RevisionPlan) -> Sequence[str]:
    """Readers' view before the publish and after it, a phrase each."""
    first, head = plan.barriers[0].barrier_id, plan.head.barrier_id
    number = f"barrier {head}" if first == head else f"each barrier from {first} to {head}"
    stands = sorted({str(barrier.computed_in) for barrier in plan.barriers})
    return (
        "until it is published: what they see now, whole, at every level",
        f"then, in one step: {number} as computed again, whole, and every later one upon it",
        f"what stands now (revision {', '.join(stands)}) at its number, until its barriers expire",
    )


def notes_of(plan: RevisionPlan) -> tuple[str, ...]:
    """Notes for the plan's author; also of days that no backfill makes runs of."""
    return (*plan.notes, *_unscheduled(plan.window))


def _unscheduled(window: Sequence[Barrier]) -> Sequence[str]:
    """A backfill is made of the schedule's runs."""
    return [
        f"{barrier} was opened by a run that no schedule made ({barrier.run.kind} run {barrier.run}), so a backfill "
        f"passes over it: trigger the DAG for that time with the same conf"
        for barrier in window
        if not barrier.run.is_scheduled
    ]


def revision_command(wanted: Wanted, *more: str) -> str:
    """Return `revision run` for what is wanted but its corrections, with ``more`` words.

    >>> revision_command(Wanted("shopping", 5, changed=["price"]))
    'airflow-barrier revision run shopping --from 5 --job price --reason "..."'
    """
    words = ["airflow-barrier", "revision", "run", wanted.topology]
    for name, value in (("--from", wanted.first), ("--to", wanted.last)):
        if value is not None:
            words += [name, value.isoformat() if isinstance(value, datetime) else str(value)]
    for name, values in (
        ("--job", wanted.changed),
        ("--table", wanted.tables),
        ("--reuse", wanted.reused),
        ("--recut", wanted.recut),
    ):
        words += [word for value in values for word in (name, value)]
    full = wanted.mode is RevisionMode.FULL
    words += [name for name, asked in (("--full", full), ("--accept-pause", wanted.accept_pause)) if asked]
    if wanted.max_replay_barriers != MAX_REPLAY_BARRIERS:
        words += ["--max-replay-barriers", str(wanted.max_replay_barriers)]
    return f'{shlex.join([*words, *more])} --reason "..."'


def ranges(numbers: Sequence[int]) -> str:
    """Name numbers that rise, runs of them by their ends.

    >>> ranges([2, 3, 4, 7])
    '2-4, 7'
    """
    ends: list[list[int]] = []
    for number in numbers:
        if ends and ends[-1][1] == number - 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def some(items: Sequence[str]) -> str:
    """Name the first few items, for a person.

    >>> some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return f"{', '.join(items[:_SHOWN]) or 'none'}{more}"


def _number(rows: int | None) -> str:
    return "an unknown number of" if rows is None else str(rows)
