"""How tables are at barriers, and what there is to say of those that are not done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_barrier.api.access import Wait
from airflow_barrier.api.sight import Sight, owners
from airflow_barrier.api.waits import wait_of
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.lateness import Late, standings
from airflow_barrier.metaservice.overviews import Newest, Overviews, TableAt, TableRow
from airflow_barrier.protocol.cells import CellState, cell_state
from airflow_barrier.protocol.records import AttemptProgress, Barrier
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState
from airflow_barrier.protocol.topology import Job, Topology

#: What repeatable read and read committed serve.
COMMITTED = frozenset({BarrierState.COMMIT})
STAGED = DECIDED_BARRIERS | {BarrierState.PRECOMMIT}
#: Of tables whose jobs may not have begun: one whose worker was lost is at work for all that we know.
_NOT_BEGUN = frozenset({CellState.PENDING, CellState.WAITING, CellState.RUNNING, CellState.LATE})
#: Barriers whose tables may not be done.
_UNDONE = frozenset({BarrierState.OPEN, BarrierState.BLOCKED})


def tables_of(jobs: Iterable[Job]) -> dict[str, Job]:
    """Table -> the job that writes it."""
    return {table: job for job in jobs for table in job.outlets}


def seen_tables(sight: Sight, barrier: Barrier, topology: Topology) -> dict[str, Job]:
    """The tables of a barrier that the caller sees, if it sees them at all: what another DAG wrote at it is not the
    caller's there. Maintenance is of all tables alike, whoever does it: of those that the caller sees now.
    """
    if not barrier.is_maintenance:
        return tables_of(sight.jobs(topology))
    column = tables_of(topology.jobs)
    if sight.sees_all(owners(sight.topology.jobs)):
        return column
    return {table: column[table] for table in sight.tables & column.keys()}


@dataclass(frozen=True)
class States:
    """The states of tables and jobs, all as of one moment: by barrier and table, or by barrier and job. ``expected``:
    the jobs that are waited for and not late. ``waits``: why they do not begin, as far as the caller may know.
    """

    barriers: Sequence[Barrier]
    tables: Mapping[tuple[int, str], TableRow | TableAt]
    newest: Mapping[tuple[int, str], Newest]
    late: Mapping[tuple[int, str], Late]
    expected: Mapping[tuple[int, str], Late]
    waits: Mapping[Awaited, Wait] = field(default_factory=dict)

    def explained(self, sight: Sight) -> States:
        """Add ``waits``, which are not asked for in a transaction."""
        return replace(self, waits=sight.waits_of((*self.late.values(), *self.expected.values())))


def states_of(
    rows: Overviews, sight: Sight, columns: Mapping[int, Mapping[str, Job]], tables: Collection[str]
) -> States:
    """``columns``: the barriers, and who writes the tables of each that are seen. ``tables``: which are wanted."""
    name = sight.name
    barriers = rows.at(name, columns)
    undone = [barrier.barrier_id for barrier in barriers if barrier.state in _UNDONE]
    jobs = {
        job.name
        for barrier_id in undone
        for table in tables
        if (job := columns[barrier_id].get(table)) and sight.sees(job.owner)
    }
    late, expected = _held_up(rows, name) if undone else ({}, {})
    return States(
        barriers=barriers,
        tables={(row.barrier_id, row.table): row for row in rows.tables(name, list(columns), list(tables))},
        newest=rows.newest_attempts(name, undone, jobs),
        late=late,
        expected=expected,
    )


def states_at(
    rows: Overviews, topology: str, barrier_id: int, tables: Iterable[TableAt], attempts: Iterable[AttemptProgress]
) -> States:
    """Return one barrier's states, from all its ``tables`` and ``attempts``, oldest first."""
    (barrier,) = rows.at(topology, [barrier_id])
    undone = barrier.state in _UNDONE
    newest: dict[tuple[int, str], Newest] = {}
    for attempt in attempts if undone else ():
        key = (barrier_id, attempt.job)
        newest[key] = Newest(attempt, newest[key].tries + 1 if key in newest else 1)
    late, expected = _held_up(rows, topology) if undone else ({}, {})
    return States(
        barriers=[barrier],
        tables={(barrier_id, row.table): row for row in tables},
        newest=newest,
        late=late,
        expected=expected,
    )


_ByJob = dict[tuple[int, str], Late]


def _held_up(rows: Overviews, topology: str) -> tuple[_ByJob, _ByJob]:
    """The jobs that are late, and those that are waited for."""
    standing = standings(rows, {topology: None})[topology]
    return _by_job(standing.late), _by_job(standing.expected)


def _by_job(found: Iterable[Late]) -> _ByJob:
    return {(each.barrier_id, each.job): each for each in found if each.barrier_id is not None and each.job is not None}


@dataclass(frozen=True)
class Cell:
    """A table at a barrier; ``newest`` and ``late``: of its job, if that is seen and may have something to do, and
    ``wait``: why it does not begin, if that is known.
    """

    barrier: Barrier
    table: str
    job: Job | None
    state: CellState
    newest: Newest | None = None
    late: Late | None = None
    wait: Wait | None = None

    @property
    def since(self) -> datetime | None:
        """The time when its state began, if there is something to say of that."""
        if self.state is CellState.LATE and self.late is not None:
            return self.late.since
        if self.state is CellState.BLOCKED or self.newest is None:
            return self.barrier.committing_at
        attempt = self.newest.attempt
        return attempt.ended_at or attempt.started_at or attempt.requested_at


def cell_of(sight: Sight, states: States, barrier: Barrier, table: str, job: Job | None) -> Cell:
    """``job`` writes ``table`` at ``barrier``; None: the table is none of the barrier's, or not seen there."""
    if job is None:
        return Cell(barrier, table, None, CellState.ABSENT)
    newest = late = wait = None
    if barrier.state in _UNDONE and sight.sees(job.owner):
        key = (barrier.barrier_id, job.name)
        newest, late = states.newest.get(key), states.late.get(key)
        held_up = late or states.expected.get(key)
        wait = None if held_up is None else wait_of(held_up, states.waits)
    row = states.tables.get((barrier.barrier_id, table))
    state = cell_state(
        barrier.state,
        None if row is None else row.state,
        carried=row is not None and row.carried_from is not None,
        attempt=None if newest is None else newest.attempt.state,
        late=late is not None,
    )
    return Cell(barrier, table, job, state, newest, late, wait if state in _NOT_BEGUN else None)


def summary_of(sight: Sight, cell: Cell, tables: Collection[str], *, whole: bool) -> str:
    """Describe a cell in a few words; ``whole``: whether all DAGs of its barrier are seen."""
    if cell.state is CellState.BLOCKED:
        reason = cell.barrier.reason if whole else None
        return reason or "somebody else changed a table of the barrier"
    if cell.job is None or not sight.sees(cell.job.owner):
        return str(cell.state.value)
    if cell.wait is not None:
        return cell.wait.summary
    member = cell.job.owner != cell.barrier.run.dag_id
    attempt = None if cell.newest is None else cell.newest.attempt
    return sight.summary(attempt, cell.job, tables, member=member)
