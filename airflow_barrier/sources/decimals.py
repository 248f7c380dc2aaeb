"""Decimals in text files, exactly: where a value has more places than its column, Spark rounds it and says nothing.

So they are read with all the places that Spark has, and a value that the declared type would change is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_barrier.sources.ddl import Column, SparkType, quoted

#: What the error of such a value begins with; see :mod:`.spark_errors`.
INEXACT = "airflow_barrier inexact decimal: "
_MOST_DIGITS = 38


def with_room(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns with decimals that keep every place; as many digits before the point as declared."""
    return tuple(Column(column.name, _roomy(column.type)) for column in columns)


def exact(what: str, columns: Sequence[Column]) -> list[str]:
    """For ``what`` is read: SQL expressions that make columns :func:`with_room` what they are declared, or fail."""
    return [_checked(what, column) if _roomy(column.type) != column.type else quoted(column.name) for column in columns]


def _roomy(declared: SparkType) -> SparkType:
    if declared.name != "DECIMAL":
        return declared
    precision, scale = declared.numbers
    return SparkType("DECIMAL", (_MOST_DIGITS, _MOST_DIGITS - (precision - scale)))


def _checked(what: str, column: Column) -> str:
    name = quoted(column.name)
    as_declared = f"try_cast({name} AS {column.type})"
    message = (
        f"concat({_text(f'{INEXACT}{what}: expected {column.name} {column.type}, found one of ')}, "
        f"length(substring_index(TRIM(TRAILING '0' FROM CAST({name} AS STRING)), '.', -1)), "
        "' places after the point in ', _metadata.file_path)"
    )
    fits = f"{name} IS NULL OR {name} = {as_declared}"
    return f"CASE WHEN {fits} THEN {as_declared} ELSE raise_error({message}) END AS {name}"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
