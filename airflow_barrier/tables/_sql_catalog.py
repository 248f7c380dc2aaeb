"""Tables in an SQL catalog, which is the one of Iceberg's JDBC catalog in Spark."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.tables._catalog import split
from airflow_barrier.tables._commit import Committer
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._retries import patiently
from airflow_barrier.tables._sql_swap import SqlPointers
from airflow_barrier.tables.spark_catalog import POSTGRESQL_DRIVER, SQLITE_DRIVER, SparkCatalog

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from sqlalchemy import Connection


def connect(
    uri: str,
    warehouse: str,
    catalog_name: str,
    properties: Mapping[str, str],
    documents: Documents,
    *,
    atomic: bool,  # it is, whatever the connection says
) -> SqlTables:
    return SqlTables(SqlPointers(uri, catalog_name), documents, {**properties, "warehouse": warehouse})


def spark_catalog(uri: str, warehouse: str, properties: Mapping[str, str]) -> SparkCatalog:
    """Iceberg's JDBC catalog over the same rows. It is called in Spark as in `catalog_name`, which is in their key."""
    from sqlalchemy import make_url

    url = make_url(uri)
    folder = Path(warehouse).as_uri() if warehouse.startswith("/") else warehouse
    options = {"type": "jdbc", "warehouse": folder, "jdbc.schema-version": "V1"}
    dialect = url.get_backend_name()
    if dialect == "sqlite":
        # another process may hold the write lock for seconds: without a timeout that kills an append
        return SparkCatalog({**options, "uri": f"jdbc:sqlite:{url.database}?busy_timeout=60000"}, (SQLITE_DRIVER,))
    if dialect == "postgresql":
        encrypted = "".join(f"?sslmode={mode}" for mode in [url.query.get("sslmode")] if mode)
        place = f"jdbc:postgresql://{url.host or 'localhost'}:{url.port or 5432}/{url.database}{encrypted}"
        user = {"jdbc.user": url.username} if url.username else {}
        password = {"jdbc.password": "the catalog's password"}
        return SparkCatalog({**options, "uri": place, **user}, (POSTGRESQL_DRIVER,), secrets=password)
    raise ConfigurationError(
        f"catalog_uri: expected an SQL catalog in SQLite or PostgreSQL for Spark's JDBC catalog, found {dialect}; set "
        "spark.sql.catalog.... by hand, by Iceberg's documentation"
    )


class SqlTables(Committer):
    """Implements :class:`~airflow_barrier.tables._catalog.TableCatalog`: one transaction swaps all tables' pointers."""

    atomic = True
    table_properties: Mapping[str, str] = MappingProxyType({})

    def __init__(self, pointers: SqlPointers, documents: Documents, properties: Mapping[str, str]) -> None:
        super().__init__(pointers, documents)
        self._properties = dict(properties)

    @property
    def database_url(self) -> str:
        return self._pointers.database_url

    @property
    def joining(self) -> SqlTables:
        return self

    def can_be_joined_by(self, connection: Connection) -> bool:
        return self._pointers.can_be_moved_by(connection)

    def close(self) -> None:
        self._pointers.close()
        if "catalog" in self.__dict__:
            self.catalog.close()

    def check(self) -> str:
        return (
            f"Iceberg catalog {self._pointers.catalog_name} in {self.database_url}: {self._pointers.count()} tables, "
            "published in one transaction."
        )

    def prove(self) -> None:
        """Nothing to find out: the documents and their pointers are written here."""

    @cached_property
    def catalog(self) -> SqlCatalog:
        """It cannot commit version 3."""
        from pyiceberg.catalog.sql import SqlCatalog

        url = self._pointers.url
        if url.get_backend_name() == "sqlite":
            url = url.update_query_dict({"timeout": "30"})
        catalog = SqlCatalog(
            self._pointers.catalog_name,
            **{**self._properties, "uri": url.render_as_string(hide_password=False), "pool_pre_ping": "true"},
        )
        weakref.finalize(self, catalog.close).atexit = False
        return catalog

    def create(self, table: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        return patiently()(self._create_once, table, schema, spec, properties)

    def _create_once(self, table: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

        namespace, _ = split(table)
        with self._pointers.translated():
            # others may make the catalog's own two tables, or the namespace, and be faster with each: then it is there
            faster = retry_if_exception_type((IntegrityError, OperationalError, ProgrammingError))
            wait = wait_random_exponential(multiplier=0.05, max=1)
            Retrying(retry=faster, stop=stop_after_attempt(6), wait=wait, reraise=True)(
                lambda: self.catalog.create_namespace_if_not_exists(namespace)
            )
            try:
                self.catalog.create_table(table, schema, partition_spec=spec, properties=dict(properties))
            except TableAlreadyExistsError:
                return False
        return True

    def _attach(self, table: str, location: str | None, to: str) -> None:
        if location is None:
            self.catalog.create_namespace_if_not_exists(split(table)[0])
            self.catalog.register_table(split(table), to)
            return
        with self._pointers.transaction() as connection:
            at = self._pointers.lock(connection, [table])[table]
            self._pointers.move(connection, {table: (at, to)})
