"""An auth manager that knows rights to single DAGs, as those of production do; copied into Airflow's `config`."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

_ONLY = "only_"


class ReadingRights(SimpleAuthManager):
    """Who is called ``only_<DAG>`` may read that DAG and no other; everybody else has the rights of the role."""

    def is_authorized_dag(
        self, *, user: SimpleAuthManagerUser, details: DagDetails | None = None, **asked: Any
    ) -> bool:
        if user.username.startswith(_ONLY) and (details is None or details.id != user.username.removeprefix(_ONLY)):
            return False
        return super().is_authorized_dag(user=user, details=details, **asked)
