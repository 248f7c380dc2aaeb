"""The port for external sources (:mod:`.port`), and one adapter a file."""

from __future__ import annotations

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.port import Source

_ADAPTERS: dict[str, type[Source]] = {
    Files.kind: Files,
    IcebergTable.kind: IcebergTable,
    Kafka.kind: Kafka,
}


def source_of(declared: ExternalSource) -> Source:
    """The adapter of a declared source. Raises :class:`ConfigurationError` for a kind, or settings, that are not known
    here.
    """
    adapter = _ADAPTERS.get(declared.kind)
    if adapter is None:
        raise ConfigurationError(
            f"source {declared.name}: expected a kind of {sorted(_ADAPTERS)}, found {declared.kind!r}; run the same "
            "version of airflow-provider-barrier everywhere"
        )
    try:
        return adapter.of(declared)
    except (TypeError, KeyError) as error:
        raise ConfigurationError(
            f"source {declared.name}: expected settings of {declared.kind!r} as this version knows them, found others "
            f"({error}); run the same version of airflow-provider-barrier everywhere"
        ) from error
