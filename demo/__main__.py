"""`python -m demo`: the shopping topology on a real Airflow and a local Spark, beside the same jobs uncoordinated.

KEEP=1 leaves Airflow up until Ctrl-C. All files are in `.demo`; all processes are stopped at the end. The exit code is
0 only if every claim on the last screen holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import FrameType

from rich.console import Console

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.spark.connect import connect_session, stop_session
from demo.cast import create_tables, local_airflow, local_spark, pollers
from demo.killing import aftermath
from demo.landing import land
from demo.local_airflow import UI_PORT, LocalAirflow, LocalAirflowError
from demo.local_spark import LocalSparkError
from demo.places import Places
from demo.progress import barriers_of, delivered_barriers, reads_of
from demo.reports import local_reports
from demo.screen import claims, lines_of
from demo.seeds import SeedsExample, run_seeds
from demo.verify import expectations, verify, verify_plain
from demo.watch import DemoFailedError, watch

DAYS = 8
VICTIM = ("amount", 4)
#: a run that takes longer is stuck
_PATIENCE = 20 * 60

console = Console()


def main() -> int:
    began = time.monotonic()
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored: started by nohup
        signals.append(signal.SIGHUP)
    for signum in signals:
        signal.signal(signum, _interrupt)
    places = Places()
    try:
        with _alone(places), ExitStack() as stack:
            return _run(places, stack, began)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (DemoFailedError, LocalAirflowError, LocalSparkError, BarrierError) as error:
        console.print(f"{type(error).__name__}: {error}", style="bold red", highlight=False, markup=False)
        console.print(f"Logs are in {places.run}.", highlight=False)
        return 1


def _run(places: Places, stack: ExitStack, began: float) -> int:
    shutil.rmtree(places.run, ignore_errors=True)
    for folder in (places.logs, places.warehouse, places.plain_memory):
        folder.mkdir(parents=True)
    console.print(f"Landed {land(places.landing, DAYS):,} lines: {DAYS} days of a grocery chain's purchases in 2017.")
    console.print("Starting Spark; the first time it downloads its jars.")
    spark = stack.enter_context(local_spark(places))
    deployment = Deployment.connect(places.settings())
    stack.callback(deployment.close)
    reports = stack.enter_context(local_reports(places))
    airflow = local_airflow(places, spark, reports.environment, DAYS, VICTIM)
    stack.callback(airflow.stop)

    console.print("Starting Airflow, and running FLIP-276's own example meanwhile.")
    seeds = _prepare(places, deployment, spark.url, airflow)
    if airflow.port != UI_PORT:
        console.print(f"Port {UI_PORT} is taken, so Airflow's UI is on port {airflow.port}; free it to have {UI_PORT}.")
    console.print(f"Airflow is up: {airflow.url}, user admin, password {airflow.password}", highlight=False)
    with pollers(places, reports.url):
        killed = watch(deployment, airflow, places, console, DAYS, deadline=began + _PATIENCE)

    console.print("Recomputing every table at every barrier from the landed files.")
    expected = list(expectations(deployment, places.landing))
    delivered = delivered_barriers(deployment.meta)
    verdict = claims(
        barriers=barriers_of(deployment.meta),
        wanted=DAYS,
        reads={side: reads_of(places, side) for side in ("plain", "barrier")},
        delivered=reports.check([each for each in expected if each[0].barrier_id in delivered]),
        deliveries=delivered,
        reports=reads_of(places, "reports") if reports.url else None,
        aftermath=aftermath(deployment, killed),
        equality=verify(deployment, expected),
        plain_differences=verify_plain(deployment, places.landing),
        seeds=seeds,
    )
    console.rule(f"this run, {time.monotonic() - began:.0f} seconds")
    for line in lines_of(verdict):
        console.print(line, highlight=False)
    _what_next(places)
    if os.environ.get("KEEP"):
        _keep(airflow)
    return 0 if all(claim.holds for claim in verdict) else 1


def _prepare(places: Places, deployment: Deployment, spark_url: str, airflow: LocalAirflow) -> SeedsExample:
    """Create the tables, then start Airflow and run the seeds' example at the same time."""
    session = connect_session(spark_url)
    try:
        create_tables(session)
        with ThreadPoolExecutor(1) as pool:
            start = pool.submit(airflow.start)
            seeds = run_seeds(deployment, session, spark_url, places.landing / "seeds")
            start.result()
    finally:
        stop_session(session)
    return seeds


def _what_next(places: Places) -> None:
    console.print("[bold]What to try next[/]")
    for line in (
        "make demo KEEP=1          the same with Airflow's UI left up, where each job's task links to its barrier",
        "dags/shopping.py          the DAG; its jobs are beside it, and README.md has a smaller one to start from",
        f".venv/bin/airflow-barrier status --metaservice-url {places.database_url}",
    ):
        console.print(f"    {line}", highlight=False, soft_wrap=True)


def _keep(airflow: LocalAirflow) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
