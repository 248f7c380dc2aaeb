"""Iceberg's columns as a Spark schema that finds them in Parquet files by field id, whatever they are called there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import InexactChangesError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: Iceberg types whose Parquet form Spark reads by itself exactly as Iceberg's reader does.
_PLAIN = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "date": "DateType",
    "timestamp": "TimestampNTZType",
    "timestamptz": "TimestampType",
    "string": "StringType",
    "binary": "BinaryType",
}


def positional_name(index: int) -> str:
    """What the column at ``index`` is called while rows are on their way, so that no name needs quoting or clashes."""
    return f"c{index}"


def parquet_schema(table: str, fields: list[dict[str, Any]]) -> StructType:
    """Top-level columns by :func:`positional_name`. Raises :class:`InexactChangesError` for what Spark cannot read."""
    from pyspark.sql.types import StructType

    return StructType([_field(f"{table}: column {f['name']}", f, positional_name(i)) for i, f in enumerate(fields)])


def _field(where: str, field: dict[str, Any], name: str) -> StructField:
    from pyspark.sql.types import StructField

    if field.get("initial-default") is not None:
        # Files from before the column have the default in the table's eyes, and nothing in the file's.
        raise InexactChangesError(
            f"{where}: expected a column without an initial default, found {field['initial-default']!r}; read the "
            "table whole at both snapshots instead of its changes"
        )
    return StructField(name, _type(where, field["type"]), True, {"parquet.field.id": field["id"]})


def _type(where: str, iceberg: str | dict[str, Any]) -> DataType:
    from pyspark.sql import types

    if isinstance(iceberg, str):
        if iceberg in _PLAIN:
            plain: DataType = getattr(types, _PLAIN[iceberg])()
            return plain
        if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", iceberg):
            return types.DecimalType(int(decimal[1]), int(decimal[2]))
    elif iceberg["type"] == "struct":
        return types.StructType([_field(f"{where}.{f['name']}", f, f["name"]) for f in iceberg["fields"]])
    elif iceberg["type"] == "list":
        return types.ArrayType(_type(f"{where}.element", iceberg["element"]))
    elif iceberg["type"] == "map":
        return types.MapType(_type(f"{where}.key", iceberg["key"]), _type(f"{where}.value", iceberg["value"]))
    known = ", ".join([*_PLAIN, "decimal", "struct", "list", "map"])
    raise InexactChangesError(
        f"{where}: expected one of the types {known}, found {iceberg!r}, which Spark cannot read "
        "from a file by itself; read the table whole at both snapshots instead of its changes"
    )
