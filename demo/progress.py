"""What the run looks like while it runs: which tables of which barrier are PROCESSED, and what waits for whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from demo.poller import reads_file

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_barrier.metaservice.store import MetaService
    from rich.console import RenderableType

    from airflow_barrier.protocol.records import Barrier
    from demo.places import Places

TOPOLOGY = "shopping"
TABLES = (
    "shopping",
    "products",
    "user_item_amount",
    "user_item_price",
    "user_category_spend",
    "user_item_avg_price",
)
_MARKS = {
    TableState.PENDING: ("·", "dim"),
    TableState.PROCESSED: ("PROCESSED", "yellow"),
    TableState.WRITTEN: ("WRITTEN", "green"),
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
    if TOPOLOGY not in meta.topologies():
        return []
    found: list[Barrier] = []
    barrier = meta.head(TOPOLOGY)
    while barrier is not None and barrier.barrier_id:
        found.append(barrier)
        barrier = meta.barrier(TOPOLOGY, barrier.predecessor or 0)
    return found[::-1]


def picture(meta: MetaService, barriers: Sequence[Barrier], wanted: int, places: Places) -> RenderableType:
    """Everything on one screen; drawn anew several times a second."""
    grid = Table(expand=False)
    grid.add_column("barrier")
    grid.add_column("of")
    grid.add_column("state")
    for table in TABLES:
        grid.add_column(table.removeprefix("user_"))
    grid.add_column("waits for")
    for barrier in barriers:
        grid.add_row(*_row(meta, barrier))
    reads = {side: reads_of(places, side) for side in ("plain", "barrier")}
    summary = Text(
        f"{sum(b.state is BarrierState.COMMIT for b in barriers)} of {wanted} barriers are COMMIT; uncoordinated: "
        f"{plain_days(places.plain_memory)} days done. Torn reads so far: "
        + ", ".join(f"{side} {found.torn} of {found.count}" for side, found in reads.items())
    )
    return Group(grid, summary)


def plain_days(memory: Path) -> int:
    """How many days all of the uncoordinated jobs have done."""
    days = [json.loads(file.read_text())["days"] for file in memory.glob("*.json")]
    return min(days) if len(days) == len(TABLES) else 0


def _row(meta: MetaService, barrier: Barrier) -> list[Text]:
    progress = {p.table: p for p in meta.progress(TOPOLOGY, barrier.barrier_id)}
    running = {
        attempt.job: attempt
        for attempt in meta.attempts(TOPOLOGY, barrier.barrier_id)
        if barrier.state is BarrierState.OPEN
    }
    cells = []
    for table in TABLES:
        state = progress[f"shop.{table}"]
        mark, style = _MARKS[state.state]
        attempt = running.get(state.job or "")
        if state.state is TableState.PENDING and attempt is not None and attempt.state is AttemptState.RUNNING:
            mark, style = f"running (try {attempt_number(meta, barrier, attempt.job)})", "cyan"
        elif state.carried_from is not None:
            mark = f"{mark} (unchanged)"
        cells.append(Text(mark, style))
    waits = [
        f"{attempt.job}: " + ", ".join(f"{need.table} at {need.barrier_id}" for need in attempt.waited_for)
        for attempt in running.values()
        if attempt.state is AttemptState.REQUESTED and attempt.waited_for
    ]
    style = "green" if barrier.state is BarrierState.COMMIT else "bold"
    return [
        Text(str(barrier.barrier_id)),
        Text(f"{barrier.timestamp:%Y-%m-%d}"),
        Text(barrier.state.value, style),
        *cells,
        Text("; ".join(waits)),
    ]


def attempt_number(meta: MetaService, barrier: Barrier, job: str) -> int:
    """How many attempts of ``job`` the barrier has seen."""
    return sum(attempt.job == job for attempt in meta.attempts(TOPOLOGY, barrier.barrier_id))
