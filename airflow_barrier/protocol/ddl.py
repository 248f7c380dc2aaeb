"""Columns in Spark's own words, without Spark: DDL parsed, names and times written.

``pyspark`` asks a running Spark for this; the worker that checks files before Spark starts has none.

Nor can a library parse it: a Spark driver gets this package without what it depends on, and reads by the same schema;
and a DAG file, which declares tables by it, loads little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_barrier.protocol.errors import ConfigurationError

_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>\w+)|(?P<mark>[(),<>:]))")
#: integer type -> bits
INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
#: of a DECIMAL
_MOST_DIGITS = 38
_SYNONYMS = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_PLAIN = {"STRING", "BINARY", "BOOLEAN", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", *INTEGERS}


@dataclass(frozen=True)
class SparkType:
    """A type: ``numbers`` are DECIMAL's precision and scale, ``parts`` what it is made of."""

    name: str
    numbers: tuple[int, ...] = ()
    parts: tuple[Column, ...] = ()

    def __str__(self) -> str:
        if self.name == "STRUCT":
            return f"STRUCT<{', '.join(f'{quoted(part.name)}: {part.type}' for part in self.parts)}>"
        if self.parts:
            return f"{self.name}<{', '.join(str(part.type) for part in self.parts)}>"
        # TIMESTAMP alone is what spark.sql.timestampType says
        name = "TIMESTAMP_LTZ" if self.name == "TIMESTAMP" else self.name
        return f"{name}({','.join(map(str, self.numbers))})" if self.numbers else name


@dataclass(frozen=True)
class Column:
    """A column, or a part of one. ``required``: NOT NULL."""

    name: str
    type: SparkType
    required: bool = False
    comment: str | None = None


def parse_ddl(ddl: str) -> tuple[Column, ...]:
    """The columns of a schema such as ``userId BIGINT, price DECIMAL(10,2)``.

    Raises :class:`ConfigurationError` that shows where it stopped understanding.

    >>> [f"{column.name} {column.type}" for column in parse_ddl("userId bigint NOT NULL, price decimal(10, 2)")]
    ['userId BIGINT', 'price DECIMAL(10,2)']
    """
    columns = _Parser(ddl).columns()
    names = [column.name.lower() for column in columns]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ConfigurationError(
            f"schema {ddl!r}: column {double} is there twice (Spark does not tell upper from lower case); "
            "name every column once"
        )
    return columns


def ddl_of(columns: Iterable[Column]) -> str:
    """The columns as Spark's DDL again, names quoted; without NOT NULL and comments, which no reader of files needs."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


def quoted(name: str) -> str:
    """A column's name in Spark's SQL.

    >>> quoted("at `noon`")
    '`at ``noon```'
    """
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text in Spark's SQL.

    >>> print(literal("it's"))
    'it\\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def timestamp_literal(moment: datetime, zoned: bool) -> str:
    """A moment in Spark's SQL, the same in every session time zone. Not ``zoned``: a TIMESTAMP_NTZ, in UTC."""
    text = moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"TIMESTAMP_LTZ '{text}+00:00'" if zoned else f"TIMESTAMP_NTZ '{text}'"


class _Parser:
    """Recursive descent over the few words that a column list is made of."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = list(self._split())
        self._next = 0

    def columns(self) -> tuple[Column, ...]:
        columns = [self._column()]
        while self._take(","):
            columns.append(self._column())
        if self._next < len(self._tokens):
            raise self._error("',' or the end")
        return tuple(columns)

    def _split(self) -> Iterator[str]:
        position = 0
        text = self._ddl.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ConfigurationError(
                    f"schema {self._ddl!r}: expected column names and Spark types such as 'userId BIGINT, "
                    f"price DECIMAL(10,2)', found {text[position:].strip()[:20]!r}"
                )
            yield match[0].strip()
            position = match.end()

    def _column(self) -> Column:
        name = self._name()
        self._take(":")  # the older way to write a column, and the way inside STRUCT
        kind = self._type()
        required = self._take("NOT")
        if required:
            self._need("NULL", "NULL after NOT")
        return Column(name, kind, required, self._text() if self._take("COMMENT") else None)

    def _text(self) -> str:
        token = self._pop("a text in quotes")
        if not token.startswith("'"):
            self._next -= 1
            raise self._error("a text in quotes")
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    def _name(self) -> str:
        token = self._pop("a column name")
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.match(r"\w", token):
            self._next -= 1
            raise self._error("a column name")
        return token

    def _type(self) -> SparkType:
        word = self._pop("a type").upper()
        name = _SYNONYMS.get(word, word)
        if name in _PLAIN:
            return SparkType(name)
        if name == "DECIMAL":
            numbers = self._numbers()
            precision, scale, *more = (*numbers, *(10, 0)[len(numbers) :])
            if more or not 0 < precision <= _MOST_DIGITS or scale > precision:
                raise self._error(f"DECIMAL of 1 to {_MOST_DIGITS} digits in all before this")
            return SparkType(name, (precision, scale))
        if name in ("ARRAY", "MAP", "STRUCT"):
            return SparkType(name, parts=self._parts(name))
        self._next -= 1
        raise self._error("a Spark type")

    def _numbers(self) -> tuple[int, ...]:
        numbers: list[int] = []
        if self._take("("):
            numbers.append(self._number())
            while self._take(","):
                numbers.append(self._number())
            self._need(")")
        return tuple(numbers)

    def _number(self) -> int:
        token = self._pop("a number")
        if not token.isdigit():
            self._next -= 1
            raise self._error("a number")
        return int(token)

    def _parts(self, name: str) -> tuple[Column, ...]:
        self._need("<")
        if name == "ARRAY":
            parts = [Column("element", self._type())]
        elif name == "MAP":
            parts = [Column("key", self._type())]
            self._need(",")
            parts.append(Column("value", self._type()))
        else:
            parts = [self._column()]
            while self._take(","):
                parts.append(self._column())
        self._need(">")
        return tuple(parts)

    def _pop(self, expected: str) -> str:
        if self._next >= len(self._tokens):
            raise self._error(expected)
        self._next += 1
        return self._tokens[self._next - 1]

    def _take(self, token: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next].upper() == token
        self._next += found
        return found

    def _need(self, token: str, said: str | None = None) -> None:
        if not self._take(token):
            raise self._error(said or repr(token))

    def _error(self, expected: str) -> ConfigurationError:
        found = repr(self._tokens[self._next]) if self._next < len(self._tokens) else "the end"
        before = " ".join(self._tokens[max(0, self._next - 3) : self._next])
        return ConfigurationError(f"schema {self._ddl!r}: expected {expected}, found {found} after {before!r}")
