"""Rows with weights: a delta is a multiset in which a row may also be missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import CHANGE_TYPE, WEIGHT
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def netted(frame: DataFrame, kinds: Mapping[str, DataType]) -> DataFrame:
    """The columns that ``kinds`` names with their types, and a weight of +1 or -1, without pairs of equal rows of which
    one came and one went. The frame is not asked for them, since Spark would have to analyse all of it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    with_maps = [name for name, kind in kinds.items() if _has_map(kind)]
    compared = {name: F.col(quoted(name)) for name in kinds if name not in with_maps}
    compared |= {f"_compared_{name}": _without_maps(F.col(quoted(name)), kinds[name]) for name in with_maps}
    total = frame.groupBy(*(column.alias(name) for name, column in compared.items())).agg(
        F.sum(quoted(WEIGHT)).alias(WEIGHT), *(F.first(quoted(name)).alias(name) for name in with_maps)
    )
    copies = F.expr(f"array_repeat(int(sign({quoted(WEIGHT)})), int(abs({quoted(WEIGHT)})))")
    return total.where(f"{quoted(WEIGHT)} <> 0").select(*map(quoted, kinds), F.explode(copies).alias(WEIGHT))


def kinds_of(frame: DataFrame) -> dict[str, DataType]:
    """The frame's columns with their types."""
    return {field.name: field.dataType for field in frame.schema.fields}


def comparable(frame: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The columns in a form in which Spark compares all of their values, maps too."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = kinds_of(frame)
    return [_without_maps(F.col(quoted(name)), kinds[name]) for name in columns]


def has_variant(kind: DataType) -> bool:
    """Return whether values of this type have parts that Spark cannot compare."""
    from pyspark.sql import types

    if isinstance(kind, types.MapType):
        return has_variant(kind.keyType) or has_variant(kind.valueType)
    return _has(kind, getattr(types, "VariantType", ()), has_variant)  # there is none before Spark 4.0


def _has_map(kind: DataType) -> bool:
    from pyspark.sql import types

    return _has(kind, types.MapType, _has_map)


def _has(kind: DataType, wanted: type[DataType] | tuple[()], within: Callable[[DataType], bool]) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return any(within(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return within(kind.elementType)
    return isinstance(kind, wanted)


def _without_maps(column: Column, kind: DataType) -> Column:
    """``column`` with each map as the list of its entries in order of their keys.

    Spark 4.1 groups by maps, but turns NULLs among their values into zeros while it does.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types

    if not _has_map(kind):
        return column
    if isinstance(kind, types.StructType):
        fields = [_without_maps(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, types.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda item: _without_maps(item, element))
    assert isinstance(kind, types.MapType)
    key, value = kind.keyType, kind.valueType
    entries = F.transform(
        F.map_entries(column),
        lambda entry: F.struct(
            _without_maps(entry.getField("key"), key).alias("key"),
            _without_maps(entry.getField("value"), value).alias("value"),
        ),
    )
    return F.array_sort(entries)


def labelled(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """``columns``, then the change type that goes with the weight, then the weight."""
    from pyspark.sql import functions as F  # noqa: N812

    change_type = F.expr(f"CASE WHEN {quoted(WEIGHT)} > 0 THEN 'insert' ELSE 'delete' END").alias(CHANGE_TYPE)
    return frame.select(*map(quoted, columns), change_type, quoted(WEIGHT))
