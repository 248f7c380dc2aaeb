"""JSON objects in Spark, one a text: what ``from_json`` would pass over is looked for in the text itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.protocol.ddl import Column, literal
from airflow_barrier.sources.text.scanner import JSON_SCANNER, can_scan
from airflow_barrier.sources.text.values import (
    JSON_OPTIONS,
    NUMBER_MARK,
    has_names,
    names_said,
    no_utf8,
    plain,
    value_in,
    wrong_as,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Whatever comes before a number of a JSON text that is in no string, and the number.
_NUMBER = r'\G((?:[^"0-9-]++|-(?![0-9])|"(?:[^"\\]++|\\.)*+")*+)(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)'
# Escapes that stand for no character: half of a surrogate pair, and the mark of numbers.
_ESCAPES = (
    r"(?<!\\)(?:\\\\)*+\\u(?:[fF]{4}|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    r"(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F])"
)


def json_texts(lines: DataFrame, carried: Sequence[str], columns: tuple[Column, ...], expected: str) -> DataFrame:
    """Select of each ``line`` the columns' texts in their order, as ``texts``, and ``wrong``: what is wrong with it, or
    NULL; with the columns named ``carried``. ``expected`` is what a line has to be, for ``wrong``:
    ``one object a line``.

    Where the guard's jar is, it reads the lines that it understands whole, and here only the others are parsed.
    """
    mark, marked_number = literal(NUMBER_MARK), literal(f'$1"{NUMBER_MARK}$2{NUMBER_MARK}"')
    marked = f"regexp_replace(line, {literal(_NUMBER)}, {marked_number})"
    # no line can hold the second object, which is found only if the line is one value and nothing else
    second = literal(f',{{"{NUMBER_MARK}":null}}]')
    # a scanned line is NULL from here on, of which all that follows is NULL, too, and costs nothing
    parsed = (
        lines.selectExpr(*carried, "line", f"{_scanned(lines.sparkSession, columns)} AS scanned")
        .selectExpr(*carried, "scanned", "CASE WHEN scanned IS NULL THEN line END AS line")
        .selectExpr(
            *carried,
            "scanned",
            f"{_odd_json()} AS odd",
            f"from_json(concat('[', {marked}, {second}), 'array<map<string,string>>', {JSON_OPTIONS}) AS found",
        )
        .selectExpr(
            *carried,
            "scanned",
            "odd",
            f"CASE WHEN size(found) = 2 AND map_contains_key(get(found, 1), {mark}) THEN get(found, 0) END AS pairs",
        )
    )
    found = (
        "CASE WHEN scanned IS NOT NULL THEN NULL WHEN odd IS NOT NULL THEN odd WHEN pairs IS NULL "
        f"THEN 'something else' WHEN NOT {has_names('pairs', columns)} THEN 'another name, or one twice' END"
    )
    wrong = wrong_as(f"{expected}, with {names_said(columns)}", found)
    texts = ", ".join(plain(value_in("pairs", column.name), column.type) for column in columns)
    return parsed.selectExpr(*carried, f"coalesce(scanned, array({texts})) AS texts", f"{wrong} AS wrong")


def _scanned(spark: SparkSession, columns: tuple[Column, ...]) -> str:
    """SQL of the texts of ``line``, or NULL where it has to be parsed."""
    if any(column.type.parts for column in columns) or not can_scan(spark):
        return "CAST(NULL AS ARRAY<STRING>)"
    return f"{JSON_SCANNER}(line, {', '.join(literal(column.name) for column in columns)})"


def odd_text(more: Mapping[str, str]) -> str:
    """SQL that says what is wrong with ``line`` before it is parsed, or NULL. ``more``: what else, by conditions."""
    wrong = {
        no_utf8("line"): "bytes that are no UTF-8",
        "contains(line, '\\0')": "a NUL character",
        **more,
    }
    return f"CASE {' '.join(f'WHEN {condition} THEN {literal(said)}' for condition, said in wrong.items())} END"


def _odd_json() -> str:
    mark = f"contains(line, {literal(NUMBER_MARK)})"
    return odd_text({f"{mark} OR (contains(line, '\\\\u') AND line RLIKE {literal(_ESCAPES)})": "half a character"})
