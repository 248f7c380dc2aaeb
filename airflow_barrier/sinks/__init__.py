"""The port for systems that tables are delivered to (:mod:`.port`), and a folder a system."""

from __future__ import annotations

from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.sinks.port import Sink
from airflow_barrier.systems import adapter_of

#: By kind, where the adapter is: a DAG file loads those that it names, and no others.
_ADAPTERS = {
    "files": "airflow_barrier.sinks.files:FileSink",
    "kafka": "airflow_barrier.sinks.kafka:KafkaSink",
    "postgresql": "airflow_barrier.sinks.postgresql:PostgreSQLSink",
    "pravega": "airflow_barrier.sinks.pravega:PravegaSink",
}
#: Entry points by which other distributions name adapters of their own: kind -> ``module:class``.
GROUP = "airflow_barrier.sinks"


def sink_of(declared: SinkDeclaration) -> Sink:
    """The adapter of a declared sink. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    adapter: Sink = adapter_of("sink", declared, _ADAPTERS, GROUP)
    return adapter
