"""What Spark has to be told of a catalog. Each kind of catalog says its own, in its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Maven coordinates of what this version is tested with.
SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.54.1.0"
POSTGRESQL_DRIVER = "org.postgresql:postgresql:42.7.11"


@dataclass(frozen=True)
class SparkCatalog:
    """``options`` stand under ``spark.sql.catalog.<name>.`` in Spark's conf. ``packages``: beside Iceberg's runtime.
    ``modules``: further ones of Iceberg's, of the runtime's version.

    ``secrets``: further options, which hold passwords or tokens, with what is to be put there: never the value.
    """

    options: Mapping[str, str]
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
