"""Procedures of Iceberg that change one table, called on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import BarrierError, SparkUnavailableError
from airflow_barrier.spark.connect import first_line, lost_server_is_retryable

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def call(session: SparkSession, statement: str, work: str, refused: type[BarrierError]) -> Row:
    """The one row that ``statement`` answers. ``work`` names what it does, such as ``expiry of shop.shopping``.

    Raises ``refused`` and, if the server went away, :class:`~airflow_barrier.protocol.errors.SparkUnavailableError`.
    """
    try:
        with lost_server_is_retryable(work):
            (row,) = session.sql(statement).collect()
    except SparkUnavailableError:
        raise
    except Exception as error:
        raise refused(
            f"{work}: expected Iceberg to do it, found {first_line(error)}; see the log of the Spark server"
        ) from error
    return row
