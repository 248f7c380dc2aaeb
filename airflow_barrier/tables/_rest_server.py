"""A REST catalog's server: loading documents as they stand, and committing, by pyiceberg's session.

pyiceberg brings the protocol's addresses, authentication (OAuth2, tokens, SigV4) and headers. What it lacks is done
here: it parses metadata into a model, which loses fields that it does not know, it has no commit over several tables,
and it waits for answers without end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import CatalogUnavailableError, ConfigurationError, MissingTableError

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Response

#: Seconds to connect, and between two bytes of an answer. A commit over a thousand tables takes its time.
_TIMEOUT = (10.0, 120.0)
#: Codes by which a server says that it did not commit, and that asking the same again is of no use.
_REJECTED = (400, 403, 404, 406, 409, 422)
_CONFLICT = 409


class RejectedError(Exception):
    """The server says that it has committed nothing. ``conflict``: because the table is not what was expected."""

    def __init__(self, said: str, conflict: bool) -> None:
        super().__init__(said)
        self.conflict = conflict


class RestServer:
    """``properties`` are pyiceberg's. Nothing is asked before the first use. Neither they nor errors show secrets."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._properties = dict(properties)

    @property
    def uri(self) -> str:
        return self._properties["uri"]

    @cached_property
    def catalog(self) -> RestCatalog:
        from pyiceberg.catalog.rest import RestCatalog
        from requests import Session
        from requests.adapters import HTTPAdapter

        class Patient(HTTPAdapter):
            """Bounds the wait for an answer, which nothing in pyiceberg does."""

            def send(self, *args: Any, **kwargs: Any) -> Response:
                return super().send(*args, **{**kwargs, "timeout": kwargs.get("timeout") or _TIMEOUT})

        class BoundedRestCatalog(RestCatalog):
            def _create_session(self) -> Session:
                session = super()._create_session()
                for scheme in ("http://", "https://"):
                    session.mount(scheme, Patient())
                return session

        with self.translated():
            return BoundedRestCatalog(self.name, **self._properties)

    def load(self, table: str) -> dict[str, Any]:
        """The answer to loading a table: its `metadata` as it stands, and its `metadata-location`.

        Raises MissingTableError.
        """
        from pyiceberg.catalog.rest import Endpoints

        answer = self._ask("GET", Endpoints.load_table, table)
        if answer.status_code == 404:
            raise MissingTableError(
                f"expected table {table} in the REST catalog at {self.uri}, found none ({_said(answer)}); create the "
                "table, or correct its name or the connection's"
            )
        self._require_ok(answer)
        loaded: dict[str, Any] = answer.json()
        return loaded

    def commit(self, table: str, change: Mapping[str, Any]) -> str | None:
        """Commit to one table. Returns where its document lies now. Raises RejectedError.

        After a CatalogUnavailableError it may have been committed or not.
        """
        from pyiceberg.catalog.rest import Endpoints

        answer = self._ask("POST", Endpoints.update_table, table, change)
        self._require_committed(answer)
        location: str | None = answer.json().get("metadata-location")
        return location

    def commit_together(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Commit to several tables by `transactions/commit`, which pyiceberg has no method for.

        Raises what :meth:`commit` does. Whether it is one step is for the server to keep, and some do not.
        """
        self._require_committed(self._ask("POST", "transactions/commit", None, {"table-changes": list(changes)}))

    def identifier(self, table: str) -> dict[str, Any]:
        """What a table is called in a commit over several."""
        namespace, _, name = table.rpartition(".")
        return {"namespace": namespace.split("."), "name": name}

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.catalog.close()
            self.catalog._session.close()

    def _ask(self, method: str, endpoint: str, table: str | None, body: Mapping[str, Any] | None = None) -> Response:
        catalog = self.catalog
        path = catalog._split_identifier_for_path(table) if table is not None else {}
        data = None if body is None else json.dumps(body).encode()
        with self.translated():
            answer = catalog._session.request(method, catalog.url(endpoint, **path), data=data)
            if answer.status_code in (401, 419):  # the token has expired
                catalog._refresh_token()
                answer = catalog._session.request(method, catalog.url(endpoint, **path), data=data)
        if answer.status_code in (401, 419):
            raise self._refused(_said(answer))
        return answer

    def _require_committed(self, answer: Response) -> None:
        if answer.status_code in _REJECTED:
            raise RejectedError(_said(answer), answer.status_code == _CONFLICT)
        self._require_ok(answer)

    def _require_ok(self, answer: Response) -> None:
        if answer.status_code == 403:
            raise self._refused(_said(answer))
        if not answer.ok:
            raise self._unavailable(_said(answer))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What pyiceberg raises, as this package's errors."""
        from pyiceberg.exceptions import (
            AuthorizationExpiredError,
            BadRequestError,
            ForbiddenError,
            NoSuchNamespaceError,
            NoSuchTableError,
            OAuthError,
            RESTError,
            UnauthorizedError,
        )
        from requests import RequestException

        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise MissingTableError(
                f"REST catalog at {self.uri}: {error}; create it, or correct its name or the connection's"
            ) from error
        except (AuthorizationExpiredError, BadRequestError, ForbiddenError, OAuthError, UnauthorizedError) as error:
            raise self._refused(_brief(str(error))) from error
        except (RESTError, RequestException) as error:
            raise self._unavailable(_brief(str(error))) from error

    def _refused(self, said: str) -> ConfigurationError:
        return ConfigurationError(
            f"REST catalog at {self.uri}: expected it to accept this connection's requests, found {said}; check the "
            "credentials of the connection of type iceberg, what they may do, and the catalog's warehouse"
        )

    def _unavailable(self, said: str) -> CatalogUnavailableError:
        return CatalogUnavailableError(
            f"REST catalog at {self.uri}: expected it to answer, found {said}; check that it runs, then try again"
        )


def _said(answer: Response) -> str:
    """A server's own words, without the stack traces that some send along."""
    try:
        error = answer.json()["error"]
        return _brief(f"{answer.status_code} {error.get('type') or ''} {error['message']}")
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


def _brief(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
