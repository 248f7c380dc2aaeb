"""From a barrier's timestamp to readable, through Airflow, and what we add to the tasks of the same jobs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.spark.connect import connect_session, stop_session
from benchmarks.cpu import Cpu
from benchmarks.path import Step, path_of, steps_of, time_of
from benchmarks.report import Measured
from benchmarks.steady import JOBS, Schedule, landed
from demo.landing import LINES, PRODUCTS, published, write
from demo.local_spark import CATALOG, PACKAGES, LocalConnectServer, catalog_conf
from demo.places import CHECKOUT, Places
from tests.support.airflow import AirflowUnderTest

ROWS = 20_000
#: Seconds between two barriers: so much that the run before, and the same jobs without us, have ended.
_PERIOD = 60.0
#: Seconds from here to the first barrier, in which Airflow starts.
_START = 65.0
#: of each side, the first of which nobody counts
_BARRIERS, _SUBMITTED = 7, 2
#: The catalog of those that are submitted.
_OTHER = "apart"
#: Seconds; smaller parts have no row.
_NOTHING = 0.05
#: Where Airflow's settings are not its own defaults.
_SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
}


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    """``quick`` leaves Airflow out, and all of it: there is nothing to see then but that this module loads."""
    if quick:
        return []
    count, submitted = _BARRIERS, _SUBMITTED
    lake = Lake(folder)
    with lake.spark() as server:
        # only now: the first time Spark downloads its jars
        schedule = Schedule(datetime.now(timezone.utc) + timedelta(seconds=_START), _PERIOD, count)
        lake.land(schedule)
        with lake.airflow(server, schedule) as airflow:
            runs = [lake.one_of_each(airflow, server, number, schedule) for number in range(count)]
            by_submit = [lake.submitted(airflow, number) for number in range(submitted)]
    return [_latency(runs[1:], by_submit[1:]), _overhead(runs[1:])]


@dataclass(frozen=True)
class Run:
    """One barrier: from its timestamp to readable in ``seconds``, by these steps; ``jobs``: seconds of each task."""

    seconds: float
    steps: list[Step]
    jobs: dict[str, float]
    #: of the start task's and of the commit task's hop and work
    start: float
    commit: float
    #: seconds of the same jobs without us, where they ran, and the CPU of both
    plain: dict[str, float] = field(default_factory=dict)
    cpu: Cpu = field(default_factory=Cpu)
    plain_cpu: Cpu = field(default_factory=Cpu)


class Lake:
    """Two deployments in one folder, one for tasks on Spark Connect and one for those that are submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.deployments = {
            "barriers": Settings.embedded(str(folder / "connect")),
            # a catalog's name in Spark is part of its tables' keys
            "submitted": Settings.embedded(str(folder / "submit"), catalog_name=_OTHER, spark_catalog=_OTHER),
        }
        for name in ("connect", "submit", "plain", "dags"):
            (folder / name).mkdir()

    def land(self, schedule: Schedule) -> None:
        """Real purchases, so many lines a barrier; one line in forty comes again in the next, corrected."""
        lines, products = published()
        for dag in self.deployments:
            for source in ("shopping", "products"):
                (self.landing / dag / source).mkdir(parents=True)
        for number in range(schedule.count):
            file = landed(str(self.landing / "barriers"), "shopping", number)
            write(purchases(lines, number, ROWS), LINES, file)
            # a second before it is due, whenever that is
            due = schedule.at(number).timestamp() - 1
            os.utime(file, (due, due))
        file = landed(str(self.landing / "barriers"), "products", 0)
        write(products, PRODUCTS, file)
        os.utime(file, (due := schedule.start.timestamp() - 1, due))

    @contextmanager
    def spark(self) -> Iterator[LocalConnectServer]:
        """One server with both catalogs, and all tables."""
        conf = {
            "spark.default.parallelism": "2",
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            **self._other_catalog(),
        }
        ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
        database = self.folder / "connect" / "barrier.db"
        with LocalConnectServer(self.folder / "connect", database, ivy, conf=conf) as server:
            session = connect_session(server.url)
            try:
                _create_tables(session)
            finally:
                stop_session(session)
            yield server

    @contextmanager
    def airflow(self, server: LocalConnectServer, schedule: Schedule) -> Iterator[AirflowUnderTest]:
        dags = self.folder / "dags"
        for link, target in {
            "steady.py": CHECKOUT / "benchmarks" / "dags" / "steady.py",
            "steady_plain.py": CHECKOUT / "benchmarks" / "dags" / "steady_plain.py",
            "benchmarks": CHECKOUT / "benchmarks",
            "shopping_jobs": CHECKOUT / "dags" / "shopping_jobs",
        }.items():
            (dags / link).symlink_to(target)
        (dags / ".airflowignore").write_text("benchmarks/\nshopping_jobs/\n")
        host, _, port = server.url.removeprefix("sc://").partition(":")
        submit_conf = {
            **self._other_catalog(),
            "spark.jars.packages": PACKAGES,
            "spark.jars.ivy": str(server.ivy),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.default.parallelism": "2",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
        }
        environment = {
            **_SETTINGS,
            "AIRFLOW_CONN_BARRIER_DEFAULT": _connection(self.deployments["barriers"]),
            "AIRFLOW_CONN_SUBMITTED": _connection(self.deployments["submitted"]),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": json.dumps(
                {"conn_type": "spark_connect", "host": host, "port": int(port)}
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "BENCHMARK_SCHEDULE": schedule.text(),
            "BENCHMARK_LANDING": str(self.landing),
            "BENCHMARK_JOBS": str(dags / "shopping_jobs"),
            "BENCHMARK_SUBMIT_CONF": json.dumps(submit_conf),
            "SPARK_REMOTE_URL": server.url,
            "PLAIN_MEMORY": str(self.folder / "plain"),
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        airflow = AirflowUnderTest(self.folder / "airflow", self.folder, environment, dags)
        try:
            airflow.start()
            for dag in ("barriers", "plain", "submitted"):
                airflow.wait_for_dag(dag)
            yield airflow
        finally:
            airflow.stop()

    def _other_catalog(self) -> dict[str, str]:
        """Spark's conf of the catalog of those that are submitted."""
        conf = catalog_conf(self.folder / "submit", self.folder / "submit" / "barrier.db")
        return {key.replace(f".catalog.{CATALOG}", f".catalog.{_OTHER}"): value for key, value in conf.items()}

    def one_of_each(
        self, airflow: AirflowUnderTest, server: LocalConnectServer, number: int, schedule: Schedule
    ) -> Run:
        """The barrier that is due next, and then the same jobs without us."""
        began = Cpu.until_now(server.pid)
        airflow.until(lambda: len(airflow.runs("barriers")) > number, f"the run of barrier {number + 1}")
        run = airflow.run_ids("barriers")[number]
        airflow.wait_for_run("barriers", run)
        between = Cpu.until_now(server.pid)
        plain = airflow.trigger("plain", conf={"number": number})
        airflow.wait_for_run("plain", plain)
        ended = Cpu.until_now(server.pid)
        assert datetime.now(timezone.utc) < schedule.at(number + 1), (
            f"expected a barrier and a run without us within {_PERIOD:g} s, found that they take longer here, so that "
            "the next barrier would be beside that run; set _PERIOD higher"
        )
        durations = {name: task["duration"] for name, task in airflow.tasks("plain", plain).items()}
        return replace(
            self._looked_at(airflow, "barriers", run, number),
            plain=durations,
            cpu=between - began,
            plain_cpu=ended - between,
        )

    def submitted(self, airflow: AirflowUnderTest, number: int) -> Run:
        """A barrier at this moment, whose jobs are drivers of their own."""
        for source in ("shopping", "products"):
            file = landed(str(self.landing / "barriers"), source, number)
            if file.exists():
                shutil.copyfile(file, landed(str(self.landing / "submitted"), source, number))
        run = airflow.trigger("submitted")
        airflow.wait_for_run("submitted", run)
        return self._looked_at(airflow, "submitted", run, number)

    def _looked_at(self, airflow: AirflowUnderTest, dag: str, run: str, number: int) -> Run:
        deployment = Deployment.connect(self.deployments[dag])
        try:
            barrier = deployment.meta.barriers.get("shopping", number + 1)
            attempts = {one.job: one for one in deployment.meta.attempts.of("shopping", number + 1)}
        finally:
            deployment.close()
        tasks = {name.partition(".")[2]: task for name, task in airflow.tasks(dag, run).items()}
        logs = airflow.home / "logs" / f"dag_id={dag}" / f"run_id={run}"
        path = path_of(tasks, {n: JOBS[n][1] for n in JOBS}, {n: JOBS[n][2] for n in JOBS})
        steps = steps_of(path, tasks, logs, barrier.timestamp, _committed(barrier), attempts)
        last = max(time_of(tasks[name]["end_date"]) for name in JOBS)
        return Run(
            seconds=(_committed(barrier) - barrier.timestamp).total_seconds(),
            steps=steps,
            jobs={name: tasks[name]["duration"] for name in JOBS},
            start=(time_of(tasks["start"]["end_date"]) - barrier.timestamp).total_seconds(),
            commit=(time_of(tasks["commit"]["end_date"]) - last).total_seconds(),
        )


def purchases(lines: pd.DataFrame, number: int, rows: int) -> pd.DataFrame:
    """So many lines of a barrier; one in forty of the barrier before comes again, corrected."""
    chunk = lines.iloc[number * rows : (number + 1) * rows]
    if not number:
        return chunk
    again = lines.iloc[(number - 1) * rows : number * rows : 40]
    again = again.assign(quantity=again["quantity"] * 2, sent_at=chunk["sent_at"].max())
    return pd.concat([chunk.iloc[len(again) :], again])


def _committed(barrier: Barrier) -> datetime:
    assert barrier.commit_at is not None, f"{barrier} is {barrier.state.value}"
    return barrier.commit_at


def _connection(settings: Settings) -> str:
    extra = {name: getattr(settings, name) for name in ("warehouse", "catalog_name", "spark_catalog")}
    return json.dumps({"conn_type": "barrier", "extra": extra})


def _create_tables(session: Any) -> None:
    """Of both deployments, and those of the jobs without us."""
    sys.path.append(str(CHECKOUT / "dags"))
    from shopping_jobs.tables import create_tables

    create_tables(session, CATALOG, "shop")
    create_tables(session, CATALOG, "plain")
    create_tables(session, _OTHER, "shop")


# --- what it comes to ---------------------------------------------------------------------------------


_PARTS: dict[str, Callable[[Step], float]] = {
    "scheduler's hops": lambda step: step.hop,
    "Airflow's task runner": lambda step: step.runner,
    "ours": lambda step: step.ours,
    "Spark's work": lambda step: step.spark,
}


def _latency(connect: Sequence[Run], submit: Sequence[Run]) -> Measured:
    sides = (connect, submit)
    rows = [["timestamp to readable, median", *(f"{median(run.seconds for run in runs):.1f}" for runs in sides)]]
    rows += [
        [what, *(f"{which(run.seconds for run in runs):.1f}" for runs in sides)]
        for what, which in (("shortest", min), ("longest", max))
    ]
    for name, part in _PARTS.items():
        sums = (median(sum(part(step) for step in run.steps) for run in runs) for runs in sides)
        rows.append([f"of the median: {name}", *(f"{one:.1f}" for one in sums)])
    rows += [
        [f"Connect, {' or '.join(sorted({step.task for step in at}))}: {name}", f"{_median(at, part):.1f}", ""]
        for at in zip(*(run.steps for run in connect), strict=True)
        for name, part in _PARTS.items()
        if _median(at, part) >= _NOTHING
    ]
    return Measured(
        "A barrier, from its timestamp to readable, in seconds",
        "The shopping topology of `dags/shopping.py` (six jobs, three of them one after the other) in a real Airflow: "
        "LocalExecutor, SQLite, the settings of `demo/local_airflow.py`, of which these matter here: "
        f"{_said(_SETTINGS)}. {ROWS:,} new rows a barrier; one in forty corrects an earlier one. On Spark Connect the "
        "DAG has a schedule, and the time runs from the timestamp until the database's clock at COMMIT, the "
        "scheduler's making of the run included; with spark-submit (`local[2]`, client mode) the run is triggered by "
        "hand. The first barrier of each is left out. The parts are those of the tasks that the barrier had to wait "
        "for, each from the end of the one before: *hop* until the task's process is there, *runner* what Airflow does "
        "in it (it reads the DAG file), *Spark's work* from the attempt's branch until the attempt is closed, the "
        "client's imports included, and *ours* the rest, the commit included. The job that completes the barrier "
        "commits it, so the commit task's hop is not part of it.",
        ["seconds", f"Spark Connect, {len(connect)} barriers", f"spark-submit, {len(submit)}"],
        rows,
        [
            f"goal: at most 7 s on Spark Connect; found {median(run.seconds for run in connect):.1f} s",
            "the tasks of the same jobs without us (below), the slowest way through them: "
            f"{median(map(_plain_way, connect)):.1f} s, hops left out",
        ],
    )


def _plain_way(run: Run) -> float:
    """Seconds of the plain tasks that a run without us has to wait for, one after the other."""
    done: dict[str, float] = {}
    writers = {table: job for job, (_, _, outlets) in JOBS.items() for table in outlets}
    for job, (_, inlets, _) in JOBS.items():  # each after those it reads from
        before = [done[writers[table]] for table in inlets if table in writers]
        done[job] = run.plain[job] + max(before, default=0)
    return max(done.values())


def _overhead(runs: Sequence[Run]) -> Measured:
    def total(of: Callable[[Run], dict[str, float]]) -> float:
        return median(sum(of(run).values()) for run in runs)

    rows = []
    for job in JOBS:
        plain, ours = (median(of(run)[job] for run in runs) for of in (lambda run: run.plain, lambda run: run.jobs))
        rows.append([job, f"{plain:.2f}", f"{ours:.2f}", f"{ours / plain:.2f}"])
    plain, ours = total(lambda run: run.plain), total(lambda run: run.jobs)
    rows.append(["all six", f"{plain:.2f}", f"{ours:.2f}", f"{ours / plain:.2f}"])
    plain_cpu, our_cpu = median(run.plain_cpu.server for run in runs), median(run.cpu.server for run in runs)
    rows.append(["CPU of Spark's JVM", f"{plain_cpu:.2f}", f"{our_cpu:.2f}", f"{our_cpu / plain_cpu:.2f}"])
    return Measured(
        "The same jobs without us",
        "Durations of the same tasks, as Airflow says them, of the same jobs on the same data in the same Airflow and "
        "on the same Spark Connect server, in turns with the barriers above: a barrier, then a run of plain tasks with "
        "the same edges. These take what changed since their last run (`dags/shopping_jobs/plain.py`), and write to "
        "`main`. Their sessions have the conf that our epochs get by their size (`docs/jobs.md`), and are new ones for "
        "each task, while ours live on. Medians over the barriers; *all six* is the median of the sums. The last job "
        "also commits the barrier.",
        ["seconds a task", "without", "with barriers", "ratio"],
        rows,
        [
            f"goal: at most 1.08 in all; found {ours / plain:.2f}",
            f"the start task, which plain DAGs do not have, is over {median(r.start for r in runs):.1f} s after the "
            f"timestamp; the commit task {median(r.commit for r in runs):.1f} s after the last job, when the barrier "
            "is readable already",
            f"processes of others had {max(r.cpu.neighbours for r in runs):.1f} s of CPU in a barrier at most, and "
            f"{max(r.plain_cpu.neighbours for r in runs):.1f} s in a run without us",
        ],
    )


def _median(steps: Sequence[Step], part: Callable[[Step], float]) -> float:
    return median(part(step) for step in steps)


def _said(settings: dict[str, str]) -> str:
    return ", ".join(f"`{name.rpartition('__')[2].lower()}={value}`" for name, value in settings.items())
