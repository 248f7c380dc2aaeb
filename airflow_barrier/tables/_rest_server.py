"""A REST catalog's server: loading documents as they stand, and committing, by pyiceberg's session.

pyiceberg brings the protocol's addresses, authentication (OAuth2, tokens, SigV4) and headers. What it lacks is done
here: it parses metadata into a model, which loses fields that it does not know, it has no commit over several tables,
it waits for answers without end, and it lets a change be redirected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from airflow_barrier.protocol.errors import (
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
    MissingTableError,
)

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Response, Session

#: Seconds to connect, and between two bytes of an answer. A commit over a thousand tables takes its time.
_TIMEOUT = (10.0, 120.0)
#: Codes by which a server says that it did not commit, and that asking the same again is of no use.
_REJECTED = (400, 404, 405, 406, 409, 422, 501)
_CONFLICT = 409
#: Codes by which a server says that the token has expired, and all those by which it says that it takes it for nothing.
_EXPIRED = (401, 419)
_REFUSED = (*_EXPIRED, 403)
#: What may be redirected: nothing is changed by asking elsewhere.
_READING = ("GET", "HEAD")


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

        class BoundedRestCatalog(RestCatalog):
            def _config_headers(self, session: Session) -> None:
                super()._config_headers(session)
                # Here and not when the session is complete: making it may ask for a token already.
                session.request = _bounded(session.request)  # type: ignore[method-assign]

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
        return self._content(answer)

    def commit(self, table: str, change: Mapping[str, Any]) -> str | None:
        """Commit to one table. Returns where its document lies now. Raises RejectedError, CatalogRefusedError.

        After a CatalogUnavailableError it may have been committed or not.
        """
        from pyiceberg.catalog.rest import Endpoints

        answer = self._ask("POST", Endpoints.update_table, table, change)
        self._require_committed(answer)
        location: str | None = self._content(answer).get("metadata-location")
        return location

    def commit_together(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Commit to several tables by `transactions/commit`, which pyiceberg has no method for.

        Raises what :meth:`commit` does. Whether it is one step is for the server to keep, and some do not.
        """
        self._require_committed(self._ask("POST", "transactions/commit", None, {"table-changes": list(changes)}))

    def identifier(self, table: str) -> dict[str, Any]:
        """Return what a table is called in a commit over several."""
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
            if answer.status_code in _EXPIRED:
                catalog._refresh_token()
                answer = catalog._session.request(method, catalog.url(endpoint, **path), data=data)
        if answer.status_code in _REFUSED:
            raise self._refused(_said(answer))  # safety: refused-is-told
        return answer

    def _content(self, answer: Response) -> dict[str, Any]:
        with self.translated():  # of a page that something in between has sent in the server's place
            content: dict[str, Any] = answer.json()
        return content

    def _require_committed(self, answer: Response) -> None:
        if answer.status_code in _REJECTED:
            raise RejectedError(_said(answer), answer.status_code == _CONFLICT)
        self._require_ok(answer)

    def _require_ok(self, answer: Response) -> None:
        if not 200 <= answer.status_code < 300:
            raise self._unavailable(_said(answer))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise this package's errors for what pyiceberg raises."""
        from pydantic import ValidationError
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
        from requests.exceptions import InvalidHeader, JSONDecodeError

        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise MissingTableError(
                f"REST catalog at {self.uri}: {error}; create it, or correct its name or the connection's"
            ) from error
        except (AuthorizationExpiredError, BadRequestError, ForbiddenError, OAuthError, UnauthorizedError) as error:
            raise self._refused(_brief(str(error))) from error
        except (JSONDecodeError, ValidationError):
            # They show the answer, which may be the one to a request for a token.
            raise self._unavailable("an answer that is none of a REST catalog's") from None
        except InvalidHeader:
            raise self._unsendable() from None
        except (RESTError, RequestException) as error:
            raise self._unavailable(_brief(str(error))) from error
        except ValueError:
            raise self._unsendable() from None

    def _unsendable(self) -> ConfigurationError:
        """Instead of errors that show the header, and with it a token."""
        return ConfigurationError(
            f"REST catalog at {self.uri}: expected credentials and extras that a request can be made of, found some "
            "that cannot (they are not shown, since they may be secrets): a token or a header with a line break, outer "
            "blanks or letters that HTTP does not know is such a one; correct the connection of type iceberg"
        )

    def _refused(self, said: str) -> CatalogRefusedError:
        return CatalogRefusedError(
            f"REST catalog at {self.uri}: expected it to accept this connection's requests, found {said}; check the "
            "credentials of the connection of type iceberg, what they may do, and the catalog's warehouse, then try "
            "again"
        )

    def _unavailable(self, said: str) -> CatalogUnavailableError:
        return CatalogUnavailableError(
            f"REST catalog at {self.uri}: expected it to answer, found {said}; check that it runs, then try again"
        )


def _bounded(request: Callable[..., Response]) -> Callable[..., Response]:
    """A session's ``request`` that waits no longer than this, whatever sends it, and lets no change be redirected.

    `requests` makes a GET of a redirected POST, and the answer to that would pass for the answer to a commit.
    """

    def bounded(method: str, url: str, *args: Any, **kwargs: Any) -> Response:
        if method.upper() in _READING:
            return request(method, url, *args, **{"timeout": _TIMEOUT, **kwargs})
        answer = request(method, url, *args, **{"timeout": _TIMEOUT, **kwargs, "allow_redirects": False})
        if answer.is_redirect:
            target = urljoin(url, answer.headers["location"])
            raise ConfigurationError(
                f"REST catalog: expected {method} to be answered at {_host(url)}, found {answer.status_code}, which "
                f"sends it to {_host(target)}, and a change that is sent on may get lost. Put the new address into the "
                "connection"
            )
        return answer

    return bounded


def _host(url: str) -> str:
    """Return the address without what may be a secret: user, path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _said(answer: Response) -> str:
    """A server's own words, without the stack traces that some send along."""
    try:
        error = answer.json()["error"]
        return _brief(f"{answer.status_code} {error.get('type') or ''} {error['message']}")
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


def _brief(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
