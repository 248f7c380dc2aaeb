"""PostgreSQL as MetaService, catalog, sources and sinks connect to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

    from airflow_barrier.protocol.credentials import Credentials

#: Arguments of each connection, for psycopg.
CONNECT_ARGUMENTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    # Statements are planned each time: a generic plan compares long IN lists one by one, for minutes. And behind a
    # pooler the next transaction may be another session's.
    "prepare_threshold": None,
    # A server that is lost without a word (its machine, the network) is noticed within a minute, not in hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
#: Type of the Airflow connections that sources and sinks are entered by.
CONN_TYPE = "postgres"
#: What a connection's extra may say about the way to the server.
_EXTRAS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "gssencmode", "hostaddr")


def arguments_of(at: Credentials) -> dict[str, Any]:
    """Return psycopg's arguments for entering a primary by ``at``: a standby may lack what others have seen.

    >>> sorted(set(arguments_of(Credentials("shop", "db"))) - set(CONNECT_ARGUMENTS))  # doctest: +SKIP
    ['application_name', 'client_encoding', 'dbname', 'host', 'password', 'port', 'target_session_attrs', 'user']
    """
    return {
        **CONNECT_ARGUMENTS,
        "host": at.host,
        "port": at.port or 5432,
        "user": at.login,
        "password": at.password,
        "dbname": at.schema or at.login,
        "target_session_attrs": "read-write",
        "application_name": "airflow_barrier",
        "client_encoding": "UTF8",
        **{name: at.extra[name] for name in _EXTRAS if name in at.extra},
    }


def address_of(at: Credentials) -> str:
    """The server and database of a connection, for messages."""
    return f"{at.host}:{at.port or 5432}/{at.schema or at.login}"


def dataset_of(at: Credentials, table: str) -> tuple[str, str]:
    """The namespace and name of a database's table in OpenLineage."""
    return f"postgres://{at.host or 'localhost'}:{at.port or 5432}", f"{at.schema or at.login}.{table}"


def no_entry(what: str, at: Credentials, error: psycopg.Error) -> str:
    """The words for a connection that was not made; ``what`` was to be entered by it."""
    return (
        f"{what}: expected PostgreSQL at {address_of(at)} to let {at.login} in (connection {at.conn_id}), found: "
        f"{message_of(error)}; see that it runs as a primary, and that the connection's host, database, login and "
        "password are right"
    )


def message_of(error: psycopg.Error) -> str:
    """Return what the server said, without the rows that it quotes."""
    return (error.diag.message_primary or str(error)).strip().partition("\n")[0]
