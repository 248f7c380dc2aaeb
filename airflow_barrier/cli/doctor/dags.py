"""DAG files: that they are parsed, and that what their groups declare can be worked with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import connected
from airflow_barrier.cli.dag_files import groups_in, plan_of
from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, skipped, warn
from airflow_barrier.cli.job_text import remarks_on
from airflow_barrier.protocol.errors import MetaServiceMissingError

if TYPE_CHECKING:
    from airflow_barrier.operators.group import BarrierGroup


def parsed(case: Case) -> Iterator[Finding]:
    from airflow.configuration import conf

    for file in case.dag_files or [conf.get("core", "dags_folder")]:
        groups, errors = groups_in(file)
        for where, error in errors.items():
            yield fail("DAGs", f"{where}: expected a DAG file that can be read, found {error}")
        for group in groups:
            if group.barrier_conn_id != case.conn_id:
                yield skipped(
                    f"DAG {group.dag.dag_id}",
                    f"topology {group.topology} is of connection {group.barrier_conn_id}; name it with --conn-id",
                )
                continue
            case.groups.append(group)
            yield ok(f"DAG {group.dag.dag_id}", f"topology {group.topology}, {_counted(group)}")
        if not groups and not errors:
            yield warn("DAGs", f"expected DAGs with a BarrierGroup in {file}, found none; name files or folders")


def _counted(group: BarrierGroup) -> str:
    jobs = len(group.fragment.jobs)
    return f"{jobs} job{'' if jobs == 1 else 's'}"


def jobs(case: Case) -> Iterator[Finding]:
    from airflow_barrier.hooks.deferral import NO_RETRIES

    for group in case.groups:
        without = sorted(task.task_id for task in group if not getattr(task, "retries", 0))
        if without:
            yield warn(
                f"DAG {group.dag.dag_id}",
                f"expected retries, found none for {', '.join(without)}: {NO_RETRIES}",
            )
    for remark in remarks_on(case.groups):
        yield (fail if remark.hinders else warn)(f"DAG {remark.dag_id}", remark.text)


def schedules(case: Case) -> Iterator[Finding]:
    """Yield why a DAG would never run, though all that it needs is there."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    dags = {group.dag.dag_id: group.dag for group in case.groups}
    for name, dag in sorted(dags.items()):
        if not dag.timetable.can_be_scheduled:
            yield warn(f"DAG {name}", f"it has no schedule: it runs when somebody says: airflow dags trigger {name}")
        elif dag.start_date is not None and dag.start_date > datetime.now(timezone.utc):
            yield warn(f"DAG {name}", f"its start_date is {dag.start_date}, and it does not run before; correct it")
    try:
        with create_session() as session:
            paused = session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dags), DagModel.is_paused))
            yield from (
                warn(f"DAG {name}", f"it is paused, and does not run; to let it: airflow dags unpause {name}")
                for name in sorted(paused)
            )
    except SQLAlchemyError:
        yield skipped("paused DAGs", "Airflow's database does not answer here; run this where the scheduler runs")


def tables(case: Case) -> Iterator[Finding]:
    """Yield what `topology validate` says: tables, sources and sinks."""
    if not case.groups:
        return
    try:
        with connected(case.conn_id) as deployment:
            plan = plan_of(deployment, case.groups)
    except MetaServiceMissingError:  # which its own check has told: a new one has nothing to be looked at
        yield skipped("tables, sources and sinks", "the MetaService is not made yet")
        return
    for step in plan.steps:
        dags = sorted({job.owner for job in (step.writer, *step.readers) if job is not None})
        about = f"table {step.table} (DAG {', '.join(dags)})"
        if step.problem is not None:
            yield fail(about, step.problem)
        else:
            yield ok(about, "is made by its job's first barrier" if step.will_be_made else "is there")
    for problem in plan.problems:
        yield fail("topology", problem)
    for note in plan.notes:
        yield warn("topology", note)
    if not plan.problems:
        yield ok("sources and sinks", "answer")
