"""What a deployment takes from a connection of the Iceberg provider's type: an address, credentials, storage."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.settings import require_no_password
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "iceberg"

#: pyiceberg's properties that a REST catalog is asked with. `warehouse` is what the catalog calls its warehouse.
_REST = frozenset(
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
        "warehouse",
    }
)
#: Families of properties: headers of a REST catalog's requests, and the storage's.
_FAMILIES = ("adls.", "client.", "gcs.", "hdfs.", "header.", "s3.")


def catalog_of(connection: Connection) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """A REST catalog's address (None: the connection is about storage only) and pyiceberg's properties.

    By allow-list, in the fields that the provider's own hook reads: host, login and password (OAuth2's client id and
    secret), and extras. Raises :class:`ConfigurationError` naming what it does not understand, never a value.
    """
    where = f"connection {connection.conn_id}"
    if connection.conn_type != CONN_TYPE:
        raise ConfigurationError(f"{where}: expected the type {CONN_TYPE}, found {connection.conn_type}")
    extras = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    kind = extras.pop("type", "rest")
    if kind != "rest":
        raise ConfigurationError(
            f"{where}: expected a REST catalog (extra 'type' left out, or 'rest'), found {kind!r}; the address of an "
            "SQL catalog is the barrier connection's catalog_uri; this connection then holds the storage's properties"
        )
    uri = (connection.host or extras.pop("uri", None) or "").rstrip("/") or None
    if "credential" in extras:
        raise ConfigurationError(
            f"{where}: expected client id and secret in the fields for login and password, which Airflow masks, found "
            "the extra 'credential', which it shows; move it there, and make a new secret"
        )
    unknown = sorted(name for name in extras if name not in _REST and not name.startswith(_FAMILIES))
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown extra {', '.join(map(repr, unknown))}; expected some of: type, uri, "
            f"{', '.join(sorted(_REST))}, or names that begin with {', '.join(_FAMILIES)}"
        )
    nested = sorted(name for name, value in extras.items() if not isinstance(value, (str, int, float, bool)))
    if nested:
        raise ConfigurationError(f"{where}: expected texts, found lists or objects in {', '.join(map(repr, nested))}")
    unsendable = sorted(name for name, value in extras.items() if not _is_sendable(name, _text(value)))
    if unsendable:
        raise ConfigurationError(
            f"{where}: expected values without line breaks and outer blanks, which come along when a secret is pasted, "
            f"and tokens and headers of ASCII letters, found others in {', '.join(map(repr, unsendable))}; correct them"
        )
    if uri is not None:
        if not uri.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{where}: expected the catalog's address to begin with http:// or https:// in the field host, found "
                "another one; write it in full, as in https://catalog.example.com/api/catalog"
            )
        require_no_password(f"{where}, host", uri, "put client id and secret into the fields for login and password")
    if connection.login and connection.password:
        extras["credential"] = f"{connection.login}:{connection.password}"
    elif connection.login or connection.password:
        raise ConfigurationError(
            f"{where}: expected both, login (client id) and password (client secret), or neither, found one"
        )
    return uri, tuple(sorted((name, _text(value)) for name, value in extras.items()))


def _is_sendable(name: str, text: str) -> bool:
    """Whether a request can be made of it. Those who find out when they send it show it in their errors."""
    if name.startswith(("token", "header.")) and not text.isascii():
        return False
    return text == text.strip() and not any(unicodedata.category(letter) == "Cc" for letter in text)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
