"""What a deployment takes from a connection of the Iceberg provider's type: an address, credentials, storage."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.tables import CATALOGS, STORAGE, CatalogKind, ConnectionProperties

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "iceberg"

#: What a connection is about that does not say it.
_USUAL = "rest"


def catalog_of(connection: Connection) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """A catalog's address (None: the connection is about storage only) and pyiceberg's properties.

    By allow-list, which is in the catalog's entry of :data:`~airflow_barrier.tables.CATALOGS`, in the fields that the
    provider's own hook reads: host, login and password (OAuth2's client id and secret), and extras. Raises
    :class:`ConfigurationError` naming what it does not understand, never a value.
    """
    from airflow_barrier.coordinator.settings import require_no_password

    where = f"connection {connection.conn_id}"
    if connection.conn_type != CONN_TYPE:
        raise ConfigurationError(f"{where}: expected the type {CONN_TYPE}, found {connection.conn_type}")
    extras = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    kind, own = _kind(where, extras.pop("type", _USUAL))
    uri = (connection.host or extras.pop("uri", None) or "").rstrip("/") or None
    for credential in own.credentials[-1:]:  # of two the second is the secret
        if credential in extras:
            raise ConfigurationError(
                f"{where}: expected credentials in the fields for login and password, which Airflow masks, found the "
                f"extra {credential!r}, which it shows; move it there, and make a new secret"
            )
    families = tuple(sorted((*STORAGE, *own.families)))
    unknown = sorted(name for name in extras if name not in own.names and not name.startswith(families))
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown extra {', '.join(map(repr, unknown))}; expected some of: type, uri, "
            f"{', '.join(sorted(own.names))}, or names that begin with {', '.join(families)}"
        )
    nested = sorted(name for name, value in extras.items() if not isinstance(value, (str, int, float, bool)))
    if nested:
        raise ConfigurationError(f"{where}: expected texts, found lists or objects in {', '.join(map(repr, nested))}")
    unsendable = sorted(name for name, value in extras.items() if not _is_sendable(name, _text(value), own.headers))
    if unsendable:
        raise ConfigurationError(
            f"{where}: expected values without line breaks and outer blanks, which come along when a secret is pasted, "
            f"and tokens and headers of ASCII letters, found others in {', '.join(map(repr, unsendable))}; correct them"
        )
    if uri is not None:
        if not kind.has(uri):
            raise ConfigurationError(
                f"{where}: expected the catalog's address to begin with "
                f"{' or '.join(f'{scheme}://' for scheme in kind.schemes)} in the field host, found another one; write "
                f"it in full, as in {kind.example}"
            )
        require_no_password(f"{where}, host", uri, "put client id and secret into the fields for login and password")
    extras |= _credentials(where, connection, own.credentials, kind.title)
    return uri, tuple(sorted((name, _text(value)) for name, value in extras.items()))


def _credentials(where: str, connection: Connection, names: tuple[str, ...], title: str) -> dict[str, str]:
    login, password = connection.login, connection.password
    if not login and not password:
        return {}
    if not names:
        raise ConfigurationError(
            f"{where}: expected no login and password with {title}, whose client takes none, found some; leave them out"
        )
    if not login or not password:
        raise ConfigurationError(
            f"{where}: expected both, login (client id) and password (client secret), or neither, found one"
        )
    return {names[0]: f"{login}:{password}"} if len(names) == 1 else dict(zip(names, (login, password), strict=True))


def _kind(where: str, named: object) -> tuple[CatalogKind, ConnectionProperties]:
    kind = CATALOGS.get(named) if isinstance(named, str) else None
    if kind is not None and kind.properties is not None:
        return kind, kind.properties
    known = " or ".join(
        f"{kind.title} (extra 'type' {'left out, or ' if name == _USUAL else ''}{name!r})"
        for name, kind in CATALOGS.items()
        if kind.properties is not None
    )
    raise ConfigurationError(
        f"{where}: expected {known}, found {named!r}; the address of an SQL catalog is the barrier connection's "
        "catalog_uri; this connection then holds the storage's properties"
    )


def _is_sendable(name: str, text: str, headers: tuple[str, ...]) -> bool:
    """Return whether a request can be made of it. Those who find out when they send it show it in their errors."""
    if name.startswith(headers) and not text.isascii():
        return False
    return text == text.strip() and not any(unicodedata.category(letter) == "Cc" for letter in text)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
