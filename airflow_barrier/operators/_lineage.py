"""OpenLineage: which snapshots of which tables a task has read and made, noted for the event of its end.

Airflow's listener asks an operator for that in a fork of the task's process. A connection that was open before the fork
is of no use there, so the task notes it while it works, if anybody listens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.tables import catalog_at

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.protocol.records import Barrier

#: The operator's attribute that has what its task noted.
_NOTED = "_lineage"


@dataclass
class _Noted:
    """``read`` and ``made``: (namespace, name) -> the barrier, and the snapshot if the dataset has one."""

    read: dict[tuple[str, str], tuple[Barrier, int | None]] = field(default_factory=dict)
    made: dict[tuple[str, str], tuple[Barrier, int | None]] = field(default_factory=dict)


def is_listened_to() -> bool:
    """Whether the OpenLineage provider is installed, and sends events anywhere."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


def note(
    task: BaseOperator,
    barrier_conn_id: str,
    deployment: Deployment,
    barrier: Barrier,
    *,
    read: Iterable[str] = (),
    made: Iterable[str] = (),
    delivered: Iterable[tuple[str, str]] = (),
) -> None:
    """The task has read and made these tables at ``barrier``; of a table at several barriers the last one counts.
    ``delivered``: what it made outside the lake, as :meth:`~airflow_barrier.sinks.port.Sink.dataset` names it.
    """
    if not is_listened_to():
        return
    noted: _Noted = vars(task).setdefault(_NOTED, _Noted())
    namespace = namespace_of(BarrierHook(barrier_conn_id).get_settings())
    rows = deployment.meta.barriers.progress(barrier.topology, barrier.barrier_id)
    at = {row.table: ((namespace, row.table), (barrier, row.snapshot_id)) for row in rows}
    noted.read.update(at[table] for table in read if table in at)
    noted.made.update(at[table] for table in made if table in at)
    noted.made.update((dataset, (barrier, None)) for dataset in delivered)


def lineage(task: BaseOperator) -> OperatorLineage[Any, Any]:
    """What the task noted, as the listener takes it."""
    from airflow_barrier.operators._openlineage import lineage_of

    noted: _Noted = vars(task).get(_NOTED, _Noted())
    return lineage_of(noted.read, noted.made)


def namespace_of(settings: Settings) -> str:
    """Of the tables: a REST catalog's address, or the warehouse. (An SQL catalog's database is nobody else's address.)

    >>> from airflow_barrier.coordinator.settings import Settings
    >>> namespace_of(Settings.embedded("/data/warehouse"))
    'file:///data/warehouse'
    """
    where = settings.catalog_uri if catalog_at(settings.catalog_uri).schemes else settings.warehouse
    parts = urlsplit(where if "://" in where else f"file://{where}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


class Listened:
    """An operator whose task notes what it reads and makes."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What Airflow's OpenLineage listener sends with the end of the task, also of one that failed."""
        return lineage(cast("BaseOperator", self))
