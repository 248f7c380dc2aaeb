"""What the run looks like while it runs: which tables of which barrier are PROCESSED, and what waits for whom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from demo.poller import reads_file
from demo.reports import SINK

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.records import Attempt, Barrier
    from demo.places import Places

TOPOLOGY = "shopping"
#: How many jobs run without barriers.
_PLAIN_JOBS = 6
_LEGEND = "· not yet   ▶ running, ▶2 its second try   ● PROCESSED   ✔ WRITTEN   = unchanged at this barrier"
_MARKS = {
    TableState.PENDING: ("·", "dim"),
    TableState.PROCESSED: ("●", "yellow"),
    TableState.WRITTEN: ("✔", "green"),
}


@dataclass(frozen=True)
class Reads:
    """How many reads a side answered, how many of them contradicted themselves, and the first that did."""

    count: int
    torn: int
    first_torn: dict[str, object] | None


def reads_of(places: Places, side: str) -> Reads:
    """What the poller of ``side`` has noted so far."""
    file = reads_file(places, side)
    lines = file.read_text().splitlines() if file.exists() else []
    reads = [json.loads(line) for line in lines if line.endswith("}")]
    torn = [read for read in reads if read["torn"]]
    return Reads(len(reads), len(torn), torn[0] if torn else None)


def barriers_of(meta: MetaService) -> list[Barrier]:
    """All barriers opened so far that were not aborted, oldest first."""
    if TOPOLOGY not in meta.topologies.names():
        return []
    found: list[Barrier] = []
    barrier = meta.barriers.head(TOPOLOGY)
    while barrier is not None and barrier.barrier_id:
        found.append(barrier)
        barrier = meta.barriers.get(TOPOLOGY, barrier.predecessor or 0)
    return found[::-1]


def delivered_barriers(meta: MetaService, sink: str = SINK) -> list[int]:
    """The barriers that a sink has received, oldest first."""
    if TOPOLOGY not in meta.topologies.names() or sink not in {sink.name for sink in meta.deliveries.of(TOPOLOGY)}:
        return []
    return sorted(each.barrier_id for each in meta.deliveries.history(TOPOLOGY, sink))


def picture(meta: MetaService, barriers: Sequence[Barrier], summary: str, times: str = "%Y-%m-%d") -> RenderableType:
    """Everything on one screen; drawn anew several times a second. ``times``: how barriers' timestamps are shown."""
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    jobs = [job.name for job in meta.topologies.get(TOPOLOGY).jobs] if barriers else []
    for title in ("#", "at", "state", *jobs):
        grid.add_column(title)
    waits = []
    for barrier in barriers:
        attempts = meta.attempts.of(TOPOLOGY, barrier.barrier_id) if barrier.state is BarrierState.OPEN else []
        grid.add_row(*_row(meta, barrier, jobs, attempts, times))
        waits += [
            Text(f"{attempt.job} at barrier {barrier.barrier_id} waits for {', '.join(map(str, attempt.waited_for))}")
            for attempt in attempts
            if attempt.state is AttemptState.REQUESTED and attempt.waited_for
        ]
    return Group(grid, Text(_LEGEND, "dim"), *waits, Text(summary, "bold"))


def torn_so_far(places: Places, sides: Iterable[str]) -> str:
    """How many reads of each side contradicted themselves."""
    reads = {side: reads_of(places, side) for side in sides}
    said = ", ".join(f"{side} {found.torn} of {found.count}" for side, found in reads.items())
    return f"torn reads so far: {said}"


def plain_days(memory: Path) -> int:
    """How many days all of the uncoordinated jobs have done."""
    days = [json.loads(file.read_text())["days"] for file in memory.glob("*.json")]
    return min(days) if len(days) == _PLAIN_JOBS else 0


def _row(
    meta: MetaService, barrier: Barrier, jobs: Sequence[str], attempts: Sequence[Attempt], times: str
) -> list[Text]:
    progress = {p.job: p for p in meta.barriers.progress(TOPOLOGY, barrier.barrier_id)}
    cells = []
    for job in jobs:
        found = progress[job]  # of its tables any, which go together
        mark, style = _MARKS[found.state]
        tries = [attempt for attempt in attempts if attempt.job == job]
        if found.state is TableState.PENDING and tries and tries[-1].state is AttemptState.RUNNING:
            mark, style = "▶" if len(tries) == 1 else f"▶{len(tries)}", "cyan"
        elif found.carried_from is not None:
            mark += " ="
        cells.append(Text(mark, style))
    style = "green" if barrier.state is BarrierState.COMMIT else "bold"
    what = (str(barrier.barrier_id), barrier.timestamp.strftime(times), barrier.state.value)
    return [*(Text(text, style) for text in what), *cells]
