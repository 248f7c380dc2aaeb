"""How a table is at a barrier, in one word: what a cell of a grid of tables and barriers shows."""

from __future__ import annotations

from enum import Enum

from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState


class CellState(str, Enum):
    """The state of a table at a barrier."""

    #: The table is none of the barrier's.
    ABSENT = "absent"
    #: No attempt was asked for.
    PENDING = "pending"
    #: An attempt waits for its inputs.
    WAITING = "waiting"
    RUNNING = "running"
    #: The newest attempt has failed, or was killed.
    FAILED = "failed"
    #: Nothing but its job has held it up, for longer than is usual.
    LATE = "late"
    #: Staged: readable at read committed and read uncommitted.
    PROCESSED = "processed"
    #: Readable by everybody.
    WRITTEN = "written"
    #: Readable, and with the rows of the barrier before: the epoch added nothing.
    UNCHANGED = "unchanged"
    BLOCKED = "blocked"
    ABORTED = "aborted"


_OF_ATTEMPT = {
    AttemptState.REQUESTED: CellState.WAITING,
    AttemptState.RUNNING: CellState.RUNNING,
    AttemptState.CLOSED: CellState.RUNNING,
    AttemptState.PROCESSED: CellState.RUNNING,
    AttemptState.FENCED: CellState.PENDING,
    AttemptState.VOIDED: CellState.PENDING,
    AttemptState.ABORTED: CellState.FAILED,
}


def cell_state(
    barrier: BarrierState,
    table: TableState | None,
    *,
    carried: bool = False,
    attempt: AttemptState | None = None,
    late: bool = False,
) -> CellState:
    """Return the state of a table that the barrier has. ``table`` None: its row was trimmed. ``carried``: its rows are
    those of a barrier before. ``attempt``: the newest of its job. ``late``: its job holds the barrier up for longer
    than is usual; a failed attempt takes precedence.

    >>> cell_state(BarrierState.OPEN, TableState.PENDING, attempt=AttemptState.RUNNING).value
    'running'
    """
    if barrier is BarrierState.ABORTED:
        return CellState.ABORTED
    if table is None:
        return CellState.WRITTEN if barrier is BarrierState.COMMIT else CellState.PENDING
    if table is TableState.WRITTEN:
        return CellState.UNCHANGED if carried else CellState.WRITTEN
    if barrier is BarrierState.BLOCKED:
        return CellState.BLOCKED
    if table is TableState.PROCESSED:
        return CellState.PROCESSED
    found = CellState.PENDING if attempt is None else _OF_ATTEMPT[attempt]
    return CellState.LATE if late and found is not CellState.FAILED else found
