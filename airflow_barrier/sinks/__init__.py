"""The port for systems that tables are delivered to (:mod:`.port`), and one adapter a file."""

from __future__ import annotations

from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.port import Sink
from airflow_barrier.sinks.postgresql import PostgreSQLSink

SINKS: dict[str, type[Sink]] = {
    FileSink.kind: FileSink,
    KafkaSink.kind: KafkaSink,
    PostgreSQLSink.kind: PostgreSQLSink,
}


def sink_of(declared: SinkDeclaration) -> Sink:
    """The adapter of a declared sink. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    adapter = SINKS.get(declared.kind)
    if adapter is None:
        raise ConfigurationError(
            f"sink {declared.name}: expected a kind of {sorted(SINKS)}, found {declared.kind!r}; run the same version "
            "of airflow-provider-barrier everywhere"
        )
    try:
        return adapter.of(declared)
    except (TypeError, KeyError) as error:
        raise ConfigurationError(
            f"sink {declared.name}: expected settings of {declared.kind!r} as this version knows them, found others "
            f"({error}); run the same version of airflow-provider-barrier everywhere"
        ) from error
