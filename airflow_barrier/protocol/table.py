"""Tables as DAG files declare them: named, with their columns, so that nobody has to make them before the first run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_barrier.protocol.ddl import INTEGERS, Column, parse_ddl
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import table_fault

_FORMAT_VERSION = "format-version"
#: What a barrier wants of a table: unchanged jobs can be sent to a branch, and old metadata documents go.
_WANTED = {
    _FORMAT_VERSION: "2",
    "write.wap.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
_NAME = r"`(?:[^`]|``)+`|\w+"
_PARTITION = re.compile(
    rf"(?P<column>{_NAME})|(?P<transform>\w+)\s*\(\s*(?:(?P<number>\d+)\s*,\s*)?(?P<of>{_NAME})\s*\)"
)
_DATES, _TIMES = {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}, {"TIMESTAMP", "TIMESTAMP_NTZ"}
_EXACT = {*INTEGERS, "DECIMAL", "STRING", "BINARY"}
_NESTED = {"ARRAY", "MAP", "STRUCT"}
#: transform -> types of columns that it takes
_TRANSFORMS = {
    **dict.fromkeys(("years", "months", "days"), _DATES),
    "hours": _TIMES,
    "bucket": _EXACT | _DATES,
    "truncate": _EXACT,
}
_NUMBERED = ("bucket", "truncate")


@dataclass(frozen=True)
class Partition:
    """A field of the partition spec: ``transform`` of a column; ``number`` of buckets, or to truncate to."""

    transform: str
    column: str
    number: int | None = None


@dataclass(frozen=True)
class Table:
    """An outlet with its columns. Where it is not there yet, it is made before its job's first epoch.

        barrier.job(load, inlets=[...], outlets=[Table("shop.visits", "id BIGINT NOT NULL, at TIMESTAMP",
                                                       partitioned_by=["days(at)"])])

    A table that is there has to have these columns, and stays as it is otherwise: it may have more columns that may be
    NULL, other partitions and properties. One that is gone after barriers have published it is not made again, since
    its rows are lost.

    :param name: ``namespace.table``, without the catalog.
    :param schema: the columns in Spark's DDL, as in ``CREATE TABLE``.
    :param partitioned_by: columns and Spark's transforms of them: ``years``, ``months``, ``days``, ``hours``,
        ``bucket(16, id)``, ``truncate(4, name)``.
    :param properties: Iceberg's properties of the table, beside those that a barrier wants.

    Raises :class:`ConfigurationError` for what cannot be made.

    >>> Table("shop.visits", "id BIGINT, at TIMESTAMP", partitioned_by=["days(at)"]).partitions
    (Partition(transform='days', column='at', number=None),)
    """

    name: str
    schema: str
    partitioned_by: Sequence[str] = field(default=(), kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        namespace, _, name = self.name.rpartition(".")
        fault = table_fault(self.name) if namespace and name else f"{self.name!a}, which is not namespace.table"
        if fault is not None:
            raise ConfigurationError(f"table {self.name!a}: expected namespace.table, found {fault}")
        if isinstance(self.partitioned_by, str):
            raise self._error("partitioned_by", "a list, such as ['days(at)']", self.partitioned_by)
        for key, value in self.properties.items():
            if not isinstance(value, str):
                raise self._error(f"property {key}", "a text, as Iceberg keeps it", value)
        if self.all_properties[_FORMAT_VERSION] != "2":
            raise self._error(
                f"property {_FORMAT_VERSION}",
                "'2', which is what can be made here: make a table of another version by Spark, and declare it without",
                self.properties[_FORMAT_VERSION],
            )
        object.__setattr__(self, "partitioned_by", tuple(self.partitioned_by))
        if len(set(self.partitions)) < len(self.partitions):
            raise self._error("partitioned_by", "every field once", list(self.partitioned_by))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        try:
            return parse_ddl(self.schema)
        except ConfigurationError as error:
            raise ConfigurationError(f"table {self.name}: {error}") from None

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        columns = {column.name.lower(): column for column in self.columns}
        return tuple(self._partition(written, columns) for written in self.partitioned_by)

    @property
    def all_properties(self) -> dict[str, str]:
        """The properties that the table is made with."""
        return {**_WANTED, **self.properties}

    def _partition(self, written: str, columns: Mapping[str, Column]) -> Partition:
        match = _PARTITION.fullmatch(written.strip())
        if match is None:
            raise self._error("partitioned_by", "a column, or one of Spark's transforms such as days(at)", written)
        said = match["column"] or match["of"]
        column = columns.get((said[1:-1].replace("``", "`") if said.startswith("`") else said).lower())
        if column is None:
            raise self._error("partitioned_by", f"a column of the schema ({', '.join(columns)})", written)
        transform = match["transform"] and _plural(match["transform"].lower())
        if transform is None:
            if column.type.name in _NESTED:
                raise self._error("partitioned_by", "a column that is not nested", f"{written}, {column.type}")
            return Partition("identity", column.name)
        if transform not in _TRANSFORMS:
            raise self._error("partitioned_by", f"a transform ({', '.join(_TRANSFORMS)})", written)
        number = int(match["number"] or 0)
        if (transform in _NUMBERED) != (number > 0):
            with_number = f"{transform}(16, {column.name})" if transform in _NUMBERED else f"{transform}({column.name})"
            raise self._error("partitioned_by", with_number, written)
        if column.type.name not in _TRANSFORMS[transform]:
            kinds = ", ".join(sorted(_TRANSFORMS[transform]))
            raise self._error("partitioned_by", f"{transform} of one of {kinds}", f"{written} of a {column.type}")
        return Partition(transform, column.name, number or None)

    def _error(self, what: str, expected: str, found: object) -> ConfigurationError:
        return ConfigurationError(f"table {self.name}: {what}: expected {expected}, found {found!r}")


def _plural(transform: str) -> str:
    """Spark takes ``day`` and ``days``."""
    return f"{transform}s" if f"{transform}s" in _TRANSFORMS else transform
