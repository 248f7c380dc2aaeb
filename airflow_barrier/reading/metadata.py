"""What the MetaService knows, as tables in the engines that read a consistent answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.metadata import metadata_table

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_barrier.metaservice.store import MetaService


@dataclass(frozen=True)
class MetadataRows:
    """One of the `__META_...` tables, of all topologies, as it is in the database.

    It is not pinned: each read is as of then. Arrow's engines (DuckDB) read it as it stands.

    >>> MetadataRows(meta, "__META_JOB_SINK").read().to_pylist()[0]["job_id"]  # doctest: +SKIP
    'shopping.load'
    """

    meta: MetaService
    name: str

    def read(self) -> pa.Table:
        """Raises ConfigurationError for a name that is none, StoreUnavailableError."""
        import pyarrow as pa

        columns, rows = self.meta.audit.metadata(self.name)
        values = list(zip(*rows, strict=True)) or [()] * len(columns)
        return pa.Table.from_arrays(
            [pa.array(*pair) for pair in zip(values, self._schema.types, strict=True)], schema=self._schema
        )

    @property
    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        types = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
        return pa.schema([(column.name, types[column.type]) for column in metadata_table(self.name).columns])

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.read().__arrow_c_stream__(requested_schema)
