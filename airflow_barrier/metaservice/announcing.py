"""Which committed barriers the world outside was told of: by asset events, which come after the commit."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, text

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import STANDING, load_barrier, lock_topology
from airflow_barrier.metaservice.transitions import Event, record

_ANNOUNCED, _COMMIT = "announced", "commit"
#: How many barriers back somebody may have been forgotten; it bounds what one look reads.
_LOOK_BACK = 100


def announce(connection: Connection, topology: str, barrier_ids: Sequence[int], actor: str) -> None:
    """Write down that these barriers were announced. Again adds another line to the audit, no more."""
    lock_topology(connection, topology)  # safety: topology-lock
    for barrier_id in barrier_ids:
        state = load_barrier(connection, topology, barrier_id).state.value
        record(connection, Event(_ANNOUNCED, actor), topology, barrier_id, "barrier", [str(barrier_id)], state, state)


def unannounced(connection: Connection, topology: str, barrier_id: int) -> dict[int, str]:
    """Barriers shortly before ``barrier_id`` that were committed and not announced, and who committed each."""
    table = schema.audit
    rows = connection.execute(
        select(table.c.barrier_id, table.c.event, table.c.actor).where(
            table.c.topology == topology,
            table.c.revision == STANDING,
            table.c.barrier_id.between(barrier_id - _LOOK_BACK, barrier_id - 1),
            text(schema.OF_BARRIERS),
            table.c.event.in_([_ANNOUNCED, _COMMIT]),
        )
    ).all()
    announced = {row.barrier_id for row in rows if row.event == _ANNOUNCED}
    silent = {row.barrier_id: row.actor for row in rows if row.event == _COMMIT and row.barrier_id not in announced}
    # of maintenance barriers there is nothing to tell: their tables hold the rows that they held before
    return {
        number: who for number, who in silent.items() if not load_barrier(connection, topology, number).is_maintenance
    }
