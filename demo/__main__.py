"""`python -m demo`: the shopping topology on a real Airflow and a local Spark, beside the same jobs uncoordinated.

OLDER=1 has the oldest Airflow and Spark instead, and a Hive Metastore (:mod:`demo.older`). KEEP=1 leaves Airflow up
until Ctrl-C. All files are in `.demo`; all processes are stopped at the end. The exit code is 0 only if every claim on
the last screen holds.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.spark.connect import connect_session, stop_session
from demo.cast import barrier_time, create_tables, local_airflow, local_spark, pollers
from demo.killing import aftermath
from demo.landing import land
from demo.local_airflow import LocalAirflow
from demo.older import older
from demo.places import Places
from demo.progress import barriers_of, delivered_barriers, reads_of
from demo.reports import local_reports
from demo.running import console, keep, run_demo, say_where, show
from demo.screen import claims
from demo.seeds import SeedsExample, run_seeds
from demo.verify import expectations, verify, verify_plain
from demo.watch import watch

#: Each job of each day is a driver of its own with OLDER, so these are fewer.
OLDER = bool(os.environ.get("OLDER"))
DAYS = 3 if OLDER else 8
VICTIM = ("amount", 2 if OLDER else 4)
#: a run that takes longer is stuck
_PATIENCE = 20 * 60


def _run(places: Places, stack: ExitStack, began: float) -> int:
    places.plain_memory.mkdir()
    console.print(f"Landed {land(places.landing, DAYS):,} lines: {DAYS} days of a grocery chain's purchases in 2017.")
    other = stack.enter_context(older(places)) if OLDER else None
    # the tasks without barriers have new sessions, and what Spark compiles in one of these it uses once
    spark = local_spark(places, **{"spark.sql.codegen.factoryMode": "NO_CODEGEN"})
    reports = stack.enter_context(local_reports(places))
    job, number = VICTIM
    environment = {
        "SHOPPING_UNTIL": barrier_time(DAYS).isoformat(),
        **reports.environment,
        **(other.environment if other else {}),
    }
    victim = f"shopping shopping.{job} {barrier_time(number).isoformat()}"
    python = other.python if other else sys.executable
    airflow = local_airflow(places, spark, environment, victim, python=python)
    console.print("Starting Spark; the first time it downloads its jars.")
    with ThreadPoolExecutor(2) as pool:
        database = pool.submit(airflow.make_database)
        drivers = pool.submit(other.download) if other else None
        stack.enter_context(spark)
        database.result()
        if drivers:
            drivers.result()
    stack.callback(airflow.stop)
    deployment = Deployment.connect(places.settings())
    stack.callback(deployment.close)

    console.print("Starting Airflow, and running FLIP-276's own example meanwhile.")
    seeds = _prepare(places, deployment, spark.url, airflow)
    say_where(airflow)
    sides = ["plain", "barrier", *(["reports"] if reports.url else [])]
    with pollers(places, sides, {"REPORTS_URL": reports.url or ""}):
        killed = watch(deployment, airflow, places, DAYS, deadline=began + _PATIENCE)

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
    show(verdict, began)
    _what_next(places)
    if os.environ.get("KEEP"):
        keep(airflow)
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
        "dags/shopping.py          the DAG; its jobs are beside it, and docs/jobs.md has a smaller one to start from",
        f".venv/bin/airflow-barrier status --metaservice-url {places.database_url}",
    ):
        console.print(f"    {line}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_demo(_run))
