"""OpenLineage: which snapshots of which tables a task has read and made, noted for the event of its end.

Airflow's listener asks an operator for that in a fork of the task's process. A connection that was open before the fork
is of no use there, so the task notes it while it works, if anybody listens. What cannot be noted is a warning: it fails
no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol import datasets
from airflow_barrier.protocol.datasets import At
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.tables import catalog_at

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.protocol.levels import Resolution
    from airflow_barrier.protocol.records import Barrier
    from airflow_barrier.protocol.topology import Job

#: The operator's attribute that has what its task noted.
_NOTED = "_lineage"


@dataclass
class _Noted:
    """Datasets that a task noted, by namespace and name."""

    read: dict[tuple[str, str], At] = field(default_factory=dict)
    made: dict[tuple[str, str], At] = field(default_factory=dict)


def note(
    task: BaseOperator,
    barrier_conn_id: str,
    deployment: Deployment,
    barrier: Barrier,
    *,
    read: Iterable[str] = (),
    made: Iterable[str] | None = (),
    delivered: Iterable[tuple[str, str]] = (),
) -> None:
    """The task has read and made these tables at ``barrier``; of a table at several barriers the last one counts.

    ``made`` None: all that the barrier published. ``delivered``: what it made outside the lake, as
    :meth:`~airflow_barrier.sinks.port.Sink.dataset` names it.
    """
    if not _is_listened_to(task):
        return
    with _noting(task) as noted:
        namespace = namespace_of(BarrierHook(barrier_conn_id).get_settings())
        rows = deployment.meta.barriers.progress(barrier.topology, barrier.barrier_id)
        at = {row.table: ((namespace, row.table), At(barrier, row.snapshot_id)) for row in rows}
        if made is None:
            made = [row.table for row in rows if row.carried_from is None]
        noted.read.update(at[table] for table in read if table in at)
        noted.made.update(at[table] for table in made if table in at)
        noted.made.update((dataset, At(barrier)) for dataset in delivered)


def note_job(task: BaseOperator, barrier_conn_id: str, deployment: Deployment, barrier: Barrier, job: Job) -> None:
    """The task has done ``job`` at ``barrier``. Its tables are known by their folders as well, which Spark's listener
    calls them by, and which their documents say: the other tasks leave it at the names.
    """
    if not _is_listened_to(task):
        return
    note(task, barrier_conn_id, deployment, barrier, read=job.inlets, made=job.outlets)
    with _noting(task) as noted:
        namespace = namespace_of(BarrierHook(barrier_conn_id).get_settings())
        for table, url in deployment.tables.folders([*job.inlets, *job.outlets]).items():
            for known in (noted.read, noted.made):
                if (namespace, table) in known:
                    known[namespace, table] = known[namespace, table]._replace(folder=datasets.folder(url))
        for source in job.externals:
            noted.read[deployment.source_of(source).dataset(namespace)] = At(barrier)


def note_answer(
    task: BaseOperator,
    barrier_conn_id: str,
    deployment: Deployment,
    answer: Resolution,
    *,
    read: Iterable[str],
    made: str | None,
) -> None:
    """The task has read these tables of ``answer``, and made the table ``made`` of the same catalog."""
    if not _is_listened_to(task):
        return
    with _noting(task) as noted:
        namespace = namespace_of(BarrierHook(barrier_conn_id).get_settings())
        found = sorted((answer.tables[table] for table in read), key=lambda one: one.barrier_id)
        barriers = {n: deployment.meta.barriers.get(answer.topology, n) for n in {one.barrier_id for one in found}}
        for one in found:
            # which another revision may have computed since
            barrier = replace(barriers[one.barrier_id], computed_in=one.revision)
            noted.read[namespace, one.table] = At(barrier, one.snapshot_id)
            if made is not None:
                noted.made[namespace, made] = At(barrier)


def lineage(task: BaseOperator) -> OperatorLineage[Any, Any]:
    """Return what the task noted, as the listener takes it."""
    from airflow_barrier.operators._openlineage import lineage_of

    noted: _Noted = vars(task).get(_NOTED, _Noted())
    return lineage_of(noted.read, noted.made)


def namespace_of(settings: Settings) -> str:
    """Return the namespace of the tables: the catalog's address, or the warehouse. (An SQL catalog's database is
    nobody else's address.)

    >>> from airflow_barrier.coordinator.settings import Settings
    >>> namespace_of(Settings.embedded("/data/warehouse"))
    'file:///data/warehouse'
    """
    has_address = bool(catalog_at(settings.catalog_uri).schemes)
    return datasets.catalog(settings.catalog_uri if has_address else settings.warehouse)


def _is_listened_to(task: BaseOperator) -> bool:
    """Return whether the OpenLineage provider is installed, and sends events of this task anywhere."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    if conf.is_disabled():
        return False
    from airflow.providers.openlineage.utils.emission_policy import resolve_task_emission_policy

    return resolve_task_emission_policy(task, task.dag_id, task.task_id).emit


@contextmanager
def _noting(task: BaseOperator) -> Iterator[_Noted]:
    try:
        yield vars(task).setdefault(_NOTED, _Noted())
    except BarrierError as error:
        task.log.warning("OpenLineage is told less than was done: %s", error)


class Listened:
    """An operator whose task notes what it reads and makes."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what Airflow's OpenLineage listener sends with the end of the task, also of one that failed."""
        return lineage(cast("BaseOperator", self))
