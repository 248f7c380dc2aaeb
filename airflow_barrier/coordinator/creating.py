"""Tables that DAGs declare with their columns: made before their job's first epoch, and never after it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import ConfigurationError, MissingTableError
from airflow_barrier.protocol.table import Table
from airflow_barrier.protocol.topology import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A declared table as it is. ``fault``: why it cannot be used, or made; ``made``: just now, by us."""

    exists: bool
    fault: str | None = None
    made: bool = False


def find_declared(deployment: Deployment, table: Table) -> Found:
    """Find out whether the table is there with the columns that are declared, or may be made if it is not there."""
    try:
        differences = deployment.tables.differences(table)
    except MissingTableError:
        return Found(exists=False, fault=catalog_in_name(deployment, table.name) or _loss(deployment, table))
    return Found(exists=True, fault=_said(table, differences) if differences else None)


def create_where_missing(deployment: Deployment, table: Table) -> Found:
    """Make the table if it is not there and may be made. What is made stays, whatever comes after: again is fine."""
    found = find_declared(deployment, table)
    if found.exists or found.fault is not None:
        return found
    if deployment.tables.create(table):
        log.info("Made table %s (%s)", table.name, table.schema)
        return Found(exists=True, made=True)
    return find_declared(deployment, table)  # another one was faster, perhaps with other columns


def create_declared(deployment: Deployment, tables: Iterable[Table]) -> None:
    """See that the tables are there, for jobs that join.

    Raises ConfigurationError for a table with other columns, MissingTableError for one that was published and is gone.
    """
    for table in tables:
        found = create_where_missing(deployment, table)
        if found.fault is not None:
            raise ConfigurationError(found.fault) if found.exists else MissingTableError(found.fault)


def check_table_names(deployment: Deployment, jobs: Iterable[Job]) -> None:
    """Raise ConfigurationError for a table called as Spark calls it: before its job is registered, and a table made."""
    for table in {table for job in jobs for table in (*job.inlets, *job.outlets)}:
        fault = catalog_in_name(deployment, table)
        if fault is not None and not _exists(deployment, table):
            raise ConfigurationError(fault)


def catalog_in_name(deployment: Deployment, table: str) -> str | None:
    """Return the fault in the name of a table that is not there, if it begins with Spark's name of the catalog."""
    first, _, rest = table.partition(".")
    if first != deployment.spark_catalog or "." not in rest:
        return None
    return (
        f"table {table}: expected namespace.table, found Spark's name of the catalog, {first}, before it, and no table "
        f"of that name in a namespace {first}; did you mean {rest!r}?"
    )


def _exists(deployment: Deployment, table: str) -> bool:
    try:
        deployment.tables.load(table)
    except MissingTableError:
        return False
    return True


def with_declaration(error: MissingTableError) -> MissingTableError:
    """Return the error of a missing table that nobody has declared with its columns, with the shortest way."""
    return MissingTableError(
        f"{error}. The shortest way: declare its columns in its job, outlets=[Table('…', 'id BIGINT, …')] (from "
        "airflow_barrier.tables), and it is made when the job joins"
    )


def _said(table: Table, differences: Sequence[str]) -> str:
    return (
        f"table {table.name}: expected the columns that its DAG declares, besides further ones that may be NULL, found "
        f"that {'; '.join(differences)}. Change the table (ALTER TABLE {table.name} …), or mend the declaration in the "
        "DAG"
    )


def _loss(deployment: Deployment, table: Table) -> str | None:
    """Return the loss, in words, if a missing table has been in barriers: an empty one in its place would hide that."""
    for topology in deployment.meta.topologies.names():
        row = deployment.meta.starts.last_progress(topology, table.name)
        if row is not None:
            return (
                f"table {table.name}: expected it in the catalog, since topology {topology} has it at barrier "
                f"{row.barrier_id}, found that it is gone, and its rows with it. It is not made anew, which would hide "
                "that: restore it (register its newest metadata document in the catalog), or declare another name"
            )
    return None
