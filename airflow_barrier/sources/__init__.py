"""The port for external sources (:mod:`.port`), and a folder a system."""

from __future__ import annotations

from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.port import Source
from airflow_barrier.systems import adapter_of

#: By kind, where the adapter is: a DAG file loads those that it names, and no others.
_ADAPTERS = {
    "files": "airflow_barrier.sources.files:Files",
    "iceberg_table": "airflow_barrier.sources.iceberg_table:IcebergTable",
    "kafka": "airflow_barrier.sources.kafka:Kafka",
    "postgresql": "airflow_barrier.sources.postgresql:PostgreSQL",
    "postgresql_rows": "airflow_barrier.sources.postgresql.rows:PostgreSQLRows",
    "pravega": "airflow_barrier.sources.pravega:Pravega",
}
#: Entry points by which other distributions name adapters of their own: kind -> ``module:class``.
GROUP = "airflow_barrier.sources"


def source_of(declared: ExternalSource) -> Source:
    """The adapter of a declared source. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    adapter: Source = adapter_of("source", declared, _ADAPTERS, GROUP)
    return adapter
