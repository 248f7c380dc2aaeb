"""The port for table formats (:mod:`.port`), one adapter a file, and the catalogs that Iceberg tables may be in."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.table import Table as Table

if TYPE_CHECKING:
    from airflow_barrier.tables._catalog import CatalogAdapter

#: How several tables are published, where a connection may choose it (`catalog_publish`).
PUBLISHES = ("roll-forward", "atomic")
#: Beginnings of pyiceberg's properties of the storage, which lies under every catalog.
STORAGE = ("adls.", "client.", "gcs.", "hdfs.", "s3.")


@dataclass(frozen=True)
class ConnectionProperties:
    """The properties that a catalog takes of a connection of the Iceberg provider's type, beside the storage's.

    ``names`` and ``families`` (beginnings of names) are pyiceberg's properties. ``credentials`` are those that login
    and password become, which as extras would be shown: one for both with a colon between, two for one each, none if
    they are not taken. ``headers``: beginnings of the names whose values are sent in headers, which are ASCII.
    """

    names: frozenset[str]
    families: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class CatalogKind:
    """A kind of catalog, as far as it is known before one is connected to. The connected one says how it publishes.

    ``title`` and ``about`` (a clause) are for messages. ``adapter`` is the module that connects to it, imported by who
    connects; ``package``: what it needs beside pyiceberg, and our extra that brings it. ``schemes``: of its addresses,
    with an ``example``. ``extras``: of the extras of a barrier's connection, those that are refused with a catalog that
    does not name them here. ``properties``: None, if the Iceberg provider's connections cannot name it.
    """

    title: str
    about: str
    adapter: str
    extras: frozenset[str]
    schemes: tuple[str, ...] = ()
    example: str = ""
    package: tuple[str, str] | None = None
    properties: ConnectionProperties | None = None

    def has(self, uri: str) -> bool:
        return uri.startswith(tuple(f"{scheme}://" for scheme in self.schemes))

    def load(self) -> CatalogAdapter:
        """Raises ConfigurationError, if its package is not installed."""
        if self.package is not None and find_spec(self.package[0]) is None:
            name, extra = self.package
            raise ConfigurationError(
                f"expected the package {name} beside airflow_barrier for {self.title}, found none; install it, for "
                f"instance by pip install 'airflow-provider-barrier[{extra}]'"
            )
        return cast("CatalogAdapter", import_module(self.adapter))


#: By the name that a connection of the Iceberg provider's type has in its extra `type`.
CATALOGS = {
    "sql": CatalogKind(
        title="an SQL catalog",
        about="which publishes all tables in one transaction",
        adapter="airflow_barrier.tables._sql_catalog",
        extras=frozenset({"catalog_password"}),
    ),
    "rest": CatalogKind(
        title="a REST catalog",
        about="whose credentials are those of a connection of the type iceberg, which iceberg_conn_id names",
        adapter="airflow_barrier.tables._rest_catalog",
        extras=frozenset({"catalog_publish"}),
        schemes=("http", "https"),
        example="https://catalog.example.com/api/catalog",
        properties=ConnectionProperties(
            names=frozenset(
                {
                    "audience",
                    "oauth2-server-uri",
                    "prefix",
                    "resource",
                    "rest.signing-name",
                    "rest.signing-region",
                    "rest.sigv4-enabled",
                    "scope",
                    "token",
                    "warehouse",  # what the catalog calls its warehouse
                }
            ),
            families=("header.",),
            credentials=("credential",),
            headers=("token", "header."),
        ),
    ),
    "hive": CatalogKind(
        title="a Hive Metastore",
        about="which publishes table by table",
        adapter="airflow_barrier.tables._hive_catalog",
        extras=frozenset(),
        schemes=("thrift",),
        example="thrift://metastore.example.com:9083",
        package=("thrift", "hive"),
        properties=ConnectionProperties(
            names=frozenset({"hive.kerberos-authentication", "hive.kerberos-service-name", "ugi", "warehouse"}),
        ),
    ),
    "glue": CatalogKind(
        title="AWS Glue",
        about="which publishes table by table",
        adapter="airflow_barrier.tables._glue_catalog",
        extras=frozenset(),
        schemes=("glue",),
        example="glue://eu-central-1",
        package=("boto3", "glue"),
        properties=ConnectionProperties(
            names=frozenset(
                {
                    "glue.endpoint",
                    "glue.id",
                    "glue.max-retries",
                    "glue.profile-name",
                    "glue.retry-mode",
                    "glue.skip-archive",
                    "warehouse",
                }
            ),
            credentials=("client.access-key-id", "client.secret-access-key"),
        ),
    ),
}


def catalog_at(uri: str) -> CatalogKind:
    """The kind of the catalog at an address. What is no other's is taken for an SQLAlchemy URL, of an SQL catalog."""
    return next((kind for kind in CATALOGS.values() if kind.has(uri)), CATALOGS["sql"])
