"""All routes, for whoever hosts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends

from airflow_barrier.api import actions, barriers, delay, events, grid, models, runs, topologies, upkeep
from airflow_barrier.api.access import Access, bound
from airflow_barrier.api.events import Watches

_ROUTERS = (
    topologies.router,
    grid.router,
    barriers.router,
    delay.router,
    upkeep.router,
    runs.router,
    events.router,
    actions.router,
)
#: What any route may answer instead: in the OpenAPI.
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": models.Problem, "description": "Nobody said who asks."},
    404: {"model": models.Problem, "description": "There is nothing of that name, or nothing that may be read."},
    503: {"model": models.Problem, "description": "The MetaService cannot be asked just now."},
}


def create_api(access_of: Callable[..., Access]) -> APIRouter:
    """The routes, below ``/v1``. ``access_of``: a dependency of FastAPI's that says who asks; it refuses with 401 who
    says nothing of that.
    """
    api = APIRouter(dependencies=[Depends(bound(access_of, watches=Watches()))], responses=_PROBLEMS)
    for router in _ROUTERS:
        api.include_router(router)
    return api
