"""Making a table by pyiceberg, with its namespace where that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_barrier.tables._catalog import split
from airflow_barrier.tables._retries import patiently

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema


def create_table(
    catalog: Catalog,
    translated: Callable[[], AbstractContextManager[None]],
    table: str,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
) -> bool:
    """See :meth:`airflow_barrier.tables.port.TableFormat.create`. ``translated`` raises this package's errors for
    pyiceberg's.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError

    namespace, _ = split(table)

    def once() -> bool:
        with translated():
            if not catalog.namespace_exists(namespace):  # who may make none may use what is there
                catalog.create_namespace_if_not_exists(namespace)
            try:
                catalog.create_table(table, schema, partition_spec=spec, properties=dict(properties))
            except TableAlreadyExistsError:
                return False
        return True

    return patiently()(once)
