"""Whether replacing the partitions of some rows takes away what was written of the same before, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from airflow_barrier.protocol.ddl import literal
from airflow_barrier.protocol.errors import ConfigurationError, MissingTableError
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table


class Tables(Protocol):
    """A catalog. :class:`~airflow_barrier.tables.iceberg.IcebergTables` has it."""

    def load(self, table: str) -> Table:
        """The table with its newest metadata. Raises MissingTableError."""
        ...


def replaceable(
    tables: Tables, catalog: str, target: tuple[str, ...], partition_by: Sequence[str] | None = None
) -> bool:
    """Return whether the table is there, seen to have partitions that can be replaced; False: it is not, and can be
    made.

    Spark replaces partitions of the table's present partitioning only: of a table without any it replaces all rows,
    and rows of before a change of the partitioning it leaves where they are. Raises ConfigurationError for these.

    ``catalog``: what Spark calls that of ``tables``. ``partition_by``: by which columns the table has to be
    partitioned.
    """
    name = quoted(*target)
    if target[0].casefold() != catalog.casefold():
        raise ConfigurationError(  # safety: partitions-can-be-seen
            f"into: expected a table of catalog {catalog} for replace='partitions', whose partitioning can be looked "
            f"at, found {name}; name one there, or replace='table'"
        )
    try:
        table = tables.load(".".join(target[1:]))
    except MissingTableError:
        if partition_by is None:
            raise ConfigurationError(  # safety: made-with-partitions
                f"into: expected the table {name} for replace='partitions', found no such table; make it with "
                "PARTITIONED BY, or say what a new one is partitioned by, such as partition_by=['day']"
            ) from None
        return False
    _check_partitioning(table, name, partition_by)
    _check_files(table, name, target)
    return True


def _check_partitioning(table: Table, name: str, partition_by: Sequence[str] | None) -> None:
    found = _partitioning(table)
    if not found:
        raise ConfigurationError(  # safety: has-partitions
            f"into: expected {name} to be partitioned for replace='partitions', found that it has no partitions, so "
            "that every run would replace all rows; ALTER TABLE ... ADD PARTITION FIELD, or replace='table'"
        )
    if partition_by is not None and {c.casefold() for c in partition_by} != {c.casefold() for c in found}:
        raise ConfigurationError(  # safety: partitions-as-asked
            f"into: expected {name} to be partitioned by {', '.join(partition_by)}, as partition_by says, found "
            f"{', '.join(found)}; correct partition_by, or leave it out where the table's own partitions are meant"
        )


def _check_files(table: Table, name: str, target: tuple[str, ...]) -> None:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        of_rows = manifest.content == ManifestContent.DATA and (
            manifest.has_added_files() or manifest.has_existing_files()
        )
        if of_rows and manifest.partition_spec_id != table.spec().spec_id:
            raise ConfigurationError(  # safety: partitions-of-one-kind
                f"into: expected all rows of {name} in the partitions that it has now, found files that were written "
                "before its partitioning was changed; replacing partitions would leave their rows beside the new ones. "
                f"Rewrite them: CALL {quoted(target[0])}.system.rewrite_data_files(table => "
                f"{literal('.'.join(target[1:]))}, options => map('rewrite-all', 'true'))"
            )


def _partitioning(table: Table) -> list[str]:
    """The columns, or transforms of them, that the table is partitioned by now."""
    from pyiceberg.transforms import IdentityTransform, VoidTransform

    fields = [field for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]
    columns = [table.schema().find_column_name(field.source_id) or field.name for field in fields]
    return [
        column if isinstance(field.transform, IdentityTransform) else f"{field.transform}({column})"
        for field, column in zip(fields, columns, strict=True)
    ]
