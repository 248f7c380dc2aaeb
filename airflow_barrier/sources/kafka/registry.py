"""A schema registry that speaks Confluent's API: the schemas that the values of a topic were written with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError

#: Seconds that one answer may take.
_PATIENCE = 10.0
#: Of HTTP.
_NOT_LET_IN, _BUSY = (401, 403), 429
_Kind = TypeVar("_Kind", list[Any], dict[str, Any])


def writer_schemas(what: str, subject: str, credentials: Credentials | None) -> dict[int, str]:
    """The schema of each version of ``subject``, by its id. Also of versions that were deleted, if the registry still
    knows them: records of these may be left. ``what`` asks, for errors: ``source purchases``.

    Raises SourceUnavailableError (retryable) if the registry does not answer or lets nobody in, SourceDataError for a
    subject that is not there or holds what is no Avro schema by itself, and ConfigurationError for a connection that
    leads to no registry.
    """
    if credentials is None:
        raise ConfigurationError(f"{what}: expected a connection of a schema registry, found none; define it")
    with _Registry(what, credentials).entered() as registry:
        return dict(registry.schemas(subject))


class _Registry:
    def __init__(self, what: str, credentials: Credentials) -> None:
        self._where = f"{what}: connection {credentials.conn_id}"
        self._address = _address(self._where, credentials)
        self._login = (credentials.login, credentials.password or "") if credentials.login else None

    @contextmanager
    def entered(self) -> Iterator[_Registry]:
        with httpx.Client(auth=self._login, timeout=_PATIENCE) as self._client:
            yield self

    def schemas(self, subject: str) -> Iterator[tuple[int, str]]:
        path = f"subjects/{quote(subject, safe='')}/versions"
        for version in self._asked(path, subject, list):
            found = self._asked(f"{path}/{quote(str(version), safe='')}", subject, dict)
            number, text, kind = found.get("id"), found.get("schema"), found.get("schemaType", "AVRO")
            if not isinstance(number, int) or not isinstance(text, str):
                raise self._no_registry("an answer without a schema")
            if kind != "AVRO" or found.get("references"):
                named = ", ".join(str(each.get("name")) for each in found.get("references") or [])
                raise SourceDataError(  # safety: schemas-that-can-be-read
                    f"{self._where}: expected Avro schemas in subject {subject}, each whole by itself, found version "
                    f"{version} {f'with references to {named}' if named else f'of type {kind}'}; name the subject of "
                    "the topic's values by subject=..., or give their schemas as writer_schemas=..."
                )
            yield number, text

    def _asked(self, path: str, subject: str, kind: type[_Kind]) -> _Kind:
        try:
            answer = self._client.get(f"{self._address}/{path}", params={"deleted": "true"})
        except httpx.TransportError as error:
            found = str(error) or type(error).__name__
            raise self._unavailable(found, "it runs, and the connection leads there") from error
        status = f"{answer.status_code} {answer.reason_phrase}"
        if answer.status_code in _NOT_LET_IN:
            raise self._unavailable(status, "the connection's login and password are right, and may read the subject")
        if answer.status_code >= 500 or answer.status_code == _BUSY:
            raise self._unavailable(status, "it is well")
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code == 404 and isinstance(said, dict) and "error_code" in said:
            raise SourceDataError(  # safety: schemas-of-a-subject
                f"{self._where}: expected subject {subject} in the schema registry at {self._address}, found none; "
                "register the schema that the topic's values are written with, as their producer does, or name their "
                "subject by subject=..."
            )
        if answer.status_code == 200 and isinstance(said, kind):
            return said
        raise self._no_registry(status)

    def _unavailable(self, found: str, see: str) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"{self._where}: expected an answer of the schema registry at {self._address}, found: {found}; see that "
            f"{see}"
        )

    def _no_registry(self, found: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._where}: expected a schema registry with Confluent's API at {self._address}, found {found}; "
            "correct the connection's host, with the path of that API if it has one, such as "
            "http://registry:8080/apis/ccompat/v7"
        )


def _address(where: str, credentials: Credentials) -> str:
    """Return the address without a slash at its end. As Airflow's own connections of type `http` have it, the schema
    may be in a field of its own, and so may the port.
    """
    host = credentials.host or ""
    try:
        parts = urlsplit(host if "://" in host else f"{credentials.schema or 'http'}://{host}")
        port = parts.port or credentials.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigurationError(
            f"{where}: expected the schema registry's address as its host, such as https://registry:8081, with who "
            "enters as its login and password, found another host or none; correct it"
        )
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{name}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
