"""Corrections: what a revision puts into a table at one barrier instead of what the table's job would.

An epoch spec carries them (:attr:`~airflow_barrier.spark.spec.EpochSpec.corrections`) to whatever driver runs the
attempt, which then runs them, in their order, instead of the job: :mod:`.correcting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Union

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.spark.statement import check, require_writes_only, tokens_of

Format = Literal["parquet", "csv", "json"]


@dataclass(frozen=True)
class CorrectBySql:
    """One SQL statement on the table as it is where the attempt begins: its base is the OLD snapshot of the barrier.

    ``statement`` names the table ``{target:ns.table}`` and others, at the snapshots in ``reads``, ``{read:ns.table}``;
    further placeholders are ``{source:…}``, ``{timestamp}``, ``{previous_timestamp}``, ``{seed}``, as in
    :class:`~airflow_barrier.spark.sql.SqlJob`. From a statement with plain names
    :func:`airflow_barrier.reading.correcting.correct_by_sql` makes it.

    >>> CorrectBySql("shop.shopping", "DELETE FROM {target:shop.shopping} WHERE store_id = 367").table
    'shop.shopping'

    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for several statements, and for any that does
    something else than change rows of ``table``.
    """

    kind: ClassVar[str] = "sql"
    table: str
    statement: str
    reads: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = tuple(tokens_of(self.statement))
        check(tokens)
        require_writes_only(tokens, self.table)


@dataclass(frozen=True)
class ReplaceByFile:
    """The rows of a file, or of all files in a folder, instead of the epoch's: appended to the predecessor's snapshot.

    For the rows of a DataFrame: write it to Parquet and name that.

    ``uri`` as Hadoop knows it (`s3://` is read as `s3a://`). Its columns are those of the table, in any order, and are
    read as the table's types: exactly, or not at all. ``columns`` names them where the file does not (CSV without a
    header), or not all of them (JSON). ``options`` for CSV are those of
    :class:`~airflow_barrier.sources.files.Files`, without ``multiline``.

    >>> ReplaceByFile("shop.shopping", "s3://mended/2017-01-05.csv", "csv", options={"header": True}).kind
    'file'
    """

    kind: ClassVar[str] = "file"
    table: str
    uri: str
    format: Format = "parquet"
    columns: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.format not in ("parquet", "csv", "json"):
            raise ConfigurationError(
                f"correction of {self.table}: expected format 'parquet', 'csv' or 'json', found {self.format!r}"
            )
        try:
            dialect = CsvDialect.of(self.options)
        except ConfigurationError as error:
            raise ConfigurationError(f"correction of {self.table}: {error}") from None
        if dialect.multiline:  # nobody has looked whether its quotes are closed
            raise ConfigurationError(
                f"correction of {self.table}: expected a CSV file with one record a line, found the option multiline; "
                "write the rows as Parquet and name that file"
            )
        if self.format == "csv" and not self.columns and not dialect.header:
            raise ConfigurationError(
                f"correction of {self.table}: expected a CSV file that names its columns, found neither "
                "options={'header': True} nor columns=(...); give one of them"
            )
        if self.format == "parquet" and self.columns:
            raise ConfigurationError(
                f"correction of {self.table}: expected no columns for a Parquet file, which names its own, found "
                f"{', '.join(self.columns)}; leave them out"
            )


@dataclass(frozen=True)
class ReuseRows:
    """The changes that the old revision's epoch made in the table, once more: on top of the predecessor as revised.

    ``start`` and ``end``: the table's OLD snapshots at the predecessor (None: it had none) and at this barrier. For a
    table whose source is gone or need not be read again.
    """

    kind: ClassVar[str] = "reuse"
    table: str
    start: int | None
    end: int | None


Correction = Union[CorrectBySql, ReplaceByFile, ReuseRows]  # noqa: UP007  # at run time, Python 3.10
