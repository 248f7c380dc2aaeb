"""One table of a consistent answer, for pyiceberg, Arrow and pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import UnknownTableError
from airflow_barrier.protocol.levels import Resolution

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

    from airflow_barrier.tables.iceberg import IcebergTables


def iceberg_table(tables: IcebergTables, resolution: Resolution, table: str) -> StaticTable:
    """pyiceberg's table at the answer's snapshot: it has no other, and cannot be written to.

    A table without a snapshot has its columns and no rows. Raises UnknownTableError for one that the answer does not
    have, and SnapshotMissingError.

    >>> scan = iceberg_table(deployment.tables, resolution, "shop.price").scan("price > 3")  # doctest: +SKIP
    >>> scan.to_arrow(), scan.to_pandas()  # doctest: +SKIP
    """
    if table not in resolution.tables:
        raise UnknownTableError(
            f"table {table}: expected one of {', '.join(sorted(resolution.tables))}, which the answer has, "
            "found another; resolve with it"
        )
    return tables.load_at(table, resolution.tables[table].snapshot_id)
