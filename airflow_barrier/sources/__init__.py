"""The port for external sources (:mod:`.port`), and one adapter a file."""

from __future__ import annotations

from pkgutil import resolve_name

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.port import Source

#: By kind, where the adapter is: a DAG file loads those that it names, and no others.
_ADAPTERS = {
    "files": "airflow_barrier.sources.files:Files",
    "iceberg_table": "airflow_barrier.sources.iceberg_table:IcebergTable",
    "kafka": "airflow_barrier.sources.kafka:Kafka",
}


def source_of(declared: ExternalSource) -> Source:
    """The adapter of a declared source. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    place = _ADAPTERS.get(declared.kind)
    if place is None:
        raise ConfigurationError(
            f"source {declared.name}: expected a kind of {sorted(_ADAPTERS)}, found {declared.kind!r}; run the same "
            "version of airflow-provider-barrier everywhere"
        )
    adapter: type[Source] = resolve_name(place)
    try:
        return adapter.of(declared)
    except (TypeError, KeyError) as error:
        raise ConfigurationError(
            f"source {declared.name}: expected settings of {declared.kind!r} as this version knows them, found others "
            f"({error}); run the same version of airflow-provider-barrier everywhere"
        ) from error
