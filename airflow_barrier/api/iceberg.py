"""Tables at a barrier as a read-only REST catalog of Iceberg's: any engine that speaks it reads whole barriers.

FLIP-276's ``CREATE CATALOG … WITH ('uri' = …, 'consistency' = …)``. An engine asks ``config`` once, by a ``warehouse``
that says which barrier, and is given a prefix for all that it asks later: the pin. See
https://iceberg.apache.org/rest-catalog-spec/ for the routes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from airflow_barrier.api.access import NOT_FOUND, Access, bound, told_in_http
from airflow_barrier.api.cells import seen_tables
from airflow_barrier.api.sight import AccessDep, Sight, sight_of
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    BarrierError,
    ConfigurationError,
    ExpiredBarrierError,
    LeaseLostError,
    NotReadableYetError,
    UnknownBarrierError,
    UnknownRevisionError,
    UnknownTableError,
)
from airflow_barrier.protocol.levels import Resolution
from airflow_barrier.reading.catalog_pins import Pin, Warehouse, pin, resolved

#: Between the parts of a namespace in an address.
_PART = "\x1f"
_NAMESPACES, _TABLES = "/v1/{prefix}/namespaces", "/v1/{prefix}/namespaces/{namespace}/tables"
#: What clients may ask; who is not told that more can be asked refuses to write by itself.
ENDPOINTS = [
    f"{method} {path}"
    for path, methods in (
        (_NAMESPACES, ("GET",)),
        (f"{_NAMESPACES}/{{namespace}}", ("GET", "HEAD")),
        (_TABLES, ("GET",)),
        (f"{_TABLES}/{{table}}", ("GET", "HEAD")),
        (f"{_TABLES}/{{table}}/metrics", ("POST",)),
    )
    for method in methods
]
_OUTSIDE = "none; tables outside the topology are read by their own catalog"
_WRITTEN = "tables of a topology are written by their jobs"
#: Spark asks whether it may commit once its files are written, and leaves them: with these it writes none.
_UNWRITABLE = dict.fromkeys(("write.data.path", "write.metadata.path"), f"read-only://{_WRITTEN.replace(' ', '-')}/")
#: What says of a barrier that one may see why it cannot be read.
_UNREADABLE = (ExpiredBarrierError, NotReadableYetError, UnknownBarrierError, UnknownRevisionError)
#: What Iceberg calls an error of that status.
_TYPES = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    410: "CatalogEndedException",
    503: "ServiceUnavailableException",
}


class _InIcebergsWords(APIRoute):
    """A route whose errors are in Iceberg's form, by which engines show their message."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except _NoSuchError as error:
                return _error(404, error.kind, error.detail)
            except RequestValidationError as error:
                return _error(400, _TYPES[400], str(error.errors()))
            except BarrierError as error:
                problem = told_in_http(error)
            except HTTPException as error:
                problem = error
            kind = _TYPES.get(problem.status_code, "NotFoundException")
            return _error(problem.status_code, kind, str(problem.detail), problem.headers)

        return told


def _error(status: int, kind: str, message: str, headers: Any = None) -> Response:
    said = {"error": {"message": message, "type": kind, "code": status}}
    return Response(msgspec.json.encode(said), status, headers, media_type="application/json")


class _NoSuchError(HTTPException):
    """There is no such namespace or table, or none that the caller may see."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(404, detail)
        self.kind = kind


router = APIRouter(prefix="/iceberg/{deployment}", route_class=_InIcebergsWords)


def create_iceberg(access_of: Callable[..., Access]) -> APIRouter:
    """The routes, below ``/iceberg/DEPLOYMENT``, which is what engines are given as ``uri``. ``access_of`` as for
    :func:`~airflow_barrier.api.app.create_api`. They are Iceberg's, and in no OpenAPI of ours.
    """
    api = APIRouter(dependencies=[Depends(bound(access_of))], include_in_schema=False)
    api.include_router(router)
    return api


class Catalog:
    """The tables that one engine's catalog sees: those of its barrier whose jobs' DAGs the caller may read."""

    def __init__(self, access: Access, name: str, found: Pin) -> None:
        sight = _seen(access, name, found.topology)
        self._tables, self._now = _tables_at(sight, found), sight.tables
        self._deployment = access.deployment(name)
        self._pin = found
        self._holder = _holder(access)

    @property
    def tables(self) -> list[str]:
        """The tables, in the order of their names."""
        return sorted(self._tables & self._resolved(None).tables.keys())

    def namespaces(self) -> set[tuple[str, ...]]:
        """Namespaces that have tables, and those above them."""
        parts = [tuple(table.split(".")) for table in self.tables]
        return {each[:depth] for each in parts for depth in range(1, len(each))}

    def load(self, table: str) -> dict[str, Any]:
        """Return the table as of the barrier, as LoadTable answers it."""
        try:
            found = self._resolved([table]) if table in self._tables else None
        except UnknownTableError:
            found = None
        if found is None:
            joined_later = table in self._now and table not in self._resolved(None).tables
            raise _no_table(table, self._first_with(table) if joined_later else _OUTSIDE)
        snapshot = found.tables[table].snapshot_id
        # Spark's tables of metadata are not read without a location, though they show what the answer says.
        location, metadata = self._deployment.tables.document_at(table, snapshot)
        metadata["properties"] = {**metadata.get("properties", {}), **_UNWRITABLE}
        return {"metadata-location": location, "metadata": metadata, "config": {}}

    def _first_with(self, table: str) -> str:
        first = self._deployment.meta.answers.first_with(self._pin.topology, table)
        since = "after this barrier, and no barrier has been opened since" if first is None else f"with {first}"
        return f"that it joined {since}; connect again, at its first barrier or later"

    def _resolved(self, tables: list[str] | None) -> Resolution:
        try:
            return resolved(self._deployment, self._pin, self._holder, tables)
        except LeaseLostError as error:
            raise HTTPException(410, str(error)) from error


def _holder(access: Access) -> str:
    """The name that a caller's pins are held by: nobody else reads by them."""
    return f"Iceberg catalog of {access.actor}"


