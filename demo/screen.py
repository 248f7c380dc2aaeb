"""The last screen: what this run showed, number by number, and whether each claim held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from airflow_barrier.protocol.levels import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_barrier.protocol.records import Barrier
    from demo.killing import Aftermath
    from demo.outages import Outage
    from demo.progress import Reads
    from demo.reports import Delivered
    from demo.seeds import SeedsExample, Seen
    from demo.verify import Equality


@dataclass(frozen=True)
class Claim:
    """One thing the demo is about: whether it held in this run, and the numbers that say so."""

    holds: bool
    title: str
    lines: tuple[str, ...]


def claims(
    barriers: Sequence[Barrier],
    wanted: int,
    reads: Mapping[str, Reads],
    delivered: Delivered,
    deliveries: Sequence[int],
    reports: Reads | None,
    aftermath: Aftermath,
    equality: Equality,
    plain_differences: Sequence[str],
    seeds: SeedsExample,
) -> list[Claim]:
    """Everything that is claimed, in the order of the screen."""
    return [
        _torn_reads(reads),
        killed_claim(aftermath),
        equality_claim(equality, wanted, "the landed files"),
        _delivered(delivered, deliveries, reports, barriers),
        _plain(plain_differences),
        _seeds(seeds),
        times_claim(
            barriers, wanted, f"in catch-up, up to 4 at a time; their timestamps are of {barriers[0].timestamp:%Y}"
        ),
    ]


def lines_of(claims: Sequence[Claim]) -> list[str]:
    """The screen, as lines with rich's markup."""
    lines = []
    for claim in claims:
        mark = "[green]holds[/]" if claim.holds else "[bold red]DOES NOT HOLD[/]"
        lines.append(f"[bold]{escape(claim.title)}[/]  {mark}")
        lines += [f"    {escape(line)}" for line in claim.lines]
    return lines


def _torn_reads(reads: Mapping[str, Reads]) -> Claim:
    plain, barrier = reads["plain"], reads["barrier"]
    lines = [
        f"uncoordinated  {plain.torn:>4} torn of {plain.count:>4} reads",
        f"barriers       {barrier.torn:>4} torn of {barrier.count:>4} reads (repeatable read)",
    ]
    for side, found in reads.items():
        if found.first_torn is not None:
            lines.append(f"the first torn one ({side}): {_contradiction(found.first_torn)}")
    holds = barrier.torn == 0 and barrier.count > 0 and plain.torn > 0
    return Claim(holds, "Torn reads: five tables asked for the same totals, all the time", tuple(lines))


def _contradiction(read: Mapping[str, Any]) -> str:
    for what in ("items", "money", "pairs"):
        if len(set(read[what].values())) > 1:
            said = ", ".join(f"{table} {value}" for table, value in read[what].items())
            return f"{what} at {read['at'][11:19]}: {said}"
    return "nothing contradicts"


def killed_claim(found: Aftermath) -> Claim:
    victim = next(a for a in found.attempts if a.attempt_id == found.killed.attempt_id)
    lines = [
        f"job {victim.job}: process {found.killed.pid} got SIGKILL after Spark had staged snapshot "
        f"{found.killed.staged} of {found.killed.table}"
    ]
    for attempt in found.attempts:
        staged = attempt.staged.get(found.killed.table)
        what = f", staged {staged.snapshot_id}" if staged else ""
        published = ", which was published" if staged and staged.snapshot_id == found.published else ""
        lines.append(f"attempt {attempt.attempt_id} is {attempt.state.value}{what}{published}")
    return Claim(found.holds, f"One job killed at barrier {victim.barrier_id}", tuple(lines))


def equality_claim(found: Equality, wanted: int, what: str) -> Claim:
    checked = found.tables * found.barriers
    lines = (
        f"{checked - len(found.differences)} of {checked} equal ({found.tables} tables x {found.barriers} barriers, "
        f"{found.rows:,} rows compared)",
        *found.differences[:3],
    )
    holds = not found.differences and found.barriers == wanted
    return Claim(holds, f"Each table at each barrier against its full recomputation from {what}", lines)


def _delivered(found: Delivered, deliveries: Sequence[int], reads: Reads | None, barriers: Sequence[Barrier]) -> Claim:
    lines = [f"{len(deliveries)} barriers delivered, in order; {found.rows:,} rows compared there"]
    if reads is not None:
        lines.append(f"{reads.torn} torn of {reads.count} reads that joined the three tables there by plain SQL")
    holds = (
        len(deliveries) > 0
        and list(deliveries) == [barrier.barrier_id for barrier in barriers][-len(deliveries) :]
        and not found.differences
        and (reads is None or (reads.torn == 0 and reads.count > 0))
    )
    return Claim(holds, f"Three of the tables delivered to {found.where}", (*lines, *found.differences[:3]))


def delivered_claim(found: Delivered, all_in_order: bool) -> Claim:
    lines = (f"{found.rows:,} rows compared", *found.differences[:3])
    return Claim(
        all_in_order and not found.differences, f"Each barrier delivered once, in order, to {found.where}", lines
    )


def unbroken_claim(title: str, reads: Reads) -> Claim:
    lines = [f"{reads.torn} torn of {reads.count} reads"]
    if reads.first_torn is not None:
        lines.append(f"the first torn one: {reads.first_torn}")
    return Claim(reads.count > 0 and reads.torn == 0, title, tuple(lines))


def outages_claim(outages: Sequence[Outage], wanted: Collection[str]) -> Claim:
    lines = [
        f"{each.server} got SIGKILL at barrier {each.number}, and was away for {each.seconds:.1f} s" for each in outages
    ]
    holds = {each.server for each in outages} == set(wanted)
    return Claim(
        holds, "Servers killed and started again with what they had", tuple(lines or ["none was to be killed"])
    )


def _plain(differences: Sequence[str]) -> Claim:
    lines = ("all six are right once nothing runs any more: they were wrong only together", *differences[:3])
    return Claim(
        not differences, "The uncoordinated tables, after the last day", lines if not differences else lines[1:]
    )


def _seeds(found: SeedsExample) -> Claim:
    lines = (
        f"only the price PROCESSED  {_seen(found.half)}",
        f"barrier PRECOMMIT         {_seen(found.precommit)}",
        f"barrier COMMIT            {_seen(found.commit)}    = 2500 / 300",
    )
    return Claim(found.holds, "FLIP-276's example: 100 items for 1000, then 200 more for 1500", lines)


def _seen(seen: Seen) -> str:
    return "   ".join(f"{level.value.replace('_', ' ')} {seen[level]:.5f}" for level in Level)


def times_claim(barriers: Sequence[Barrier], wanted: int, how: str) -> Claim:
    took = [b.commit_at - b.opened_at for b in barriers if b.commit_at is not None]
    processing = [b.precommit_at - b.opened_at for b in barriers if b.precommit_at is not None]
    commits = [b.commit_at - b.precommit_at for b in barriers if b.commit_at is not None and b.precommit_at is not None]
    lines = (
        f"median {_seconds(took)} from opening to readable, {_seconds(processing)} of it until the last table was "
        f"PROCESSED, {_seconds(commits)} to publish",
        f"opened by the scheduler {how}",
    )
    return Claim(len(took) == wanted, f"{len(took)} barriers committed, in order", lines)


def _seconds(times: Sequence[timedelta]) -> str:
    return f"{median(time.total_seconds() for time in times):.1f} s" if times else "-"
