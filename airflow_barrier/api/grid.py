"""The grid: tables at barriers, and what there is to say of the cells that are not done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query

from airflow_barrier.api import models
from airflow_barrier.api.access import BeforeBarrier, Told
from airflow_barrier.api.cells import COMMITTED, STAGED, States, cell_of, seen_tables, states_of, summary_of, tables_of
from airflow_barrier.api.sight import SightDep, owners
from airflow_barrier.api.summaries import barrier_of
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.protocol.cells import CellState
from airflow_barrier.protocol.topology import Job

#: Cells of which there is something to say.
_NOTED = frozenset({CellState.RUNNING, CellState.WAITING, CellState.FAILED, CellState.LATE, CellState.BLOCKED})
#: No name has it: a DAG and a table, as one text.
_BETWEEN = "\t"

router = APIRouter(route_class=Told)


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/grid",
    operation_id="grid",
    summary="Tables at barriers: which are done, which are not, and why",
)
def grid(
    sight: SightDep,
    before: BeforeBarrier = None,
    limit: Annotated[int, Query(ge=1, le=100, description="How many barriers.")] = 14,
    after: Annotated[str | None, Query(description="Of the tables behind these: what the grid before says.")] = None,
    tables: Annotated[int, Query(ge=1, le=1000, description="How many tables.")] = 200,
) -> models.Grid:
    found = sight.meta.overviews.before(sight.name, before, limit + 1)
    barriers = found[:limit][::-1]
    topologies = sight.versions({barrier.topology_version for barrier in barriers})
    whole = {number: sight.sees_all(owners(topology.jobs)) for number, topology in topologies.items()}
    # of one version all barriers have the same
    by_version = {
        each.topology_version: seen_tables(sight, each, topologies[each.topology_version]) for each in barriers
    }
    columns = {each.barrier_id: by_version[each.topology_version] for each in barriers}
    versions = {each.barrier_id: each.topology_version for each in barriers}
    current = tables_of(sight.jobs())
    rows = _rows([columns[each.barrier_id] for each in barriers if not each.is_maintenance], current)
    left = [row for row in rows if after is None or row > _Place(*after.partition(_BETWEEN)[::2])]
    shown = {place.table: rows[place] for place in left[:tables]}

    def look(looked: Overviews) -> tuple[States, list[int | None]]:
        served = [looked.served(sight.name, states) for states in (COMMITTED, STAGED)]
        levels = [None if each is None else each.barrier_id for each in served]
        return states_of(looked, sight, columns, list(shown)), levels

    states, (repeatable_read, read_committed) = sight.meta.overviews.together(look)
    states = states.explained(sight)
    grid_rows, notes = [], []
    for table, job in shown.items():
        cells = [
            cell_of(sight, states, barrier, table, columns[barrier.barrier_id].get(table))
            for barrier in states.barriers
        ]
        grid_rows.append(models.GridRow(table=table, job=job.name, dag=job.owner, cells=[cell.state for cell in cells]))
        notes += [
            models.Note(
                table=table,
                barrier_id=cell.barrier.barrier_id,
                tries=cell.newest.tries if cell.newest else 0,
                since=cell.since,
                summary=summary_of(sight, cell, current, whole=whole[versions[cell.barrier.barrier_id]]),
            )
            for cell in cells
            if cell.state in _NOTED or cell.wait is not None
        ]
    return models.Grid(
        topology=sight.name,
        barriers=[barrier_of(each, whole=whole[versions[each.barrier_id]]) for each in states.barriers],
        rows=grid_rows,
        notes=notes,
        repeatable_read=repeatable_read,
        read_committed=read_committed,
        before=barriers[0].barrier_id if len(found) > limit else None,
        after=_BETWEEN.join(left[tables - 1]) if len(left) > tables else None,
        hidden_dags=sight.hidden(owners(job for each in topologies.values() for job in each.jobs)),
    )


class _Place(NamedTuple):
    """The sort key of rows."""

    dag: str
    table: str


def _rows(columns: Iterable[Mapping[str, Job]], current: Mapping[str, Job]) -> dict[_Place, Job]:
    """All tables, each with its newest writer, in order."""
    found: dict[str, Job] = {}
    for tables in {id(tables): tables for tables in [*columns, current]}.values():
        found.update(tables)
    return {place: found[place.table] for place in sorted(_Place(job.owner, table) for table, job in found.items())}
