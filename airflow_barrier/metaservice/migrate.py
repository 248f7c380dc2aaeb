"""What `airflow-barrier database` calls: upgrade a MetaService database, or say how it stands."""

from __future__ import annotations

from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.versions import EXPECTED


def migrate(url: str) -> str:
    """Upgrade the database at this SQLAlchemy URL to the version of this package, all or nothing; says what stands.

    Again is fine. Raises :class:`~airflow_barrier.protocol.errors.SchemaVersionError` if the database is newer.
    """
    return _stands(url, create=True)


def check(url: str) -> str:
    """One sentence about the schema at this SQLAlchemy URL; changes nothing.

    Raises :class:`~airflow_barrier.protocol.errors.SchemaVersionError` if it is of another version than this package.
    """
    return _stands(url, create=False)


def _stands(url: str, create: bool) -> str:
    database = Database(url, create=create)
    try:
        database.open()
    finally:
        database.close()
    return f"MetaService database {database.url} has schema version {EXPECTED}."
