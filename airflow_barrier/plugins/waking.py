"""Runs as Airflow's API server sees them: their states, and how it has them run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.sqlalchemy import with_row_locks
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_barrier.coordinator.runs import AT_REST
from airflow_barrier.hooks.features import Feature
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    AirflowUnavailableError,
    RunActiveError,
    UnknownRunError,
)


class AirflowWaker:
    """:class:`~airflow_barrier.coordinator.runs.Waker` for a process that has Airflow's database.

    Who may have a run woken is asked before.

    >>> AirflowWaker().state("shopping", "scheduled__2017-01-07T00:00:00+00:00")  # doctest: +SKIP
    'success'
    """

    def state(self, dag_id: str, run_id: str) -> str | None:
        with _asking() as session:
            state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
            return None if state is None else str(getattr(state, "value", state))

    def wake(self, dag_id: str, run_id: str) -> None:
        """Clear all tasks of the run, as a click on *Clear* does. It is looked at and cleared in one transaction."""
        with _asking() as session:
            # the scheduler, which begins a run, locks it as well
            query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            run = session.scalar(with_row_locks(query, session, of=DagRun))
            if run is None:
                raise UnknownRunError(
                    f"expected the run {run_id} of DAG {dag_id}, found none; it was deleted, and its days can only be "
                    "done again by a backfill of them"
                )
            if run.state not in AT_REST:
                raise RunActiveError(
                    f"expected the run {run_id} of DAG {dag_id} to have ended before it is woken, found it "
                    f"{run.state}; wait for its end, or mark it failed, then try again"
                )
            _clear(session, run)


def _clear(session: Session, run: DagRun) -> None:
    known = session.get(DagModel, run.dag_id)
    dag = DBDagBag(load_op_links=False).get_dag_for_run(run, session=session)
    if known is None or known.is_stale or known.has_import_errors or dag is None:
        raise AirflowRefusedError(
            f"expected DAG {run.dag_id} in a DAG file without import errors, so that its run {run.run_id} can run "
            "again, found it in none; mend the file, then try again"
        )
    dag.clear(run_id=run.run_id, run_on_latest_version=_is_for_latest(session, run.dag_id), session=session)


def _is_for_latest(session: Session, dag_id: str) -> bool:
    """Return whether the DAG's newest version runs, as Airflow's *Clear* would have it."""
    if not Feature.RERUN_VERSION.is_there:
        return False
    from airflow.api_fastapi.common.dagbag import resolve_run_on_latest_version

    return resolve_run_on_latest_version(None, dag_id, session)


@contextmanager
def _asking() -> Iterator[Session]:
    """A session of Airflow's own; what it cannot do is told in our words."""
    try:
        with create_session() as session:
            yield session
    except SQLAlchemyError as error:
        raise AirflowUnavailableError(
            f"expected Airflow's database to answer, found: {error}; check that it runs, then try again"
        ) from error
