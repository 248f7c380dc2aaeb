"""JSON objects in Spark, one a text: what ``from_json`` would pass over is looked for in the text itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.protocol.ddl import Column, literal
from airflow_barrier.sources.text.values import (
    JSON_OPTIONS,
    NUMBER_MARK,
    has_names,
    names_said,
    plain,
    value_in,
    wrong_as,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Whatever comes before a number of a JSON text that is in no string, and the number.
_NUMBER = r'\G((?:[^"0-9-]++|-(?![0-9])|"(?:[^"\\]++|\\.)*+")*+)(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)'
# Escapes that stand for no character: half of a surrogate pair, and the mark of numbers.
_ESCAPES = (
    r"(?<!\\)(?:\\\\)*+\\u(?:[fF]{4}|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    r"(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F])"
)


def json_pairs(lines: DataFrame, carried: Sequence[str], columns: tuple[Column, ...], expected: str) -> DataFrame:
    """Select of each ``line`` the texts by their names, as ``pairs``, and ``wrong``: what is wrong with it, or NULL;
    with the columns named ``carried``. ``expected`` is what a line has to be, for ``wrong``: ``one object a line``.
    """
    mark, marked_number = literal(NUMBER_MARK), literal(f'$1"{NUMBER_MARK}$2{NUMBER_MARK}"')
    marked = f"regexp_replace(line, {literal(_NUMBER)}, {marked_number})"
    # no line can hold the second object, which is found only if the line is one value and nothing else
    second = literal(f',{{"{NUMBER_MARK}":null}}]')
    parsed = lines.selectExpr(
        *carried,
        f"{_odd_json()} AS odd",
        f"from_json(concat('[', {marked}, {second}), 'array<map<string,string>>', {JSON_OPTIONS}) AS found",
    ).selectExpr(
        *carried,
        "odd",
        f"CASE WHEN size(found) = 2 AND map_contains_key(get(found, 1), {mark}) THEN get(found, 0) END AS pairs",
    )
    found = (
        "CASE WHEN odd IS NOT NULL THEN odd WHEN pairs IS NULL THEN 'something else' "
        f"WHEN NOT {has_names('pairs', columns)} THEN 'another name, or one twice' END"
    )
    wrong = wrong_as(f"{expected}, with {names_said(columns)}", found)
    return parsed.selectExpr(*carried, "pairs", f"{wrong} AS wrong")


def json_text(column: Column) -> str:
    """SQL of the declared column's text, of the columns that :func:`json_pairs` makes."""
    return plain(value_in("pairs", column.name), column.type)


def odd_text(more: Mapping[str, str]) -> str:
    """SQL that says what is wrong with ``line`` before it is parsed, or NULL. ``more``: what else, by conditions."""
    wrong = {
        "NOT is_valid_utf8(line)": "bytes that are no UTF-8",
        "contains(line, '\\0')": "a NUL character",
        **more,
    }
    return f"CASE {' '.join(f'WHEN {condition} THEN {literal(said)}' for condition, said in wrong.items())} END"


def _odd_json() -> str:
    mark = f"contains(line, {literal(NUMBER_MARK)})"
    return odd_text({f"{mark} OR (contains(line, '\\\\u') AND line RLIKE {literal(_ESCAPES)})": "half a character"})
