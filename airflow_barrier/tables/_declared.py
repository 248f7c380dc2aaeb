"""A declared table in Iceberg's words: its columns and partition spec as pyiceberg makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from pyiceberg import types
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from airflow_barrier.protocol.table import Partition, Table

if TYPE_CHECKING:
    from airflow_barrier.protocol.ddl import Column, SparkType

_PLAIN: dict[str, types.IcebergType] = {
    # Iceberg has no narrower integers; Spark writes its own into these
    "TINYINT": types.IntegerType(),
    "SMALLINT": types.IntegerType(),
    "INT": types.IntegerType(),
    "BIGINT": types.LongType(),
    "FLOAT": types.FloatType(),
    "DOUBLE": types.DoubleType(),
    "BOOLEAN": types.BooleanType(),
    "STRING": types.StringType(),
    "BINARY": types.BinaryType(),
    "DATE": types.DateType(),
    "TIMESTAMP": types.TimestamptzType(),
    "TIMESTAMP_NTZ": types.TimestampType(),
}
#: transform -> Iceberg's, and what Spark appends to the column's name for the field's
_TIMES: dict[str, tuple[Transform[Any, Any], str]] = {
    "years": (YearTransform(), "year"),
    "months": (MonthTransform(), "month"),
    "days": (DayTransform(), "day"),
    "hours": (HourTransform(), "hour"),
}


def schema_of(table: Table) -> Schema:
    return Schema(*_fields(table.columns, count(1)))


def spec_of(table: Table, schema: Schema) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(each.column).field_id, number, *_transform(each))
            for number, each in enumerate(table.partitions, start=1000)
        )
    )


def _transform(partition: Partition) -> tuple[Transform[Any, Any], str]:
    number = partition.number or 0
    if partition.transform == "bucket":
        return BucketTransform(number), f"{partition.column}_bucket"
    if partition.transform == "truncate":
        return TruncateTransform(number), f"{partition.column}_trunc"
    if partition.transform in _TIMES:
        transform, suffix = _TIMES[partition.transform]
        return transform, f"{partition.column}_{suffix}"
    return IdentityTransform(), partition.column


def _fields(columns: Sequence[Column], ids: Iterator[int]) -> list[types.NestedField]:
    """The ids are only different ones: a catalog gives its own."""
    return [
        types.NestedField(next(ids), column.name, _type(column.type, ids), column.required, doc=column.comment)
        for column in columns
    ]


def _type(kind: SparkType, ids: Iterator[int]) -> types.IcebergType:
    if kind.name in _PLAIN:
        return _PLAIN[kind.name]
    if kind.name == "DECIMAL":
        return types.DecimalType(*kind.numbers)
    if kind.name == "STRUCT":
        return types.StructType(*_fields(kind.parts, ids))
    first, *more = (_type(part.type, ids) for part in kind.parts)
    if kind.name == "ARRAY":
        return types.ListType(next(ids), first, element_required=False)
    return types.MapType(next(ids), first, next(ids), more[0], value_required=False)
