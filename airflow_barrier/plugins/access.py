"""Who asks Airflow's API server, and what they may read; which deployments there are."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN, ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, resolve_user_from_token
from airflow.models.connection import Connection, sanitize_conn_id
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import AirflowException
from airflow.secrets.environment_variables import CONN_ENV_PREFIX
from airflow.utils.session import create_session
from fastapi import HTTPException, Request
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from airflow_barrier.api.access import Wait
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.hooks.credentials import credentials_of
from airflow_barrier.hooks.features import Feature
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.plugins.waits import find_waits
from airflow_barrier.plugins.waking import AirflowWaker
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError

_T = TypeVar("_T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AirflowAccess:
    """An :class:`~airflow_barrier.api.access.Access`: a user of Airflow's. A deployment is a connection."""

    user: BaseUser
    #: None: the server lets in whoever comes.
    token: str | None = field(default=None, repr=False)

    async def is_logged_in(self) -> bool:
        if self.token is None:
            return True
        try:
            await resolve_user_from_token(self.token)
        except HTTPException as error:
            log.info("A login that listened to changes has ended: %s", error.detail)
            return False
        except SQLAlchemyError as error:  # whether it was revoked nobody can say just now
            log.warning("%s", error)
        return True

    def deployments(self) -> list[str]:
        return deployments()

    def meta_service(self, deployment: str) -> MetaService:
        return _of(deployment, BarrierHook.get_meta_service)

    def deployment(self, name: str) -> Deployment:
        return _of(name, BarrierHook.get_deployment)

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        return self._authorized("GET", dag_ids)

    def editable(self, dag_ids: Iterable[str]) -> set[str]:
        return self._authorized("PUT", dag_ids)

    def waits(self, awaited: Collection[Awaited]) -> Mapping[Awaited, Wait]:
        found = find_waits(awaited)
        readable = self.readable({dag for each in found.values() for dag in each.holders})
        return {each: wait.told(readable) for each, wait in found.items()}

    @property
    def actor(self) -> str:
        return f"{self.user.get_name()} (Airflow)"

    def _authorized(self, method: ResourceMethod, dag_ids: Iterable[str]) -> set[str]:
        asked = list(dag_ids)
        teams = DagModel.get_dag_id_to_team_name_mapping(asked) if Feature.TEAMS.is_there else {}

        def may(dag_id: str) -> bool:
            details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
            return get_auth_manager().is_authorized_dag(method=method, details=details, user=self.user)

        return set(filter(may, asked))

    def waker(self) -> AirflowWaker:
        return AirflowWaker()

    def credentials(self, what: str, conn_id: str, conn_type: str) -> Credentials:
        return credentials_of(what, conn_id, conn_type)


def deployments() -> list[str]:
    """The connections of our type in Airflow's database and in environment variables. A secrets backend cannot be
    asked which it has: of those only the default one is found, if it is defined.
    """
    with create_session() as session:
        of_type = select(Connection.conn_id).where(Connection.conn_type == BarrierHook.conn_type)
        found = set(session.scalars(of_type))
    named = {name.removeprefix(CONN_ENV_PREFIX).lower() for name in os.environ if name.startswith(CONN_ENV_PREFIX)}
    return sorted(found.union(filter(_is_ours, {*named, DEFAULT_CONN_ID} - found)))


def airflow_access(request: Request, user: GetUserDep) -> AirflowAccess:
    """A dependency of routes: 401 for who is not logged in."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = given if scheme.lower() == "bearer" else request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    return AirflowAccess(user, token)


def _of(conn_id: str, get: Callable[[BarrierHook], _T]) -> _T:
    """Return what a connection leads to. Raises ConfigurationError if there is none of that id, whatever it is."""
    if sanitize_conn_id(conn_id) is None:
        raise ConfigurationError(f"connection {conn_id!a}: expected an id that Airflow can hold, found none")
    try:
        return get(BarrierHook(conn_id))
    except AirflowException as error:
        raise ConfigurationError(f"connection {conn_id}: expected it to be defined, found: {error}") from error


def _is_ours(conn_id: str) -> bool:
    try:
        return BarrierHook.get_connection(conn_id).conn_type == BarrierHook.conn_type
    except (AirflowException, ValueError):  # a variable that is no URI and no JSON is some other connection's trouble
        return False
