"""Where the result of a query on Spark goes: to whoever asked, as a few rows, or into a table beside the topology."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_barrier.protocol.errors import ConfigurationError, TableClaimedError
from airflow_barrier.reading.values import check_columns, json_value
from airflow_barrier.spark.identifiers import parts_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Bytes of a result that XCom takes: Airflow keeps it in its own database, and every page about the run loads it.
_MOST_BYTES = 1 << 20

Replace = Literal["table", "partitions"]


def rows_of(frame: DataFrame, most: int) -> list[dict[str, Any]]:
    """All rows, as :func:`~airflow_barrier.reading.values.json_value` has their values.

    Raises ConfigurationError if there are more than ``most``, of which no more are fetched, or more than a mebibyte,
    or if two columns bear the same name.
    """
    check_columns(frame.columns)
    found = frame.limit(most + 1).toArrow()
    if found.num_rows > most:
        raise ConfigurationError(
            f"result: expected at most {most} rows (max_rows), found more; let the query aggregate or LIMIT them, "
            "write the result into a table (into='catalog.namespace.table'), or allow for more"
        )
    if found.nbytes > _MOST_BYTES:
        raise ConfigurationError(
            f"result: expected at most {_MOST_BYTES:,} bytes for XCom, which Airflow's database keeps, found "
            f"{found.nbytes:,} in {found.num_rows} rows; select less, or write the result into a table "
            "(into='catalog.namespace.table')"
        )
    return [json_value(row) for row in found.to_pylist(maps_as_pydicts="strict")]


def first_rows(frame: DataFrame, most: int) -> list[dict[str, Any]]:
    """Return ``most`` rows at most, of which no more are fetched, as :func:`rows_of` has them.

    Raises ConfigurationError if two columns bear the same name.
    """
    check_columns(frame.columns)
    found = frame.limit(most).toArrow()
    return [json_value(row) for row in found.to_pylist(maps_as_pydicts="strict")]


def target_of(name: str, catalogs: Collection[str], topologies: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of a table's whole name that a result may go into. ``topologies``: those of the tables in the catalog
    that is called so, in one place or another: ``catalogs``.

    Raises ConfigurationError for what is no whole name, TableClaimedError for a table of a topology, its branches
    included.

    >>> target_of("lake.reports.`the day`", ["lake"], {"shop.price": "shopping"})
    ('lake', 'reports', 'the day')
    """
    parts = parts_of(name)
    if len(parts) < 3:
        raise ConfigurationError(
            f"into: expected a table's whole name, catalog.namespace.table, found {name!r}; write it so"
        )
    in_catalog = parts[0].casefold() in {catalog.casefold() for catalog in catalogs}
    for table, topology in topologies.items():
        taken = [part.casefold() for part in table.split(".")]
        if in_catalog and [part.casefold() for part in parts[1 : len(taken) + 1]] == taken:
            raise TableClaimedError(  # safety: results-go-beside-the-topology
                f"into: expected a table beside the topologies, found {name}, which belongs to topology {topology} and "
                "is written by its jobs only; name another one, or make the query a job of the topology"
            )
    return parts


def replace_table(frame: DataFrame, target: tuple[str, ...]) -> None:
    """Make the table of the rows, or replace all rows of one that is there, in one commit."""
    from pyspark.sql.functions import lit

    name = quoted(*target)
    writer = frame.writeTo(name)
    if frame.sparkSession.catalog.tableExists(name):
        writer.overwrite(lit(True))
    else:
        writer.create()


def replace_partitions(frame: DataFrame, target: tuple[str, ...]) -> None:
    """Replace the rows in those partitions that the new rows are in, in one commit. Of a table that
    :func:`~airflow_barrier.reading.partitions.replaceable` has seen.
    """
    frame.writeTo(quoted(*target)).overwritePartitions()


def create_partitioned(frame: DataFrame, target: tuple[str, ...], partition_by: Sequence[str]) -> None:
    """Make the table of the rows, partitioned by these columns. Raises ConfigurationError if the rows lack one."""
    from pyspark.sql.functions import col

    there = {name.casefold() for name in frame.columns}
    if missing := [name for name in partition_by if name.casefold() not in there]:
        raise ConfigurationError(
            f"into: expected columns of the result in partition_by, found {', '.join(missing)}; name some of "
            f"{', '.join(frame.columns)}"
        )
    frame.writeTo(quoted(*target)).partitionedBy(*[col(quoted(name)) for name in partition_by]).create()
