"""Looking on until the scheduler has brought every barrier to COMMIT, and killing one task meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.live import Live

from airflow_barrier.protocol.states import BarrierState
from demo.killing import Killed, kill_held
from demo.places import CHECKOUT
from demo.progress import barriers_of, delivered_barriers, picture, plain_days, torn_so_far
from demo.running import DemoFailedError, console

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.protocol.records import Barrier
    from demo.local_airflow import LocalAirflow
    from demo.outages import Outages
    from demo.places import Places


@dataclass(frozen=True)
class Step:
    """How far a run is: whether nothing is waited for any more, and where it stands, in words."""

    finished: bool
    summary: str


def look_on(
    deployment: Deployment,
    airflow: LocalAirflow,
    places: Places,
    step: Callable[[Sequence[Barrier], int], Step],
    deadline: float,
    times: str = "%Y-%m-%d",
) -> Killed | None:
    """Until ``step``, which is told all barriers and how many are COMMIT, has finished; says which task was killed.

    ``deadline`` is on the monotonic clock. ``times``: how barriers' timestamps are shown. Raises
    :class:`DemoFailedError` when the deadline has passed.
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
            now = step(barriers, said)
            if now.finished:
                return killed
            if time.monotonic() > deadline:
                states = ", ".join(f"{barrier.barrier_id} {barrier.state.value}" for barrier in barriers) or "none"
                raise DemoFailedError(
                    f"expected the run to be through in time, found barriers: {states}; {now.summary}"
                )
            live.update(picture(deployment.meta, barriers, now.summary, times))
            time.sleep(0.5)


def look_on_deliveries(
    deployment: Deployment,
    airflow: LocalAirflow,
    places: Places,
    writer: subprocess.Popen[bytes],
    outages: Outages,
    wanted: int,
    sinks: Sequence[str],
    sides: Sequence[str],
    deadline: float,
) -> Killed | None:
    """Until ``wanted`` barriers are COMMIT and in every sink, and servers were killed; says which task was, too.

    Raises :class:`DemoFailedError` when the deadline has passed, or ``writer`` has failed.
    """

    def step(barriers: Sequence[Barrier], done: int) -> Step:
        if writer.poll():
            raise DemoFailedError(f"what writes to the source has failed: see {places.logs / 'writer.log'}")
        for server in outages.look(deployment.meta, barriers):
            console.print(f"Sent SIGKILL to {server}, which is started again.")
        delivered = {sink: len(delivered_barriers(deployment.meta, sink)) for sink in sinks}
        where = ", ".join(f"{sink} {count}" for sink, count in delivered.items())
        return Step(
            done == wanted and set(delivered.values()) == {wanted} and not outages.away,
            f"{done} of {wanted} barriers COMMIT, delivered: {where}; {torn_so_far(places, sides)}",
        )

    return look_on(deployment, airflow, places, step, deadline, "%H:%M:%S")


def start_writer(
    places: Places, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """What writes to the source, in a process of its own."""
    with (places.logs / "writer.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **environment},
            cwd=CHECKOUT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def watch(deployment: Deployment, airflow: LocalAirflow, places: Places, days: int, deadline: float) -> Killed:
    """Returns once ``days`` barriers are COMMIT and delivered, and the uncoordinated jobs are through; says who was
    killed.

    ``deadline`` is on the monotonic clock. Raises :class:`DemoFailedError` when it has passed.
    """

    def step(barriers: Sequence[Barrier], done: int) -> Step:
        delivered, plain = delivered_barriers(deployment.meta), plain_days(places.plain_memory)
        all_delivered = delivered[-1:] == [barrier.barrier_id for barrier in barriers][-1:]
        return Step(
            done == days and all_delivered and plain == days,
            f"{done} of {days} barriers COMMIT, {len(delivered)} of them delivered; {plain} of {days} days done "
            f"uncoordinated; {torn_so_far(places, ('plain', 'barrier'))}",
        )

    killed = look_on(deployment, airflow, places, step, deadline)
    if killed is None:
        raise DemoFailedError("expected one task to be held and killed, found none that was")
    return killed
