"""The port for systems that tables are delivered to (:mod:`.port`), and one adapter a file."""

from __future__ import annotations

from pkgutil import resolve_name

from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sinks.port import Sink

#: By kind, where the adapter is: a DAG file loads those that it names, and no others.
_ADAPTERS = {
    "files": "airflow_barrier.sinks.files:FileSink",
    "kafka": "airflow_barrier.sinks.kafka:KafkaSink",
    "postgresql": "airflow_barrier.sinks.postgresql:PostgreSQLSink",
}


def sink_of(declared: SinkDeclaration) -> Sink:
    """The adapter of a declared sink. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    place = _ADAPTERS.get(declared.kind)
    if place is None:
        raise ConfigurationError(
            f"sink {declared.name}: expected a kind of {sorted(_ADAPTERS)}, found {declared.kind!r}; run the same "
            "version of airflow-provider-barrier everywhere"
        )
    adapter: type[Sink] = resolve_name(place)
    try:
        return adapter.of(declared)
    except (TypeError, KeyError) as error:
        raise ConfigurationError(
            f"sink {declared.name}: expected settings of {declared.kind!r} as this version knows them, found others "
            f"({error}); run the same version of airflow-provider-barrier everywhere"
        ) from error
