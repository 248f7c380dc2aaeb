"""A host of the API: who asks is who the header `user` says, and may read and edit the DAGs that the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, FastAPI, Header, HTTPException
from httpx import ASGITransport, AsyncClient, Response

from airflow_barrier.api.access import Access, Wait
from airflow_barrier.api.app import create_api
from airflow_barrier.api.iceberg import create_iceberg
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.deployment import Deployment, nobody_gets_in
from airflow_barrier.coordinator.runs import Waker
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import AirflowUnavailableError, ConfigurationError


@dataclass(frozen=True)
class User:
    rights: Rights
    name: str

    def deployments(self) -> list[str]:
        return sorted(self.rights.metas)

    def meta_service(self, deployment: str) -> MetaService:
        if deployment not in self.rights.metas:
            raise ConfigurationError(f"there is no {deployment}")
        return self.rights.metas[deployment]

    def deployment(self, name: str) -> Deployment:
        return self.rights.connect(name)

    async def is_logged_in(self) -> bool:
        return True

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        return _allowed(self.rights.of[self.name], dag_ids)

    def editable(self, dag_ids: Iterable[str]) -> set[str]:
        return _allowed(self.rights.edits.get(self.name, frozenset()), dag_ids)

    def waits(self, awaited: Collection[Awaited]) -> Mapping[Awaited, Wait]:
        assert {each.dag_id for each in awaited} <= self.readable(each.dag_id for each in awaited)
        found = ((each, self.rights.wait(each)) for each in awaited)
        return {each: wait for each, wait in found if wait is not None}

    @property
    def actor(self) -> str:
        return f"{self.name} (test)"

    def waker(self) -> Waker:
        return self.rights.waker

    def credentials(self, what: str, conn_id: str, conn_type: str) -> Credentials:
        return nobody_gets_in(what, conn_id, conn_type)


def _allowed(dags: frozenset[str] | None, dag_ids: Iterable[str]) -> set[str]:
    return set(dag_ids) if dags is None else set(dags.intersection(dag_ids))


def no_tables(name: str) -> Deployment:
    raise ConfigurationError(f"deployment {name} has no tables in this test")


@dataclass
class Clock:
    """A scheduler whose runs have ended, until they are woken; those of ``busy`` have not, and whoever asks while it is
    ``away`` gets no answer.
    """

    woken: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    away: bool = False

    def state(self, dag_id: str, run_id: str) -> str | None:
        if self.away:
            raise AirflowUnavailableError("expected Airflow's database to answer, found internal things")
        return "running" if f"{dag_id}/{run_id}" in self.busy else "success"

    def wake(self, dag_id: str, run_id: str) -> None:
        self.woken.append(f"{dag_id}/{run_id}")
        self.busy.add(f"{dag_id}/{run_id}")


@dataclass
class Rights:
    """User -> the DAGs that they may read, or edit; None: all of them. They may change meanwhile. ``wait``: why
    something does not begin.
    """

    metas: Mapping[str, MetaService]
    connect: Callable[[str], Deployment] = no_tables
    wait: Callable[[Awaited], Wait | None] = lambda awaited: None
    waker: Clock = field(default_factory=Clock)
    edits: dict[str, frozenset[str] | None] = field(default_factory=lambda: {"admin": None})
    of: dict[str, frozenset[str] | None] = field(default_factory=lambda: {"admin": None, "nobody": frozenset()})

    def access(self, user: str | None = Header(default=None)) -> Access:
        if user is None:
            raise HTTPException(401, "who are you?")
        return User(self, user)


class Asking:
    """The API in this process. What goes wrong in it is raised here, not answered with 500."""

    def __init__(self, metas: Mapping[str, MetaService], connect: Callable[[str], Deployment] = no_tables) -> None:
        self.rights = Rights(metas, connect)
        self.app = FastAPI(dependencies=[Depends(self.rights.access)])
        self.app.include_router(create_api(self.rights.access))
        self.app.include_router(create_iceberg(self.rights.access))

    def may_read(self, user: str, *dags: str) -> str:
        self.rights.of[user] = frozenset(dags)
        return user

    def may_edit(self, user: str, *dags: str) -> str:
        self.rights.edits[user] = frozenset(dags)
        return self.may_read(user, *dags)

    def get(self, path: str, user: str | None = "admin", **query: Any) -> Response:
        """The answer to what is asked below `/v1/deployments`, or at an address of its own."""
        return self.request("GET", path, user, params=query or None)

    def post(self, path: str, user: str | None = "admin", **body: Any) -> Response:
        """The answer to what is to be done to topologies of `prod`; unless ``body`` says why, it is a test."""
        return self.request("POST", f"/prod/topologies/{path}", user, json={"reason": "a test", **body})

    def request(self, method: str, path: str, user: str | None = "admin", **sent: Any) -> Response:
        headers = {**({} if user is None else {"user": user}), **sent.pop("headers", {})}
        whole = path if path.startswith(("/v1/", "/iceberg/")) else f"/v1/deployments{path}"
        return asyncio.run(self._request(method, whole, headers=headers, **sent))

    async def _request(self, method: str, path: str, **sent: Any) -> Response:
        async with AsyncClient(transport=ASGITransport(self.app), base_url="http://barrier") as client:
            return await client.request(method, path, **sent)

    def told(self, path: str, user: str = "admin", **query: Any) -> Any:
        """What is answered about a topology of `prod`."""
        answer = self.get(f"/prod/topologies/{path}", user, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()
