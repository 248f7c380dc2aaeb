"""Template macros: a barrier's snapshots, tags and pinned SQL for operators that know nothing of barriers.

    TrinoOperator / SQLExecuteQueryOperator(
        sql="{{ macros.barrier.sql('shopping', 'SELECT * FROM lake.shop.price', dialect='trino', hold=3600) }}"
    )

Nobody comes back for what is handed out as text, so each says how long it is to be held: ``hold``, in seconds, a week
at most. The hold is named after the task instance (``airflow-barrier lease list``) and ends by itself.

All macros of one try that ask for the same (topology, level, ``at``) speak of one barrier, whatever is committed while
its fields are rendered. The next try asks anew, and so does a task that resumes from deferral: name the barrier by
``at`` if that matters.

Where no task runs, as in ``airflow tasks render``, the fields say what one would read now, and nothing is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import pass_context

from airflow_barrier.operators._at import barrier_or_time
from airflow_barrier.operators._task import actor, is_running, without_useless_retries
from airflow_barrier.protocol.errors import NotReadableYetError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level

if TYPE_CHECKING:
    from jinja2.runtime import Context

    from airflow_barrier.reading.answer import Answer
    from airflow_barrier.reading.handing_out import HandedOut

_At = int | str | datetime | None

#: What this try was given. A try has a process of its own, and `dag.test()` keys by the try.
_given: dict[tuple[object, ...], HandedOut] = {}


@pass_context
def barrier_id(
    context: Context,
    topology: str,
    *,
    hold: float,
    level: str | None = None,
    at: _At = None,
    barrier_conn_id: str | None = None,
) -> int | None:
    """The barrier's id; None at read uncommitted, where each table has its own.

    ``hold``: for how many seconds it is held. ``level``: default is the connection's. ``at``: a barrier's id or a time,
    also as text.
    """
    with without_useless_retries():
        return _hand_out(context, topology, hold, level, at, barrier_conn_id).resolution.barrier_id


@pass_context
def snapshots(
    context: Context,
    topology: str,
    *,
    hold: float,
    level: str | None = None,
    at: _At = None,
    barrier_conn_id: str | None = None,
) -> Mapping[str, int | None]:
    """Table -> snapshot id, None for a table that has no rows yet: ``snapshots('shopping', hold=60)['shop.price']``."""
    with without_useless_retries():
        return _hand_out(context, topology, hold, level, at, barrier_conn_id).snapshots


@pass_context
def tag(context: Context, topology: str, *, hold: float, at: _At = None, barrier_conn_id: str | None = None) -> str:
    """The tag that all tables of the barrier bear, for engines that read Iceberg's tags; at repeatable read, since what
    is only staged has none. Tables that have no rows yet bear none either.
    """
    with without_useless_retries():
        return next(iter(_committed(context, topology, hold, at, barrier_conn_id).tags.values()))


@pass_context
def catalog(context: Context, topology: str, *, hold: float, at: _At = None, barrier_conn_id: str | None = None) -> str:
    """The `warehouse` by which engines that enter an Iceberg REST catalog read this barrier, as often as they connect:
    ``shopping@b12.r0``; at repeatable read. The address is that of ``airflow-barrier serve --iceberg``, or the API
    server's: see docs/connecting.md.

        BashOperator(bash_command="dbt run", env={"PINNED": "{{ macros.barrier.catalog('shopping', hold=3600) }}"})
    """
    with without_useless_retries():
        found = _committed(context, topology, hold, at, barrier_conn_id).resolution
        return f"{topology}@b{found.barrier_id}.r{found.revision}"


@pass_context
def sql(
    context: Context,
    topology: str,
    query: str,
    *,
    dialect: str,
    hold: float,
    level: str | None = None,
    at: _At = None,
    catalog: str | None = None,
    barrier_conn_id: str | None = None,
) -> str:
    """``query`` with its tables pinned, as ``dialect`` says it: `spark`, `trino` (`athena`, `presto`) or `duckdb`.

    ``catalog``: what that engine calls the catalog that the tables are in, if not as Spark does. What the query reads
    as it is now, views of that engine among it, is a warning in the task's log. Text for `duckdb` names metadata
    documents, which are not held: see :meth:`Answer.sql <airflow_barrier.reading.answer.Answer.sql>`.
    """
    with without_useless_retries():
        given = _hand_out(context, topology, hold, level, at, barrier_conn_id)
        return given.sql(query, dialect, catalog=catalog).sql


def _committed(context: Any, topology: str, hold: float, at: _At, barrier_conn_id: str | None) -> Answer:
    given = _hand_out(context, topology, hold, Level.REPEATABLE_READ.value, at, barrier_conn_id)
    if not given.tags:
        raise NotReadableYetError(
            f"topology {topology}: expected a barrier that is COMMIT, which has a tag, found none yet; wait for the "
            "first one, by BarrierSensor for instance"
        )
    return given


def _hand_out(
    context: Any, topology: str, hold: float, level: str | None, at: _At, barrier_conn_id: str | None
) -> Answer:
    # every process of Airflow loads the plugin, and most never get here
    from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
    from airflow_barrier.reading.handing_out import LookedUp, hand_out

    conn_id = barrier_conn_id or DEFAULT_CONN_ID
    deployment = BarrierHook(conn_id).get_deployment()
    wanted = deployment.level if level is None else Level.parse(level)
    reader, asked = actor(context), barrier_or_time(at)
    holding = Hold(reader, hold)
    if not is_running():
        return LookedUp(deployment, topology, wanted, asked)
    key = (reader, conn_id, topology, wanted, asked)
    if key not in _given:
        _given[key] = hand_out(deployment, topology, holding, level=wanted, at=asked)
    else:
        _given[key].hold_for(hold)
    return _given[key]


MACROS = [barrier_id, snapshots, tag, catalog, sql]
