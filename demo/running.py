"""What both demos have around them: one at a time in a checkout, an end to all that was started, and a last screen."""

from __future__ import annotations

import fcntl
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from airflow_barrier.protocol.errors import BarrierError
from demo.local_airflow import UI_PORT, LocalAirflow, LocalAirflowError
from demo.local_hive import LocalHiveError
from demo.local_kafka import LocalKafkaError
from demo.local_postgresql import LocalPostgreSQLError
from demo.local_spark import LocalSparkError
from demo.places import Places
from demo.screen import lines_of

if TYPE_CHECKING:
    from demo.screen import Claim

console = Console()


class DemoFailedError(RuntimeError):
    """The run did not get as far as its last screen; the message says why."""


def run_demo(run: Callable[[Places, ExitStack, float], int]) -> int:
    """The exit code of ``run``, which is given the places, what is to be ended after it, and when it began."""
    began = time.monotonic()
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored: started by nohup
        signals.append(signal.SIGHUP)
    for signum in signals:
        signal.signal(signum, _interrupt)
    places = Places()
    try:
        with _alone(places), ExitStack() as stack:
            shutil.rmtree(places.run, ignore_errors=True)
            for folder in (places.logs, places.warehouse):
                folder.mkdir(parents=True)
            return run(places, stack, began)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (
        DemoFailedError,
        LocalAirflowError,
        LocalSparkError,
        LocalHiveError,
        LocalKafkaError,
        LocalPostgreSQLError,
        BarrierError,
    ) as error:
        console.print(f"{type(error).__name__}: {error}", style="bold red", highlight=False, markup=False)
        console.print(f"Logs are in {places.run}.", highlight=False)
        return 1


def say_where(airflow: LocalAirflow) -> None:
    if airflow.port != UI_PORT:
        console.print(f"Port {UI_PORT} is taken, so Airflow's UI is on port {airflow.port}; free it to have {UI_PORT}.")
    console.print(f"Airflow is up: {airflow.url}, user admin, password {airflow.password}", highlight=False)


def show(verdict: Sequence[Claim], began: float) -> None:
    """The last screen."""
    console.rule(f"this run, {time.monotonic() - began:.0f} seconds")
    for line in lines_of(verdict):
        console.print(line, highlight=False)


def keep(airflow: LocalAirflow) -> None:
    """Until Ctrl-C."""
    console.print(
        f"Airflow stays up at {airflow.url} until Ctrl-C: user admin, password {airflow.password}", highlight=False
    )
    try:
        while True:
            airflow.check()
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("Stopping.")


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    """One demo at a time in a checkout: a second one would take the first one's files away."""
    places.root.mkdir(parents=True, exist_ok=True)
    with (places.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailedError(
                "another demo runs in this checkout: wait for it, or stop it with Ctrl-C in its terminal"
            ) from None
        yield


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
