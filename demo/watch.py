"""Looking on until the scheduler has brought every barrier to COMMIT, and killing one task meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.live import Live

from airflow_barrier.protocol.states import BarrierState
from demo.killing import Killed, kill_held
from demo.progress import barriers_of, delivered_barriers, picture, plain_days, torn_so_far
from demo.running import DemoFailedError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.protocol.records import Barrier
    from demo.local_airflow import LocalAirflow
    from demo.places import Places


def watch(
    deployment: Deployment, airflow: LocalAirflow, places: Places, console: Console, days: int, deadline: float
) -> Killed:
    """Returns once ``days`` barriers are COMMIT and delivered, and the uncoordinated jobs are through; says who was
    killed.

    ``deadline`` is on the monotonic clock. Raises :class:`DemoFailedError` when it has passed.
    """
    killed: Killed | None = None
    said = 0
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while True:
            airflow.check()
            if killed is None:
                killed = kill_held(deployment, places)
                if killed is not None:
                    console.print(f"Sent SIGKILL to process {killed.pid}, which had just staged {killed.table}.")
            barriers = barriers_of(deployment.meta)
            done = [barrier for barrier in barriers if barrier.state is BarrierState.COMMIT]
            for barrier in done[said:]:
                console.print(f"{barrier} is COMMIT.", highlight=False)
            said = len(done)
            delivered = delivered_barriers(deployment.meta)
            all_delivered = delivered[-1:] == [barrier.barrier_id for barrier in done[-1:]]
            if len(done) == days and all_delivered and plain_days(places.plain_memory) == days:
                break
            if time.monotonic() > deadline:
                raise DemoFailedError(_stuck(barriers, len(delivered), days, plain_days(places.plain_memory)))
            summary = (
                f"{len(done)} of {days} barriers COMMIT, {len(delivered)} of them delivered; "
                f"{plain_days(places.plain_memory)} of {days} days done uncoordinated; "
                f"{torn_so_far(places, ('plain', 'barrier'))}"
            )
            live.update(picture(deployment.meta, barriers, summary))
            time.sleep(0.5)
    if killed is None:
        raise DemoFailedError("expected one task to be held and killed, found none that was")
    return killed


def _stuck(barriers: Sequence[Barrier], delivered: int, days: int, plain: int) -> str:
    states = ", ".join(f"{barrier.barrier_id} {barrier.state.value}" for barrier in barriers) or "none"
    return (
        f"expected {days} barriers to be COMMIT and delivered in time, found {states}; delivered: {delivered}; "
        f"uncoordinated days done: {plain}"
    )
