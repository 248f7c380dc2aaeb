"""Iceberg's columns as a Spark schema that finds them in Parquet files by field id, whatever they are called there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.systems.spark_versions import runs_before

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

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def column_types(table: str, fields: list[dict[str, Any]]) -> list[DataType]:
    """Return what Spark calls the columns' types. Raises :class:`InexactChangesError` for what it cannot read from a
    file.
    """
    return [_type(f"{table}: column {field['name']}", field["type"], in_file=False) for field in fields]


def parquet_schema(table: str, fields: list[dict[str, Any]]) -> StructType:
    """The same columns as a schema that matches by field id, nested fields too; see :func:`name_in_file`."""
    from pyspark.sql.types import StructType

    return StructType([_field(f"{table}: column {field['name']}", field, in_file=True) for field in fields])


def name_in_file(field: dict[str, Any]) -> str:
    """Return what a column or nested field is called while it is read: a name that no file has.

    Spark 4.1 finds a field by its id, but where the file has another field of the asked name, it takes that one's type.
    """
    return f"_airflow_barrier_{field['id']}"


def places(fields: Sequence[dict[str, Any]]) -> list[str]:
    """Return what columns are called by their place while rows are put together: no such name needs quoting or
    clashes.
    """
    return [f"c{index}" for index in range(len(fields))]


def require_widened(table: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Raises :class:`InexactChangesError` if a column is not of its old type, nor of one that Iceberg lets it become.

    A table that is replaced by another one of its name gives old field ids to new columns.
    """
    now = _types_by_id(new)
    reads_exact_types_only = runs_before("4.0")  # but for FLOAT, which it reads as DOUBLE
    for field_id, (name, kind) in _types_by_id(old).items():
        if field_id in now and not _widened(kind, now[field_id][1]):
            raise InexactChangesError(  # safety: types-only-widen
                f"{table}: expected column {now[field_id][0]} to have kept its type or to have got a wider one, found "
                f"that it is {now[field_id][1]} and was {kind}, as {name}: the table was replaced, or the changes go "
                "back in time; read it whole at both snapshots instead of its changes"
            )
        if reads_exact_types_only and field_id in now and kind not in (now[field_id][1], "float"):
            raise InexactChangesError(  # safety: narrower-types-are-read
                f"{table}: expected Spark 4.0 or newer, which reads column {now[field_id][0]} from files in which it "
                f"is {kind} and not yet {now[field_id][1]}, found an older one; read the table whole at both snapshots "
                "instead of its changes, until no such file changes any more"
            )


def _types_by_id(fields: Iterable[dict[str, Any]], within: str = "") -> dict[int, tuple[str, str]]:
    """Name and type of each column and nested field, element, key and value; of those with fields, what kind it is."""
    found: dict[int, tuple[str, str]] = {}
    for field in fields:
        name, kind = within + field["name"], field["type"]
        found[field["id"]] = name, kind if isinstance(kind, str) else kind["type"]
        if not isinstance(kind, str):
            found |= _types_by_id(_parts_of(kind), f"{name}.")
    return found


def _parts_of(kind: dict[str, Any]) -> list[dict[str, Any]]:
    if kind["type"] == "struct":
        fields: list[dict[str, Any]] = kind["fields"]
        return fields
    names = ("element",) if kind["type"] == "list" else ("key", "value")
    return [{"id": kind[f"{name}-id"], "name": name, "type": kind[name]} for name in names]


def nested(fields: Iterable[dict[str, Any]]) -> set[int]:
    """Ids of fields within columns."""
    return _types_by_id(fields).keys() - {field["id"] for field in fields}


def _widened(old: str, new: str) -> bool:
    if old == new or (old, new) in (("int", "long"), ("float", "double")):
        return True
    was, now = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return was is not None and now is not None and was[2] == now[2] and int(was[1]) <= int(now[1])


def _field(where: str, field: dict[str, Any], in_file: bool) -> StructField:
    from pyspark.sql.types import StructField

    if field.get("initial-default") is not None:
        # Files from before the column have the default in the table's eyes, and nothing in the file's.
        raise InexactChangesError(  # safety: columns-with-initial-default
            f"{where}: expected a column without an initial default, found {field['initial-default']!r}; read the "
            "table whole at both snapshots instead of its changes"
        )
    kind = _type(where, field["type"], in_file)
    if in_file:
        return StructField(name_in_file(field), kind, True, {"parquet.field.id": field["id"]})
    return StructField(field["name"], kind)


def _type(where: str, iceberg: str | dict[str, Any], in_file: bool) -> DataType:
    from pyspark.sql import types

    if isinstance(iceberg, str):
        if iceberg in _PLAIN:
            plain: DataType = getattr(types, _PLAIN[iceberg])()
            return plain
        if decimal := _DECIMAL.fullmatch(iceberg):
            return types.DecimalType(int(decimal[1]), int(decimal[2]))
    elif iceberg["type"] == "struct":
        return types.StructType([_field(f"{where}.{field['name']}", field, in_file) for field in iceberg["fields"]])
    elif iceberg["type"] == "list":
        return types.ArrayType(_type(f"{where}.element", iceberg["element"], in_file))
    elif iceberg["type"] == "map":
        key = _type(f"{where}.key", iceberg["key"], in_file)
        return types.MapType(key, _type(f"{where}.value", iceberg["value"], in_file))
    known = ", ".join([*_PLAIN, "decimal", "struct", "list", "map"])
    raise InexactChangesError(  # safety: types-spark-can-read
        f"{where}: expected one of the types {known}, found {iceberg!r}, which Spark cannot read "
        "from a file by itself; read the table whole at both snapshots instead of its changes"
    )
