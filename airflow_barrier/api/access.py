"""Who asks, what they may read, and how what went wrong is told: what the API needs of whoever hosts it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, NamedTuple, Protocol, cast

from fastapi import Depends, HTTPException, Path, Query, Request, Response
from fastapi.routing import APIRoute

from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.runs import Waker
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import BarrierError, MetaServiceMissingError, Retryable

log = logging.getLogger(__name__)

#: Says nothing of what there is: not even which deployments and topologies.
NOT_FOUND = "expected something of jobs whose DAGs you may read, found none"
UNAVAILABLE = "the MetaService cannot be asked just now; the log of the server says why. Try again"
#: What a database can count to: barriers, and versions and revisions, of which there are fewer.
BarrierId = Annotated[int, Path(ge=0, lt=2**63)]
LeaseId = Annotated[int, Path(ge=0, lt=2**63)]
RevisionNumber = Annotated[int, Path(ge=1, lt=2**31)]
BeforeBarrier = Annotated[int | None, Query(ge=0, lt=2**63, description="Of those with lower numbers.")]
BeforeRevision = Annotated[int | None, Query(ge=0, lt=2**31, description="Of those with lower numbers.")]


class Outlook(Enum):
    """The outcome of something that does not begin, if nobody does anything."""

    #: It begins by itself.
    PASSES = "passes"
    #: It does not begin until a person does something.
    STOPPED = "stopped"
    #: Neither does this: a task before it, or its own, has failed for good.
    FAILED = "failed"

    @property
    def needs_somebody(self) -> bool:
        return self is not Outlook.PASSES


class Wait(NamedTuple):
    """The reason why something that is waited for does not begin: ``summary`` says it in a few words."""

    outlook: Outlook
    summary: str


class Access(Protocol):
    """Somebody who asks. All methods may block: they are called in threads."""

    def deployments(self) -> list[str]:
        """All that there are, whoever asks: what of them is told depends on :meth:`readable`."""
        ...

    def meta_service(self, deployment: str) -> MetaService:
        """Raises a :class:`BarrierError` if there is none of that name, whatever the name is."""
        ...

    async def is_logged_in(self) -> bool:
        """Return whether their login still holds: an answer without an end, such as a stream, asks again and again."""
        ...

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        """Return those of these DAGs that they may read."""
        ...

    def editable(self, dag_ids: Iterable[str]) -> set[str]:
        """Return those of these DAGs that they may change, and so act for."""
        ...

    def waits(self, awaited: Collection[Awaited]) -> Mapping[Awaited, Wait]:
        """Map these to why they do not begin, as far as the host knows. They are of DAGs that the caller may read, and
        what is told names no others.
        """
        ...

    @property
    def actor(self) -> str:
        """The caller's name for the audit: `jane (Airflow)`."""
        ...

    def deployment(self, name: str) -> Deployment:
        """Return it with its tables, which some actions need. Raises a :class:`BarrierError` as :meth:`meta_service`,
        or if the tables cannot be reached.
        """
        ...

    def waker(self) -> Waker:
        """Return what has runs run again. Raises ConfigurationError where the host has no scheduler."""
        ...

    def credentials(self, what: str, conn_id: str, conn_type: str) -> Credentials:
        """Return the credentials by which a source is asked how far behind it is. Raises ConfigurationError."""
        ...


def bound(access_of: Callable[..., Access], **state: Any) -> Callable[..., Coroutine[Any, Any, None]]:
    """A dependency of routers: who asks, by the host's own dependency, and ``state`` are in the request's state."""

    async def bind(request: Request, access: Any = Depends(access_of)) -> None:  # noqa: B008
        request.state.access = access
        for name, value in state.items():
            setattr(request.state, name, value)

    return bind


def access_in(request: Request) -> Access:
    """Return whoever asks: a dependency of routes."""
    return cast("Access", request.state.access)


class Told(APIRoute):
    """A route whose errors are told so that whoever may be no more than logged in learns nothing: the log has their
    text.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except BarrierError as error:
                raise told_in_http(error) from error

        return told


def told_in_http(error: BarrierError) -> HTTPException:
    """The error in HTTP, written into the log."""
    # where no MetaService is made yet there is nothing, and nobody has to mend anything
    if isinstance(error, Retryable) and not isinstance(error, MetaServiceMissingError):
        log.warning("%s", error)
        return HTTPException(503, UNAVAILABLE)
    log.info("%s", error)
    return not_found()


def not_found() -> HTTPException:
    return HTTPException(404, NOT_FOUND)
