"""Which version of the schema a database has, which this package expects, and the way from one to the other."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from airflow_barrier.protocol.errors import SchemaVersionError

#: A name of our own: the database may hold other alembic histories (Airflow's).
VERSION_TABLE = "barrier_schema_version"
#: All versions, oldest first: the files of ``migrations/versions``. Listed, so that opening needs no alembic.
VERSIONS = ("0001",)
EXPECTED = VERSIONS[-1]

#: PostgreSQL's code of that error.
_NO_SUCH_TABLE = "42P01"

# alembic keeps its current environment in module globals, so one process runs one upgrade at a time.
_upgrading = threading.Lock()


def found_version(connection: Connection) -> str | None:
    """The version in the database; None: no schema of ours is there."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    return None if found is None else str(found)


def is_no_schema(error: DBAPIError) -> bool:
    """Return whether a database said that the table of :data:`VERSION_TABLE` is not there."""
    return getattr(error.orig, "sqlstate", None) == _NO_SUCH_TABLE or "no such table" in str(error.orig)


def require_version(found: str | None, where: str) -> None:
    """Raise :class:`SchemaVersionError` unless a database has exactly the version that this package expects.

    Asked at the beginning of every transaction: a process lives for weeks, and an upgrade need not wait for it. From
    the first transaction after it on, workers of the old version are refused.
    """
    if found == EXPECTED:
        return
    if found is None or found in VERSIONS:
        raise SchemaVersionError(  # safety: older-schema
            f"MetaService database {where}: expected schema version {EXPECTED}, found {found or 'none'}, which is "
            "older; stop what uses it, then run `airflow-barrier database migrate`"
        )
    raise SchemaVersionError(  # safety: newer-schema
        f"MetaService database {where}: expected schema version {EXPECTED}, found {found}, which this version of "
        "airflow-provider-barrier does not know: a newer one has upgraded the database; install that one here too"
    )


def upgrade(connection: Connection, where: str) -> None:
    """Bring the database to :data:`EXPECTED` within the connection's transaction. Never goes back."""
    found = found_version(connection)
    if found is not None and found not in VERSIONS:
        require_version(found, where)
    # Takes long to import, and a database is upgraded once.
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    with _upgrading:
        command.upgrade(config, EXPECTED)
