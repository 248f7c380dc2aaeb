"""What enters systems outside the lake, from Airflow's connections."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError


def credentials_of(what: str, conn_id: str, conn_type: str) -> Credentials:
    """Return what connection ``conn_id`` says, for ``what``, such as `source purchases`.

    Raises ConfigurationError for one that is missing, or of another type.
    """
    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"{what}: expected connection {conn_id}, of type {conn_type}, found none; define it: airflow connections "
            f"add {conn_id} --conn-type {conn_type} ..."
        ) from error
    if found.conn_type != conn_type:
        raise ConfigurationError(
            f"{what}: expected connection {conn_id} to be of type {conn_type}, found {found.conn_type}; name another "
            "connection, or correct this one"
        )
    extra = {name: str(value) for name, value in found.extra_dejson.items()}
    return Credentials(conn_id, found.host, found.port, found.login, found.password, found.schema, extra)
