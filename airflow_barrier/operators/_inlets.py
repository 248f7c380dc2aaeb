"""A task's own words that make it a job: Airflow's ``inlets`` and ``outlets``, and the placeholders of its SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetNameRef, AssetUriRef

from airflow_barrier.operators.commit import table_asset
from airflow_barrier.operators.job import has_jinja, is_sql_file
from airflow_barrier.operators.processed import processed_asset
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.table import Table

if TYPE_CHECKING:
    from airflow_barrier.sources.port import Source

_SCHEME = "barrier://"


class Said(NamedTuple):
    """The tables and sources that a task names, each once.

    ``only_assets``: it names nothing but inlets that are assets, which any task may have for Airflow's sake.
    """

    inlets: tuple[str | Table | Source, ...]
    outlets: tuple[str | Table, ...]
    only_assets: bool


def said_by(task: Any, topology: str) -> Said:
    """Return what ``task`` names of ``topology``. Other assets, such as ``s3://...``, stay Airflow's and name nothing.

    Raises ConfigurationError for assets of another topology, and for SQL that Airflow reads only when the task runs, if
    nothing else names the outlets.
    """
    where = f"topology {topology}, task {task.task_id}"
    inlets = _listed(where, topology, "inlets", task.inlets)
    outlets = _listed(where, topology, "outlets", task.outlets)
    only_assets = not outlets and not any(map(_is_ours, task.inlets))
    read, written = _in_text(task, where, has_outlets=bool(outlets))
    return Said(_each_once([*inlets, *read]), _each_once([*outlets, *written]), only_assets)


def take_out(task: Any) -> None:
    """Leave in the task's lists what Airflow may keep: it could not store sources and tables with the DAG.

    An outlet ``barrier://...`` goes, too: Airflow would tell everybody at the end of the task of what only the commit
    publishes. As an inlet it stays.
    """
    task.inlets = [item for item in task.inlets if not _is_ours(item)]
    task.outlets = [item for item in task.outlets if not (_is_ours(item) or _uri(item).startswith(_SCHEME))]


def _listed(where: str, topology: str, role: str, items: Sequence[Any]) -> list[Any]:
    if len(items) > 1 and all(isinstance(item, str) and len(item) == 1 for item in items):
        # Airflow takes a text for the list of its letters
        raise ConfigurationError(
            f"{where}: {role}: expected a list, found {''.join(items)!r}; put it in brackets: [...]"
        )
    return list(_named(where, topology, role, items))


def _named(where: str, topology: str, role: str, items: Sequence[Any]) -> Iterator[Any]:
    for item in items:
        if _is_ours(item):
            if role == "outlets" and _is_source(item):
                raise ConfigurationError(
                    f"{where}: outlets: expected tables, found the source {item.name!r}, which is read only; a table "
                    "gets to a system outside by barrier.deliver(...)"
                )
            yield item
        elif (table := _table_of(where, topology, role, item)) is not None:
            yield table


def _table_of(where: str, topology: str, role: str, asset: Any) -> str | None:
    """Return the table of an asset of ours. None: it is about something else."""
    uri = _uri(asset)
    if not uri.startswith(_SCHEME):
        return None
    place, _, path = uri.removeprefix(_SCHEME).partition("/")
    quoted, _, event = path.partition("/")
    if quoted == "sink" and event:
        return None
    table = unquote(quoted)
    published = table_asset(topology, table)
    if place != topology:
        raise ConfigurationError(
            f"{where}: {role}: expected tables of its own topology, found {uri}; a table of another one is read by a "
            "source (IcebergTable), and written by a job of that topology"
        )
    if role == "inlets" and uri == processed_asset(topology, table).uri:
        return table
    if uri != published.uri or getattr(asset, "name", uri) != uri:
        raise ConfigurationError(
            f"{where}: {role}: expected table_asset({topology!r}, 'namespace.table'), which gets its event when a "
            f"barrier publishes the table, found {asset!r}; events of PROCESSED tables come by announce_processed=True"
        )
    return table


def _in_text(task: Any, where: str, *, has_outlets: bool) -> tuple[list[str], list[str]]:
    """Return the tables that the statement of an SQL job reads and writes, as far as it is known by now."""
    from airflow_barrier.operators.epoch import SparkEpochOperator

    if not isinstance(task, SparkEpochOperator) or task.sql is None:
        return [], []
    if is_sql_file(task.sql) or has_jinja(task.sql):
        if has_outlets:
            return [], []
        found = f"the file {task.sql.strip()}" if is_sql_file(task.sql) else "Jinja in it"
        raise ConfigurationError(
            f"{where}: expected the tables of its SQL, found {found}, which Airflow reads only when the task runs; "
            "give it inlets=[...] and outlets=[...], or the statement itself without Jinja"
        )
    from airflow_barrier.spark.statement import RELATIONS, check, tokens_of  # of DAGs with SQL in the file

    tokens = tuple(tokens_of(task.sql))
    try:
        check(tokens)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    named = [token for token in tokens if token.name]
    read = [token.name or "" for token in named if token.kind in RELATIONS and token.kind != "source"]
    return read, [token.name or "" for token in named if token.kind == "target"]


def _each_once(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return each table and source once; of a table that is named in several ways the one with its columns."""
    found: dict[tuple[bool, str], Any] = {}
    for item in items:
        key = (_is_source(item), item if isinstance(item, str) else item.name)
        if key not in found or isinstance(found[key], str):
            found[key] = item
    return tuple(found.values())


def _is_ours(item: Any) -> bool:
    return isinstance(item, str | Table) or _is_source(item)


def _is_source(item: Any) -> bool:
    return callable(getattr(item, "declare", None))


def _is_asset(item: Any) -> bool:
    return isinstance(item, Asset | AssetUriRef | AssetNameRef)


def _uri(item: Any) -> str:
    if not _is_asset(item):
        return ""
    return str(item.name if isinstance(item, AssetNameRef) else item.uri)
