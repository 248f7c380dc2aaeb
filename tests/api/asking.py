"""A host of the API: who asks is who the header `user` says, and may read the DAGs that the test gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, FastAPI, Header, HTTPException
from httpx import ASGITransport, AsyncClient, Response

from airflow_barrier.api.access import Access
from airflow_barrier.api.app import create_api
from airflow_barrier.coordinator.deployment import nobody_gets_in
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError


@dataclass(frozen=True)
class User:
    """``of``: user -> DAGs, which may change meanwhile; None: all of them."""

    metas: Mapping[str, MetaService]
    name: str
    of: Mapping[str, frozenset[str] | None]

    def deployments(self) -> list[str]:
        return sorted(self.metas)

    def meta_service(self, deployment: str) -> MetaService:
        if deployment not in self.metas:
            raise ConfigurationError(f"there is no {deployment}")
        return self.metas[deployment]

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        dags = self.of[self.name]
        return set(dag_ids) if dags is None else set(dags.intersection(dag_ids))

    def credentials(self, what: str, conn_id: str, conn_type: str) -> Credentials:
        return nobody_gets_in(what, conn_id, conn_type)


@dataclass
class Rights:
    """User -> the DAGs that they may read, or None for all."""

    metas: Mapping[str, MetaService]
    of: dict[str, frozenset[str] | None] = field(default_factory=lambda: {"admin": None, "nobody": frozenset()})

    def access(self, user: str | None = Header(default=None)) -> Access:
        if user is None:
            raise HTTPException(401, "who are you?")
        return User(self.metas, user, self.of)


class Asking:
    """The API in this process. What goes wrong in it is raised here, not answered with 500."""

    def __init__(self, metas: Mapping[str, MetaService]) -> None:
        self.rights = Rights(metas)
        self.app = FastAPI(dependencies=[Depends(self.rights.access)])
        self.app.include_router(create_api(self.rights.access))

    def may_read(self, user: str, *dags: str) -> str:
        self.rights.of[user] = frozenset(dags)
        return user

    def get(self, path: str, user: str | None = "admin", **query: Any) -> Response:
        """The answer to what is asked below `/v1/deployments`, or at an address of its own."""
        whole = path if path.startswith("/v1/") else f"/v1/deployments{path}"
        return asyncio.run(self._get(whole, {} if user is None else {"user": user}, query))

    async def _get(self, path: str, headers: Mapping[str, str], query: Mapping[str, Any]) -> Response:
        async with AsyncClient(transport=ASGITransport(self.app), base_url="http://barrier") as client:
            return await client.get(path, headers=headers, params=query or None)

    def told(self, path: str, user: str = "admin", **query: Any) -> Any:
        """What is answered about a topology of `prod`."""
        answer = self.get(f"/prod/topologies/{path}", user, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()
