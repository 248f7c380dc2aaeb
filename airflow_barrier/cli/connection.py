"""Which deployment a command is about: the options for it, and connecting to it. The one place that knows."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.levels import Level

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import CredentialsOf, Deployment
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.metaservice.store import MetaService

DEFAULT_CONN_ID = "barrier_default"
PASSWORD_VARIABLE = "AIRFLOW_BARRIER_PASSWORD"
#: Of whoever asks a server that wants one.
TOKEN_VARIABLE = "AIRFLOW_BARRIER_TOKEN"

#: What the API calls a deployment if just a database was named.
UNNAMED = "metaservice"

#: What to do about a connection that is not there.
_ANOTHER = "or name another with --conn-id"
#: ... where a command needs the MetaService only.
_OR_URL = "name another with --conn-id, or give --metaservice-url"

HELP = (
    "The deployment is an Airflow connection (--conn-id; from AIRFLOW_CONN_..., a secrets backend or Airflow's "
    "database), or, where a command needs no tables, just the database (--metaservice-url; its password from the "
    f"environment variable {PASSWORD_VARIABLE})."
)


def connection_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that need more of the deployment than the MetaService."""
    _conn_id(parser)


def database_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that need the MetaService only."""
    which = parser.add_mutually_exclusive_group()
    _conn_id(which)
    which.add_argument("--metaservice-url", help="SQLAlchemy URL of the MetaService's database, without password")


def _conn_id(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--conn-id", default=DEFAULT_CONN_ID, help="Airflow connection (default: %(default)s)")


@contextmanager
def meta_service(options: argparse.Namespace) -> Iterator[MetaService]:
    """The MetaService that :func:`database_options` name. Looking at a database makes none."""
    from airflow_barrier.metaservice.store import MetaService

    with closing(MetaService(database_url(options), create=False, new=False)) as meta:
        yield meta


@contextmanager
def connected(conn_id: str, *, new: bool = False) -> Iterator[Deployment]:
    """MetaService and tables of an Airflow connection; ``new``: an embedded one that is lost is made anew."""
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.hooks.credentials import credentials_of

    with closing(Deployment.connect(settings(conn_id), new=new, credentials=credentials_of)) as deployment:
        yield deployment


def deployment_name(options: argparse.Namespace) -> str:
    """Return the deployment's name in addresses of the API."""
    return UNNAMED if options.metaservice_url else str(options.conn_id)


def database_url(options: argparse.Namespace) -> str:
    """The URL with its password; never printed."""
    from airflow_barrier.coordinator.deployment import with_password
    from airflow_barrier.coordinator.settings import require_no_password

    if options.metaservice_url:
        require_no_password(
            "--metaservice-url",
            options.metaservice_url,
            f"everybody on a machine can read its command lines: use the environment variable {PASSWORD_VARIABLE}",
        )
        return with_password(options.metaservice_url, os.environ.get(PASSWORD_VARIABLE))
    found = settings(options.conn_id, _OR_URL)
    return with_password(found.metaservice_url, found.metaservice_password)


def credentials(options: argparse.Namespace) -> CredentialsOf:
    """Return how sources are entered: by Airflow's connections, unless just a database was named."""
    from airflow_barrier.coordinator.deployment import nobody_gets_in

    if options.metaservice_url:
        return nobody_gets_in
    from airflow_barrier.hooks.credentials import credentials_of

    return credentials_of


def level(options: argparse.Namespace) -> Level:
    """``--level``, else the connection's; where there is just a database, what a connection has by default."""
    if options.level is not None:
        return Level(options.level)
    return (
        Level.REPEATABLE_READ
        if options.metaservice_url
        else Level.parse(settings(options.conn_id, _OR_URL).consistency)
    )


def settings(conn_id: str, otherwise: str = _ANOTHER) -> Settings:
    """Return the credentials of an Airflow connection. Raises ConfigurationError, which says what to do
    ``otherwise``.
    """
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    from airflow_barrier.hooks.barrier import BarrierHook

    try:
        return BarrierHook(conn_id).get_settings()
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"{error}, {otherwise}") from None


def actor() -> str:
    """Return the person's name for the audit."""
    return f"{getpass.getuser()} (airflow-barrier)"
