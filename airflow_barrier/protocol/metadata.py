"""The tables that the MetaService can be asked by in SQL: their names and columns, which stay as they are.

FLIP-276 names the first three, and calls two of them by other names in its own example query: both are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from airflow_barrier.protocol.errors import ConfigurationError


class MetadataColumn(NamedTuple):
    """``type`` is `string`, `bigint` or `timestamp` (UTC); any may be NULL but in the table's key."""

    name: str
    type: str


@dataclass(frozen=True)
class MetadataTable:
    """``key``: the first so many columns tell rows apart, and are what they are ordered by."""

    name: str
    columns: tuple[MetadataColumn, ...]
    key: int
    also: str | None = None


def _table(name: str, key: int, columns: str, also: str | None = None) -> MetadataTable:
    """Columns are strings unless they say otherwise: `barrier_id:bigint`."""
    parted = (column.partition(":") for column in columns.split())
    return MetadataTable(name, tuple(MetadataColumn(each, kind or "string") for each, _, kind in parted), key, also)


#: ``job_id`` is the job's name after its topology's, since two topologies may each have a `load`: `shopping.load`.
_TABLES = (
    # the tables that each job of the current topologies reads, and those that it writes
    _table("__META_ETL_SOURCE", 2, "job_id table_name topology job", also="__META_JOB_SOURCE"),
    _table("__META_ETL_SINK", 2, "job_id table_name topology job", also="__META_JOB_SINK"),
    # `version`: the newest COMMIT barrier that has the table (0: none yet); `table_type`: Root or Intermediate
    _table("__META_TABLE_VERSION", 1, "table_name version:bigint table_type topology"),
    # `predecessor` names the barrier before it; the baseline is 0, without a timestamp
    _table(
        "__META_BARRIER",
        3,
        "topology revision:bigint barrier_id:bigint timestamp:timestamp state predecessor:bigint "
        "topology_version:bigint kind run_dag_id run_id run_kind run_logical_date:timestamp timestamp_from "
        "opened_at:timestamp precommit_at:timestamp committing_at:timestamp commit_at:timestamp "
        "aborted_at:timestamp expiring_at:timestamp expired_at:timestamp reason",
    ),
    # how far each table is at each barrier
    _table(
        "__META_TABLE_PROGRESS",
        4,
        "topology revision:bigint barrier_id:bigint table_name job_id state snapshot_id:bigint attempt_id:bigint "
        "carried_from:bigint decision processed_at:timestamp written_at:timestamp",
    ),
    _table(
        "__META_ATTEMPT",
        1,
        "attempt_id:bigint topology revision:bigint barrier_id:bigint job_id state request_key generation "
        "requested_at:timestamp started_at:timestamp closed_at:timestamp processed_at:timestamp ended_at:timestamp "
        "reason",
    ),
    # those that live
    _table(
        "__META_LEASE",
        1,
        "lease_id:bigint topology line:bigint barrier_id:bigint through_id:bigint holder granted_at:timestamp "
        "expires_at:timestamp",
    ),
    # `detail` is a JSON object
    _table(
        "__META_AUDIT",
        1,
        "audit_id:bigint at:timestamp topology revision:bigint barrier_id:bigint kind subject event state_before "
        "state_after actor detail",
    ),
    # what each barrier consists of that can be read at repeatable read; `tag` is what the snapshot is called
    _table(
        "__META_SNAPSHOT",
        4,
        "topology revision:bigint barrier_id:bigint table_name timestamp:timestamp snapshot_id:bigint tag",
    ),
    # barriers computed again: from which one on, why, and how far that is
    _table(
        "__META_REVISION",
        2,
        "topology revision:bigint state mode first_barrier:bigint window_end:bigint head:bigint last:bigint actor "
        "reason created_at:timestamp committing_at:timestamp commit_at:timestamp cancelled_at:timestamp",
    ),
    # how far each sink is, and how many COMMIT barriers it lacks since when; of one that has received nothing, of those
    # that were committed since it was declared
    _table(
        "__META_DELIVERY",
        2,
        "topology sink owner kind state barrier_id:bigint revision:bigint delivered_at:timestamp lag_barriers:bigint "
        "lag_since:timestamp error failed_at:timestamp failures:bigint",
    ),
)

METADATA_TABLES = {name: table for table in _TABLES for name in (table.name, table.also) if name is not None}


def metadata_table(name: str) -> MetadataTable:
    """The table of that name, in capitals or not. Raises :class:`ConfigurationError`.

    >>> metadata_table("__META_JOB_Sink").name
    '__META_ETL_SINK'
    """
    found = METADATA_TABLES.get(name.upper())
    if found is None:
        raise ConfigurationError(
            f"metadata table {name!r}: expected one of {', '.join(METADATA_TABLES)}; use one of these"
        )
    return found
