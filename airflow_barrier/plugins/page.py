"""What Airflow's API server serves for the page in its UI: the page's one file, and the API that it asks."""

from __future__ import annotations

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI
from fastapi.responses import FileResponse
from starlette.requests import Request

from airflow_barrier.api.app import create_api
from airflow_barrier.api.iceberg import create_iceberg
from airflow_barrier.plugins.access import airflow_access
from airflow_barrier.plugins.bundle import BUNDLE, ROUTE, VERSION

# Airflow mounts a plugin's application without any authentication of its own.
app = FastAPI(title="Barriers", dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)


def bundle(request: Request) -> FileResponse:
    """The page of Airflow's UI: the same for everybody, and it says nothing, so nobody is asked who they are.

    While an upgrade is rolled out the URL of another version may come here: what it gets is not to be kept.
    """
    is_this = request.query_params.get("v") == VERSION
    kept = "public, max-age=31536000, immutable" if is_this else "no-cache"
    return FileResponse(BUNDLE, media_type="text/javascript", headers={"Cache-Control": kept})


# not one of FastAPI's routes: those have the dependencies above
app.add_route(ROUTE, bundle)
app.include_router(create_api(airflow_access))
app.include_router(create_iceberg(airflow_access))
