"""What one deployment consists of, as plain values: an Airflow connection or a test says them."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.tags import TagPolicy


@dataclass(frozen=True)
class Settings:
    """Where MetaService, catalog and warehouse are.

    ``metaservice_url`` and ``catalog_uri`` are SQLAlchemy URLs without password. Equal databases mean that a barrier's
    tables and its COMMIT become visible in one transaction. ``catalog_name`` is the name under which the tables are
    listed in the SQL catalog, ``spark_catalog`` what the same catalog is called in Spark.

    >>> Settings.embedded("/data/warehouse").metaservice_url
    'sqlite:////data/warehouse/barrier.db'
    """

    metaservice_url: str
    catalog_uri: str
    warehouse: str
    metaservice_password: str | None = field(default=None, repr=False)
    catalog_password: str | None = field(default=None, repr=False)
    catalog_name: str = "lake"
    spark_catalog: str = "lake"
    tag_policy: str = "newest=31"
    max_open_barriers: int = 4

    def __post_init__(self) -> None:
        TagPolicy.parse(self.tag_policy)
        if self.max_open_barriers < 1:
            raise ConfigurationError(f"max_open_barriers: expected 1 or more, found {self.max_open_barriers}")

    @classmethod
    def embedded(cls, warehouse: str, **others: object) -> Settings:
        """The default without servers: one SQLite file in the local folder ``warehouse`` holds it all."""
        url = f"sqlite:///{warehouse.rstrip('/')}/barrier.db"
        return cls(metaservice_url=url, catalog_uri=url, warehouse=warehouse, **others)  # type: ignore[arg-type]
