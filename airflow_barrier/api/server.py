"""The API on a server of its own, without Airflow: one deployment, and callers with tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.trustedhost import TrustedHostMiddleware

from airflow_barrier.api.access import Access, Wait
from airflow_barrier.api.app import create_api
from airflow_barrier.api.iceberg import create_iceberg
from airflow_barrier.api.tokens import ANYBODY, Bearer, Tokens
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.deployment import CredentialsOf, Deployment
from airflow_barrier.coordinator.runs import Waker
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError

_Given = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
_LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


@dataclass(frozen=True)
class Served:
    """One deployment, as it is called in addresses. ``credentials`` enter its sources; ``deployment``: with its tables,
    which are served, too.
    """

    name: str
    meta: MetaService
    credentials: CredentialsOf
    deployment: Deployment | None = None


@dataclass(frozen=True)
class TokenAccess:
    """An :class:`~airflow_barrier.api.access.Access` for whoever has a token. ``bearer``: whose it is now; None: it was
    taken out of the file while its bearer listened.
    """

    served: Served
    bearer: Callable[[], Bearer | None]

    def deployments(self) -> list[str]:
        return [self.served.name]

    def meta_service(self, deployment: str) -> MetaService:
        if deployment != self.served.name:
            raise ConfigurationError(f"deployment {deployment!a}: expected {self.served.name}, which is served here")
        return self.served.meta

    async def is_logged_in(self) -> bool:
        return self.bearer() is not None

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        bearer = self.bearer()
        return set() if bearer is None else bearer.readable(dag_ids)

    def editable(self, dag_ids: Iterable[str]) -> set[str]:
        """None: tokens are for reading."""
        return set()

    def waits(self, awaited: Collection[Awaited]) -> Mapping[Awaited, Wait]:
        """Nothing: no Airflow is asked here."""
        return {}

    @property
    def actor(self) -> str:
        bearer = self.bearer()
        return f"{'nobody' if bearer is None else bearer.name} (airflow-barrier serve)"

    def deployment(self, name: str) -> Deployment:
        if name != self.served.name or self.served.deployment is None:
            raise ConfigurationError(f"deployment {name!a}: expected {self.served.name}, and its tables to be served")
        return self.served.deployment

    def waker(self) -> Waker:
        raise ConfigurationError(
            "expected a scheduler, whose runs compute a revision, found airflow-barrier serve, which has none; ask "
            "Airflow's API server, or begin it by airflow-barrier revision run"
        )

    def credentials(self, what: str, conn_id: str, conn_type: str) -> Credentials:
        return self.served.credentials(what, conn_id, conn_type)


def create_server(served: Served, tokens: Tokens | None) -> FastAPI:
    """The application. ``tokens`` None: whoever reaches it may read everything, and it has to be reached by the name of
    this machine's loopback, so that no page of somebody else's in a browser here reaches it by a name of its own.
    """

    def access(given: _Given) -> Access:
        def bearer() -> Bearer | None:
            return ANYBODY if tokens is None else tokens.bearer(given.credentials) if given else None

        if bearer() is None:
            raise HTTPException(401, "expected a token, as Authorization: Bearer", {"WWW-Authenticate": "Bearer"})
        return TokenAccess(served, bearer)

    app = FastAPI(title="Barriers", version="1", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(create_api(access))
    if served.deployment is not None:
        app.include_router(create_iceberg(access))

    @app.get("/v1/openapi.json", include_in_schema=False, dependencies=[Depends(access)])
    def openapi() -> dict[str, Any]:
        return app.openapi()

    if tokens is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=_LOOPBACK)
    return app


def check_reach(host: str, *, tokens: bool, encrypted: bool) -> None:
    """Raise :class:`ConfigurationError` unless what is served to ``host`` is as safe as it has to be there."""
    if is_loopback(host):
        return
    lacks = [what for what, there in (("--token-file", tokens), ("--certificate and --key", encrypted)) if not there]
    if lacks:
        raise ConfigurationError(
            f"serve: expected tokens and TLS where others can reach it, found {host} without "
            f"{' and without '.join(lacks)}; give these, or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or `localhost`: another name may mean something else tomorrow."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
