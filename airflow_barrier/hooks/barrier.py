"""The connection type `barrier`: one connection is one deployment, so dev, stage and prod differ by its id only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.sdk import BaseHook

from airflow_barrier.hooks._iceberg import CONN_TYPE as ICEBERG
from airflow_barrier.hooks._iceberg import catalog_of
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError, MetaServiceMissingError
from airflow_barrier.provider import CONNECTION_FIELDS
from airflow_barrier.tables import CATALOGS, catalog_at

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.reading.session import ConsistentSession

DEFAULT_CONN_ID = "barrier_default"
#: Extras of a connection that is enough to start with.
EXAMPLE = '{"warehouse": "/data/warehouse"}'
_WHOLE_NUMBERS = tuple(name for name, field in CONNECTION_FIELDS.items() if "integer" in field["schema"]["type"])


class BarrierHook(BaseHook):
    """Opens the deployment that a connection describes.

    ``warehouse`` alone is the embedded default: one SQLite file in that local folder holds MetaService and catalog.
    With ``metaservice_url`` (SQLAlchemy, without password; the connection's password goes into it) MetaService and,
    unless ``catalog_uri`` says otherwise, the Iceberg SQL catalog live in that database. ``catalog_uri`` is a REST
    catalog's address as well; then, or to reach an object store, ``iceberg_conn_id`` names a connection of the type
    `iceberg` with credentials and storage properties, and if it has a host, that is the REST catalog.

    >>> BarrierHook("barrier_prod").get_deployment().meta.topologies.names()  # doctest: +SKIP
    ['shopping']
    """

    conn_name_attr = "barrier_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "barrier"
    hook_name = "Barrier"

    def __init__(self, barrier_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.barrier_conn_id = barrier_conn_id

    def get_settings(self) -> Settings:
        """The connection as settings. Raises :class:`ConfigurationError` naming what it does not understand."""
        connection = self._own_connection()
        named = connection.extra_dejson.get("iceberg_conn_id")
        return settings_of(connection, self._defined(named, f"--conn-type {ICEBERG} ...") if named else None)

    def _own_connection(self) -> Connection:
        return self._defined(self.barrier_conn_id, f"--conn-type {self.conn_type} --conn-extra '{EXAMPLE}'")

    def _defined(self, conn_id: str, arguments: str) -> Connection:
        """Raises AirflowNotFoundException, as Airflow does, also of one that it cannot reach; but says what to do."""
        look_for_connections()
        try:
            return self.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise AirflowNotFoundException(
                f"connection {conn_id}: expected an Airflow connection of that id, found none; define it by: airflow "
                f"connections add {conn_id} {arguments}, or AIRFLOW_CONN_{conn_id.upper()} in the environment"
            ) from error

    def get_conn(self) -> Deployment:
        return self.get_deployment()

    def get_deployment(self, *, new: bool = False) -> Deployment:
        """MetaService and tables, connected once per process. ``new``: the embedded database is made if there is none.

        Raises :class:`ConfigurationError`, MetaServiceMissingError, StoreUnavailableError, CatalogUnavailableError,
        SchemaVersionError.
        """
        from airflow_barrier.coordinator.deployment import Deployment
        from airflow_barrier.hooks.credentials import credentials_of

        settings = self.get_settings()
        return _deployments.get(
            self.barrier_conn_id, settings, lambda: Deployment.connect(settings, new=new, credentials=credentials_of)
        )

    def consistent_session(self, topology: str, **question: Any) -> AbstractContextManager[ConsistentSession]:
        """A session that reads the tables of a topology at one barrier: see
        :func:`~airflow_barrier.reading.session.consistent_session` for what can be asked.

        >>> with BarrierHook().consistent_session("shopping") as session:  # doctest: +SKIP
        ...     session.table("shop.user_item_price").scan().to_pandas()
        """
        from airflow_barrier.reading.session import consistent_session

        return consistent_session(self.get_deployment(), topology, **question)

    def get_meta_service(self) -> MetaService:
        """The MetaService alone, which needs no table format: what sensors and triggers poll."""
        return _meta_service(self.barrier_conn_id, settings_of(self._own_connection()))

    async def aget_meta_service(self) -> MetaService:
        """Return what :meth:`get_meta_service` does, from a trigger: the event loop is not held up."""
        import asyncio

        settings = settings_of(await self.aget_connection(self.barrier_conn_id))
        return await asyncio.to_thread(_meta_service, self.barrier_conn_id, settings)

    def known_meta_service(self) -> MetaService | None:
        """The one that this process got last, without asking Airflow for the connection; None if it has none."""
        return _meta_services.newest(self.barrier_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether MetaService and catalog answer, as a sentence without secrets."""
        from airflow_barrier.coordinator.deployment import tables_of
        from airflow_barrier.hooks.features import version_remark

        try:
            settings = self.get_settings()
            said = [self.check_meta_service(settings)]
            if has_catalog(settings):
                with closing(tables_of(settings)) as tables:
                    said.append(tables.check())
            return True, " ".join([*said, *filter(None, [warning_of(settings), version_remark()])])
        except BarrierError as error:
            return False, str(error)

    def check_meta_service(self, settings: Settings) -> str:
        """One sentence about the MetaService. That there is none yet is no fault where one can be made."""
        try:
            return _meta_service(self.barrier_conn_id, settings).check()
        except MetaServiceMissingError:
            file = embedded_file(settings)
            if file is None or not file.parent.is_dir():
                raise
            return (
                f"MetaService {settings.metaservice_url}: not there yet, the first barrier makes it. If one was opened "
                "already, this host does not see its folder: give all hosts the same one, or a database "
                "(metaservice_url)."
            )


def look_for_connections() -> None:
    """Have Airflow look for connections in its database, too, in a script, a notebook or a command: by itself it does
    so only in processes that it takes for its own.
    """
    from airflow.sdk.execution_time import task_runner

    if not hasattr(task_runner, "SUPERVISOR_COMMS"):
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def has_catalog(settings: Settings) -> bool:
    """Return whether there can be one to look at: that in the embedded database is made together with it."""
    file = embedded_file(settings)
    return settings.catalog_uri != settings.metaservice_url or file is None or file.is_file()


def embedded_file(settings: Settings) -> Path | None:
    """The embedded database's; None: the MetaService is on a server."""
    from airflow_barrier.coordinator.settings import parsed_url

    if not settings.metaservice_url.startswith("sqlite"):
        return None
    return Path(parsed_url(settings.metaservice_url).database or "")


def warning_of(settings: Settings) -> str | None:
    """Return what is wrong with the embedded database where tasks run on other hosts, or None."""
    executors = str(conf.get("core", "executor")).split(",")
    if not settings.metaservice_url.startswith("sqlite") or all(one.endswith("LocalExecutor") for one in executors):
        return None
    return (
        f"The MetaService is a file on one host ({settings.metaservice_url}), and the executor ("
        f"{', '.join(executors)}) runs tasks on others, where each would see a file of its own, or none: name a "
        "PostgreSQL database by the extra metaservice_url."
    )


def settings_of(connection: Connection, iceberg: Connection | None = None) -> Settings:
    """A connection's settings, by allow-list; of its catalog only what ``iceberg`` is not needed for, if it is None.

    Raises :class:`ConfigurationError`.
    """
    from airflow_barrier.coordinator.settings import Settings, require_no_password

    extras = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    where = f"connection {connection.conn_id}"
    if connection.conn_type != BarrierHook.conn_type:
        raise ConfigurationError(
            f"{where}: expected the type {BarrierHook.conn_type}, found {connection.conn_type}; name another "
            f"connection, or delete this one and define it by: airflow connections add {connection.conn_id} "
            f"--conn-type {BarrierHook.conn_type} --conn-extra '{EXAMPLE}'"
        )
    unknown = sorted(extras.keys() - CONNECTION_FIELDS.keys())
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown extra {', '.join(map(repr, unknown))}; expected some of: "
            f"{', '.join(sorted(CONNECTION_FIELDS))}"
        )
    if "warehouse" not in extras:
        raise ConfigurationError(
            f"{where}: expected the extra 'warehouse', the root folder of the tables' data, found none; a local folder "
            f"alone is enough to start with: {EXAMPLE}"
        )
    url = extras.pop("metaservice_url", None) or _embedded_url(where, extras["warehouse"])
    named = extras.pop("iceberg_conn_id", None)
    try:
        if iceberg is not None:
            extras |= _iceberg(extras, iceberg)
        require_no_password("metaservice_url", url, "put it into the connection's field for it, which Airflow masks")
        require_no_password(
            "catalog_uri", extras.get("catalog_uri", url), "put it into the extra catalog_password, which Airflow masks"
        )
        if named is None or iceberg is not None:
            _check_catalog(extras)
        extras |= {name: _whole_number(name, extras[name]) for name in _WHOLE_NUMBERS if name in extras}
        if "source_roots" in extras:
            extras["source_roots"] = _folders(extras["source_roots"])
        return Settings(
            metaservice_url=url,
            metaservice_password=connection.password or None,
            **_catalog(extras, url, connection.password or None),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _iceberg(extras: Mapping[str, Any], connection: Connection) -> dict[str, Any]:
    """Return what the catalog's own connection adds."""
    uri, properties = catalog_of(connection)
    if uri is None:
        return {"catalog_properties": properties}
    if "catalog_uri" in extras:
        raise ConfigurationError(
            f"expected the catalog's address once, found it in catalog_uri and in the connection {connection.conn_id}; "
            "leave out catalog_uri"
        )
    return {"catalog_uri": uri, "catalog_properties": properties}


def _check_catalog(extras: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigurationError` for an extra that is for other catalogs."""
    kind = catalog_at(extras.get("catalog_uri", ""))
    for extra in sorted(extras.keys() - kind.extras):
        others = [other.title for other in CATALOGS.values() if extra in other.extras]
        if others:
            raise ConfigurationError(
                f"expected {extra} with {' or '.join(others)} only, found it with {kind.title}, {kind.about}; leave it "
                "out"
            )


def _catalog(extras: Mapping[str, Any], url: str, password: str | None) -> dict[str, Any]:
    """Return the catalog's settings. Without a catalog of its own the deployment has one database, and one password."""
    if "catalog_uri" in extras:
        return dict(extras)
    return {"catalog_uri": url, "catalog_password": password, **extras}


def _embedded_url(where: str, warehouse: str) -> str:
    from airflow_barrier.coordinator.settings import Settings

    folder = warehouse.removeprefix("file://")
    if not folder.startswith("/"):
        raise ConfigurationError(
            f"{where}: expected the extra 'metaservice_url' beside the warehouse {warehouse}, found none; only a local "
            "folder, given by its absolute path, can hold the embedded MetaService: give the warehouse by such a path, "
            "or name a database by metaservice_url"
        )
    return Settings.embedded(folder).metaservice_url


def _whole_number(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name}: expected a whole number, found {value!r}") from None


def _folders(value: Any) -> tuple[str, ...]:
    """A list, or text with one on each line, as a form gives it."""
    named = value.split("\n") if isinstance(value, str) else value
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise ConfigurationError(
            f'source_roots: expected a list of folders such as ["s3://in/shop/"], found {type(value).__name__}'
        )
    return tuple(each.strip() for each in named if each.strip())


_T = TypeVar("_T")


class _Kept(Generic[_T]):
    """One per process and connection id, as engines pool their connections: for all of a process's tasks and triggers.

    When the connection's settings change, a password for instance, the next who asks gets a new one. The old one ends
    with the last who still uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Settings, _T]] = {}

    def get(self, conn_id: str, settings: Settings, connect: Callable[[], _T]) -> _T:
        with self._lock:
            found, kept = self._kept.get(conn_id, (None, None))
            if found == settings and kept is not None:
                return kept
        new = connect()  # not under the lock: a database that does not answer would hold up those of others
        with self._lock:
            found, kept = self._kept.get(conn_id, (None, None))
            if found == settings and kept is not None:
                return kept  # another thread was faster
            self._kept[conn_id] = (settings, new)
            return new

    def newest(self, conn_id: str) -> _T | None:
        with self._lock:
            return self._kept[conn_id][1] if conn_id in self._kept else None


_deployments: _Kept[Deployment] = _Kept()
_meta_services: _Kept[MetaService] = _Kept()


def _meta_service(conn_id: str, settings: Settings) -> MetaService:
    from airflow_barrier.coordinator.deployment import with_password
    from airflow_barrier.metaservice.store import MetaService

    url = with_password(settings.metaservice_url, settings.metaservice_password)
    return _meta_services.get(conn_id, settings, lambda: MetaService(url, new=False))
