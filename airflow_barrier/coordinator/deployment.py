"""The rooms that one deployment's coordinator works with, connected."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.settings import Settings, parsed_url
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.tags import TagPolicy
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sinks import sink_of
from airflow_barrier.sinks.port import Sink
from airflow_barrier.sources import source_of
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.port import Source
from airflow_barrier.systems.roots import SourceRoots

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.tables.iceberg import IcebergTables


#: Of whom (`source purchases`), connection and its type: what that connection says. Raises ConfigurationError.
CredentialsOf = Callable[[str, str, str], Credentials]


def nobody_gets_in(what: str, conn_id: str, conn_type: str) -> Credentials:
    """Refuse: there are no connections here. Raises ConfigurationError."""
    raise ConfigurationError(
        f"{what}: expected connection {conn_id}, of type {conn_type}, found no Airflow that has connections; run this "
        "through Airflow, or the command airflow-barrier with --conn-id"
    )


@dataclass(frozen=True)
class Deployment:
    """MetaService and tables of one environment, and the few choices that go with them.

    >>> deployment = Deployment.connect(Settings.embedded("/data/warehouse"))  # doctest: +SKIP
    """

    meta: MetaService
    tables: IcebergTables
    spark_catalog: str
    tag_policy: TagPolicy
    max_open_barriers: int
    #: of readers that choose none
    level: Level = Level.REPEATABLE_READ
    source_roots: SourceRoots = field(default_factory=SourceRoots)
    #: up to which its sources are read
    limits: Limits = field(default_factory=Limits)
    #: how connections of sources and sinks are found
    credentials: CredentialsOf = nobody_gets_in

    @classmethod
    def connect(
        cls, settings: Settings, *, new: bool = True, credentials: CredentialsOf = nobody_gets_in
    ) -> Deployment:
        """``new``: make the embedded database, of MetaService and catalog, where there is none.

        Raises MetaServiceMissingError, StoreUnavailableError, CatalogUnavailableError (all retryable),
        SchemaVersionError or ConfigurationError.
        """
        from airflow_barrier.metaservice.store import MetaService

        meta = MetaService(with_password(settings.metaservice_url, settings.metaservice_password), new=new)
        meta.open()  # before the catalog, which makes its own
        return cls(
            meta=meta,
            tables=tables_of(settings),
            spark_catalog=settings.spark_catalog,
            tag_policy=TagPolicy.parse(settings.tag_policy),
            max_open_barriers=settings.max_open_barriers,
            level=Level.parse(settings.consistency),
            source_roots=SourceRoots.of(settings.source_roots, settings.warehouse),
            limits=settings.limits,
            credentials=credentials,
        )

    def source_of(self, declared: ExternalSource) -> Source:
        """The adapter of a source that this deployment may open. Raises ConfigurationError for another."""
        source = source_of(declared)
        if source.location is not None:
            self.source_roots.check(f"source {source.name}", source.location)
        return entered(source, self.limits, self.credentials)

    def sink_of(self, declared: SinkDeclaration) -> Sink:
        """The adapter of a sink that this deployment may deliver to. Raises ConfigurationError for another."""
        sink = sink_of(declared)
        if sink.location is not None:
            self.source_roots.check(f"sink {declared.name}", sink.location)
        return sink

    @cached_property
    def shares_database(self) -> bool:
        """True if publish and COMMIT are one transaction: catalog and MetaService are one database, where the
        MetaService's connection may move the tables.

        Raises StoreUnavailableError, CatalogUnavailableError.
        """
        if self.tables.database_url is None:
            return False
        catalog, ours = parsed_url(self.tables.database_url), parsed_url(self.meta.url)
        if catalog.get_backend_name() != ours.get_backend_name():
            return False
        if ours.get_backend_name() == "sqlite":
            return _same_file(catalog.database or "", ours.database or "")
        # hosts have several names, and a URL does not say which schema its user finds a table in: the databases do
        return catalog.database == ours.database and self.meta.query(self.tables.can_be_moved_by)

    def topologies_by_table(self) -> dict[str, str]:
        """Every table that a job is registered for, and its topology."""
        return {table: name for name in self.meta.topologies.names() for table in self.meta.topologies.get(name).tables}

    def close(self) -> None:
        self.meta.close()
        self.tables.close()


def entered(source: Source, limits: Limits, credentials: CredentialsOf) -> Source:
    """The source with the credentials of its connections. Raises ConfigurationError if one is missing."""
    return source.within(limits, *(credentials(f"source {source.name}", *each) for each in source.connections))


def tables_of(settings: Settings) -> IcebergTables:
    """The tables alone. Raises CatalogUnavailableError (retryable), ConfigurationError."""
    if find_spec("pyiceberg") is None:  # said here: what needs it may be a late step of a task
        raise ConfigurationError(
            "expected the package pyiceberg beside airflow_barrier, found none; install it, for instance by pip "
            "install 'airflow-provider-barrier[iceberg]'"
        )
    from airflow_barrier.tables.iceberg import IcebergTables

    return IcebergTables.connect(
        uri=with_password(settings.catalog_uri, settings.catalog_password),
        warehouse=settings.warehouse,
        catalog_name=settings.catalog_name,
        properties=dict(settings.catalog_properties),
        atomic=settings.catalog_publish == "atomic",
    )


def with_password(url: str, password: str | None) -> str:
    """``url`` with the password put in, for an engine; never logged. Raises ConfigurationError if it is no URL."""
    if password is None:
        return url
    return parsed_url(url).set(password=password).render_as_string(hide_password=False)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # not there yet
        return os.path.realpath(one) == os.path.realpath(other)
