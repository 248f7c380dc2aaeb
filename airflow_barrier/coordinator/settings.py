"""What one deployment consists of, as plain values: an Airflow connection or a test says them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.tags import TagPolicy
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.systems.roots import SourceRoots
from airflow_barrier.tables import PUBLISHES, catalog_at

if TYPE_CHECKING:
    from sqlalchemy import URL


@dataclass(frozen=True)
class Settings:
    """The locations of MetaService, catalog and warehouse.

    ``metaservice_url`` is an SQLAlchemy URL without password, ``catalog_uri`` one too, or another catalog's address.
    Equal databases mean that a barrier's tables and its COMMIT become visible in one transaction. ``catalog_name`` is
    the name under which the tables are listed in the SQL catalog, ``spark_catalog`` what the same catalog is called in
    Spark. ``catalog_properties``: pyiceberg's for the storage and for a REST catalog's credentials.
    ``catalog_publish``: how a REST catalog publishes several tables, ``atomic`` (in one step, which is tested) or
    ``roll-forward`` (one after the other). ``consistency``: the level of readers that choose none, as in FLIP-276.
    ``source_roots``: the folders in which external sources may lie, see
    :class:`~airflow_barrier.systems.roots.SourceRoots`; ``max_epoch_files`` and the two after it: how much of them is
    read, see :class:`~airflow_barrier.sources.bounded.Limits`.

    >>> Settings.embedded("/data/warehouse").metaservice_url
    'sqlite:////data/warehouse/barrier.db'
    """

    # Not shown either: nothing keeps a caller from writing a password into a URL.
    metaservice_url: str = field(repr=False)
    catalog_uri: str = field(repr=False)
    warehouse: str
    metaservice_password: str | None = field(default=None, repr=False)
    catalog_password: str | None = field(default=None, repr=False)
    catalog_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    catalog_publish: str = "roll-forward"
    catalog_name: str = "lake"
    spark_catalog: str = "lake"
    tag_policy: str = "newest=31"
    max_open_barriers: int = 4
    consistency: str = "repeatable_read"
    source_roots: tuple[str, ...] = ()
    max_epoch_files: int = Limits.max_epoch_files
    max_unpacked_bytes: int = Limits.max_unpacked_bytes
    max_line_characters: int = Limits.max_line_characters

    def __post_init__(self) -> None:
        TagPolicy.parse(self.tag_policy)
        Level.parse(self.consistency)
        SourceRoots.of(self.source_roots, self.warehouse)
        _ = self.limits
        if self.max_open_barriers < 1:
            raise ConfigurationError(f"max_open_barriers: expected 1 or more, found {self.max_open_barriers}")
        if self.catalog_publish not in PUBLISHES:
            raise ConfigurationError(
                f"catalog_publish: expected one of {', '.join(PUBLISHES)}, found {self.catalog_publish!r}"
            )

    @property
    def limits(self) -> Limits:
        """Raises :class:`ConfigurationError`."""
        return Limits(self.max_epoch_files, self.max_unpacked_bytes, self.max_line_characters)

    @classmethod
    def embedded(cls, warehouse: str, **others: object) -> Settings:
        """The default without servers: one SQLite file in the local folder ``warehouse`` holds it all."""
        url = f"sqlite:///{warehouse.rstrip('/')}/barrier.db"
        return cls(metaservice_url=url, catalog_uri=url, warehouse=warehouse, **others)  # type: ignore[arg-type]


def parsed_url(url: str) -> URL:
    """Raises :class:`ConfigurationError`, which does not show the text: it may hold a password."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "expected an SQLAlchemy URL such as sqlite:////folder/barrier.db or postgresql://user@host/database, found "
            "text that is none (it is not shown, since it may hold a password)"
        ) from None


def require_no_password(what: str, url: str, remedy: str) -> None:
    """URLs are shown, and stand where passwords are not masked. Raises :class:`ConfigurationError`."""
    servers = url.split(",") if catalog_at(url).schemes else [url]
    parsed = [parsed_url(each) for each in servers]
    if any(each.password is not None or "password" in ",".join(each.query).lower() for each in parsed):
        raise ConfigurationError(f"{what}: expected a URL without password, found one with it; {remedy}")