def _seen(access: Access, name: str, topology: str) -> Sight:
    sight = sight_of(access, access.meta_service(name), topology)
    if not sight.jobs():
        raise HTTPException(404, NOT_FOUND)
    return sight


def _tables_at(sight: Sight, found: Pin) -> frozenset[str]:
    """The tables that the caller sees at the pin's barrier; at read uncommitted at the newest, which has tables that
    have left since.
    """
    at, barriers = found.barrier_id, sight.meta.barriers
    barrier = barriers.head(sight.name) if at is None else barriers.get(sight.name, at)
    if barrier is None or not barrier.barrier_id:  # before the first barrier there is no job's work
        return sight.tables
    version = barrier.topology_version
    there = frozenset(seen_tables(sight, barrier, sight.versions({version})[version]))
    # maintenance carries what joined with its history since, which no version of it says
    return there | sight.tables if barrier.is_maintenance else there


def _no_table(table: str, found: str) -> _NoSuchError:
    """An error of ours: the answer's would name tables that are not the caller's to see."""
    said = f"table {table}: expected one of the topology whose job's DAG you may read, found {found}"
    return _NoSuchError("NoSuchTableException", said)


def catalog(
    access: AccessDep, deployment: Annotated[str, Path()], prefix: Annotated[str, Path(max_length=300)]
) -> Catalog:
    """A dependency of routes."""
    try:
        found = Pin.parse(prefix)
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error
    return Catalog(access, deployment, found)


CatalogDep = Annotated[Catalog, Depends(catalog)]
Namespace = Annotated[str, Path(max_length=500)]


@router.get("/v1/config")
def config(access: AccessDep, deployment: str, warehouse: Annotated[str, Query(max_length=300)] = "") -> dict[str, Any]:
    """Resolve the barrier that the warehouse asks for, and hold it for this catalog."""
    try:
        asked = Warehouse.parse(warehouse)
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error
    _seen(access, deployment, asked.topology)
    there = access.deployment(deployment)
    try:
        given = pin(there, asked, _holder(access))
    except BarrierAbortedError as error:  # it says why, in words that may be another DAG's
        raise HTTPException(
            400,
            f"warehouse {warehouse}: expected a barrier that can be read, found one that was aborted; its epoch is "
            "part of the next one",
        ) from error
    except _UNREADABLE as error:
        raise HTTPException(400, str(error)) from error
    return {"defaults": {}, "overrides": {"prefix": str(given)}, "endpoints": ENDPOINTS}


@router.get(_NAMESPACES)
def namespaces(found: CatalogDep, parent: str = "") -> dict[str, Any]:
    """The namespaces right below ``parent``."""
    above = tuple(parent.split(_PART)) if parent else ()
    there = found.namespaces()
    if above and above not in there:
        raise _no_namespace(parent)
    return {"namespaces": sorted(each for each in there if each[:-1] == above)}


@router.api_route(f"{_NAMESPACES}/{{namespace}}", methods=["GET", "HEAD"])
def namespace(found: CatalogDep, namespace: Namespace, request: Request) -> Any:
    parts = tuple(namespace.split(_PART))
    if parts not in found.namespaces():
        raise _no_namespace(namespace)
    return Response(status_code=204) if request.method == "HEAD" else {"namespace": parts, "properties": {}}


@router.get(_TABLES)
def tables(found: CatalogDep, namespace: Namespace) -> dict[str, Any]:
    parts = namespace.split(_PART)
    here = [table.split(".") for table in found.tables]
    names = [each[-1] for each in here if each[:-1] == parts]
    if not names and tuple(parts) not in found.namespaces():
        raise _no_namespace(namespace)
    return {"identifiers": [{"namespace": parts, "name": name} for name in names]}


@router.api_route(f"{_TABLES}/{{table}}", methods=["GET", "HEAD"])
def table(
    found: CatalogDep, namespace: Namespace, table: Annotated[str, Path(max_length=500)], request: Request
) -> Response:
    loaded = found.load(".".join([*namespace.split(_PART), table]))
    if request.method == "HEAD":
        return Response(status_code=204)
    return Response(msgspec.json.encode(loaded), media_type="application/json")


@router.post(f"{_TABLES}/{{table}}/metrics")
def metrics(access: AccessDep) -> Response:
    """Take what an engine tells of its scans, and drop it."""
    return Response(status_code=204)


@router.api_route("/v1/{rest:path}", methods=["GET", "HEAD"])
def unknown(access: AccessDep) -> Response:
    raise HTTPException(
        400,
        "expected an address below the prefix that a catalog was given when it connected, found another one; connect "
        "by a warehouse, such as TOPOLOGY@repeatable_read",
    )


@router.api_route("/v1/{rest:path}", methods=["POST", "PUT", "PATCH", "DELETE"])
def written(access: AccessDep) -> Response:
    raise HTTPException(403, f"expected to be asked only: {_WRITTEN}")


def _no_namespace(name: str) -> _NoSuchError:
    return _NoSuchError(
        "NoSuchNamespaceException", f"namespace {name.replace(_PART, '.')}: expected one with tables, found none"
    )
