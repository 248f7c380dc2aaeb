"""What Airflow's provider manager is told about this distribution. Imports nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DISTRIBUTION = "airflow-provider-barrier"
INTEGRATION = "Barrier"


def _text(label: str, description: str, form: str | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    return {"label": label, "description": description, "schema": {**schema, "format": form} if form else schema}


def _number(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["integer", "null"], "minimum": 1}}


#: The extras of a connection of type `barrier`, as its form has them; nothing else of it reaches a deployment. Those of
#: ``coordinator.settings.Settings`` bear the same names.
CONNECTION_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "metaservice_url": _text(
        "MetaService URL",
        "SQLAlchemy URL of the MetaService's database, without password; empty: SQLite in the warehouse.",
    ),
    "catalog_uri": _text(
        "Iceberg catalog URI",
        "SQLAlchemy URL of the Iceberg SQL catalog, without password, or the address of a REST catalog (https://), a "
        "Hive Metastore (thrift://) or AWS Glue (glue:// and the region); empty: the MetaService's own database, which "
        "lets a barrier's tables become visible in one transaction with COMMIT.",
    ),
    "iceberg_conn_id": _text(
        "Iceberg connection",
        "Id of a connection of the type iceberg: a catalog's address and credentials, and the storage's.",
    ),
    "catalog_publish": {
        "label": "REST catalog publishes",
        "description": "roll-forward: table by table; atomic: all tables in one step, which is tested first.",
        "schema": {"type": ["string", "null"], "enum": [None, "roll-forward", "atomic"]},
    },
    "catalog_password": _text("Catalog password", "Only for a catalog with a database of its own.", "password"),
    "catalog_name": _text("Iceberg catalog name", "The name under which the SQL catalog keeps its tables."),
    "warehouse": _text("Warehouse", "Root of the tables' data, for example file:///data/warehouse."),
    "spark_catalog": _text("Spark catalog", "How Spark sessions call this Iceberg catalog, for example lake."),
    "consistency": {
        "label": "Consistency level",
        "description": "Of readers that choose none; empty: repeatable_read, the newest committed barrier.",
        "schema": {
            "type": ["string", "null"],
            "enum": [None, "repeatable_read", "read_committed", "read_uncommitted"],
        },
    },
    "tag_policy": _text("Tag policy", "Whose tags stay on the tables: every=N (1: all of them) or newest=K."),
    "max_open_barriers": _number(
        "Open barriers", "How many barriers may be open at once before opening another one waits."
    ),
    "source_roots": {
        "label": "Source roots",
        "description": "Folders and buckets in which external sources may lie, such as s3://in/shop/; empty: "
        "any storage, and local folders where the warehouse is one.",
        "schema": {"type": ["array", "null"], "items": {"type": "string"}},
    },
    "max_epoch_files": _number("Files an epoch", "New files of one source in one epoch; empty: 100,000."),
    "max_unpacked_bytes": _number(
        "Unpacked bytes a file", "Of a compressed file whose event times are read; empty: 4 GiB."
    ),
    "max_line_characters": _number("Characters a line", "Of CSV and JSON files; empty: 4,194,304."),
}


def get_provider_info() -> dict[str, Any]:
    """Provider info as in Airflow's `provider_info.schema.json`.

    Airflow calls it through the entry point `apache_airflow_provider` in every process, so it opens no module of ours.
    It lists no plugin: ours has its own entry point, and Airflow reports one that comes twice as an error.

    >>> get_provider_info()["connection-types"][0]["connection-type"]
    'barrier'
    """
    return {
        "package-name": DISTRIBUTION,
        "name": INTEGRATION,
        "description": "Timestamp barriers over many Spark jobs: consistent snapshots across Iceberg tables.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "how-to-guide": ["/docs/install.md", "/docs/tutorials/first-barrier.md"],
                "tags": ["software"],
            }
        ],
        "operators": _modules("operators"),
        "sensors": _modules("sensors"),
        "hooks": _modules("hooks"),
        "triggers": _modules("triggers"),
        "connection-types": [_connection_type()],
        "notifications": ["airflow_barrier.notifications.barrier.BarrierNotifier"],
        "task-decorators": [
            {"name": name, "class-name": f"airflow_barrier.operators._taskflow.{name}_task"}
            for name in ("barrier", "barrier_sql")
        ],
        "extra-links": ["airflow_barrier.links.barrier.BarrierLink"],
        "cli": ["airflow_barrier.cli.definition.get_barrier_cli_commands"],
    }


def _modules(room: str) -> list[dict[str, Any]]:
    """The public modules of one of Airflow's rooms, read from its folder: a new file is listed by being there."""
    folder = Path(__file__).parent / room
    names = sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return [{"integration-name": INTEGRATION, "python-modules": [f"airflow_barrier.{room}.{name}" for name in names]}]


def _connection_type() -> dict[str, Any]:
    """The connection form: everything lives in `extra`, so that one connection is one stage (dev, prod)."""
    return {
        "connection-type": "barrier",
        "hook-name": "Barrier",
        "hook-class-name": "airflow_barrier.hooks.barrier.BarrierHook",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "port", "login"],
            "relabeling": {"password": "MetaService password"},
            "placeholders": {},
        },
        "conn-fields": CONNECTION_FIELDS,
    }
