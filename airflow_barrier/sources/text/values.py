"""A value in a text file becomes a value of its column, exactly or not at all: as expressions of Spark's SQL.

Spark's own readers forgive: they drop each comma of a DECIMAL, round what has more places than the column, take
``10:00`` for ten o'clock today, cut a time off a DATE. So all is read as text, and the text has to have the one form
that its type has here. What has that form Spark casts without changing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from airflow_barrier.protocol.ddl import Column, SparkType, literal
from airflow_barrier.systems.spark_versions import runs_before

#: What the error of a record begins with that is not as declared; see :mod:`.spark_errors`.
UNFIT = "airflow_barrier unfit record: "
#: Stands around each number of a JSON line, which is a string then. It is no character, so no text holds it.
NUMBER_MARK = "\uffff"
#: Options of ``from_json``: what Python's ``json`` refuses in a file's first line is refused in each.
JSON_OPTIONS = "map('mode', 'PERMISSIVE', 'allowSingleQuotes', 'false')"

_NOTHING = "CAST(NULL AS STRING)"
_FORMS = {
    "BINARY": "text that is not base64",
    "BOOLEAN": "neither true nor false",
    "DATE": "another form than 2017-01-31, or no such day",
    "TIMESTAMP": "another form than 2017-01-31T10:00:00.123456+01:00 (or without zone: UTC), or no such time",
    "TIMESTAMP_NTZ": "another form than 2017-01-31T10:00:00.123456 without a zone, or no such time",
}

# `\z`: Java's `$` would let a line break at the end pass, of which Unicode has several
_NUMBER = r"^[-+]?(?=[.]?[0-9])[0-9]*[.]?[0-9]*([eE][-+]?[0-9]+)?\z"
_INFINITE = r"^[-+]?Inf(inity)?\z"
_EXPONENT = r"^[-+]?(?=[.]?[0-9])[0-9]*[.]?[0-9]*[eE][-+]?[0-9]{1,4}\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_SECONDS = r"[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6}0*)?"
_LOCAL_TIME = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]({_SECONDS}|[0-9]{{2}}:[0-9]{{2}}))?\z"
_ZONED_TIME = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_SECONDS}(Z|[-+][0-9]{{2}}(:?[0-9]{{2}})?)\z"


@dataclass(frozen=True)
class Values:
    """The way that values are read. ``what`` is read, for errors; ``place``: SQL for where the record stands.

    ``json``: values are as ``from_json`` hands them over as text, and may be nested.
    """

    what: str
    place: str
    decimal_separator: str = "."
    json: bool = False
    _numbers: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    def value(self, text: str, column: Column) -> str:
        """SQL that makes ``text`` (the name of a column of :func:`plain` texts) the declared column's value, or fails
        the query.
        """
        if column.type.parts:
            return self._bound(
                self.reading(text, column),
                lambda it: f"CASE WHEN {it}.wrong IS NULL THEN {it}.value ELSE {self.fault(f'{it}.wrong')} END",
            )
        if column.type.name == "STRING":
            return text
        refused = self.fault(self._unlike(text, column.type, column.name))
        return f"CASE WHEN {text} IS NULL THEN NULL ELSE coalesce({self._exact(text, column.type)}, {refused}) END"

    def fault(self, wrong: str) -> str:
        """SQL that fails the query; ``wrong`` is SQL of what :func:`wrong_as` makes."""
        return f"raise_error(concat({literal(f'{UNFIT}{self.what}: ')}, {wrong}, ' in ', {self.place}))"

    # --- without failing: to be evaluated first, and asked for the rest by its name ------------------

    def reading(self, text: str, column: Column) -> str:
        """SQL of what the text is read as, whether or not it is as declared."""
        if column.type.parts:
            return self._nested(text, column.type, column.name)
        return text if column.type.name == "STRING" else self._exact(text, column.type)

    def value_of(self, reading: str, column: Column) -> str:
        """SQL of the declared column's value."""
        return f"{reading}.value" if column.type.parts else reading

    def wrong_of(self, reading: str, text: str, column: Column) -> str | None:
        """SQL that says what is not as declared, or NULL. None if nothing can be."""
        if column.type.parts:
            return f"{reading}.wrong"
        if column.type.name == "STRING":
            return None
        unlike = self._unlike(text, column.type, column.name)
        return f"CASE WHEN {reading} IS NULL AND {text} IS NOT NULL THEN {unlike} END"

    # --- types ------------------------------------------------------------------------------------

    def _unlike(self, text: str, declared: SparkType, where: str) -> str:
        """SQL that says what is there in place of a value, without quoting it."""
        expected = f"{where} {declared}"
        if declared.name != "DECIMAL":
            return wrong_as(expected, literal(_FORMS.get(declared.name, "another form, or more than it holds")))
        other = f"a number with another decimal separator than {self.decimal_separator!r}, or with thousands separated"
        return wrong_as(
            expected,
            f"CASE WHEN {self._with_point(text)} RLIKE {literal(_NUMBER)} THEN 'a number with more digits than that' "
            f"WHEN {text} RLIKE '^[-+0-9.,]+$' THEN {literal(other)} ELSE 'text that is no number' END",
        )

    def _exact(self, text: str, declared: SparkType) -> str:
        """SQL that is NULL where the text is no value of the type."""
        name = declared.name
        if name == "DECIMAL":
            return self._decimal(text, declared)
        if name in ("FLOAT", "DOUBLE"):
            return self._float(text, name)
        if name == "BINARY":
            return f"try_to_binary({text}, {literal('base64' if self.json else 'utf-8')})"
        if name == "BOOLEAN":
            return f"CASE lower({text}) WHEN 'true' THEN true WHEN 'false' THEN false END"
        if name == "DATE":
            return f"CASE WHEN {text} RLIKE {literal(_DATE)} THEN try_cast({text} AS DATE) END"
        if name == "TIMESTAMP_NTZ":
            return f"CASE WHEN {text} RLIKE {literal(_LOCAL_TIME)} THEN try_cast({text} AS {declared}) END"
        if name == "TIMESTAMP":
            # this much of the end is what a date lacks, and a time without a zone or seconds
            utc = f"concat({text}, substr('T00:00:00Z', least(length({text}) - 9, 10)))"
            return (
                f"CASE WHEN {text} RLIKE {literal(_ZONED_TIME)} THEN try_cast({text} AS {declared}) "
                f"WHEN {text} RLIKE {literal(_LOCAL_TIME)} THEN try_cast({utc} AS {declared}) END"
            )
        return f"try_cast({text} AS {name})"

    def _decimal(self, text: str, declared: SparkType) -> str:
        precision, scale = declared.numbers
        number = self._with_point(text)
        fits = rf"^[-+]?(?=[.]?[0-9])0*[0-9]{{0,{precision - scale}}}([.][0-9]{{0,{scale}}}0*)?\z"
        return (
            f"CASE WHEN {number} RLIKE {literal(fits)} "
            f"OR ({number} RLIKE {literal(_EXPONENT)} AND {_places(number)} <= {scale}) "
            f"THEN try_cast({number} AS {declared}) END"
        )

    def _float(self, text: str, name: str) -> str:
        number = self._with_point(text)
        cast = f"try_cast({number} AS {name})"
        # Spark makes a number that is too large an infinite one
        return (
            f"CASE WHEN {text} = 'NaN' OR {text} RLIKE {literal(_INFINITE)} THEN {cast} "
            f"WHEN {number} RLIKE {literal(_NUMBER)} AND abs({cast}) < double('Infinity') THEN {cast} END"
        )

    def _with_point(self, text: str) -> str:
        return text if self.decimal_separator == "." else f"translate({text}, '.,', ',.')"

    # --- nested, of JSON: each is a struct of the value and of what is wrong ------------------------

    def _nested(self, text: str, declared: SparkType, where: str) -> str:
        if declared.name == "STRUCT":
            return self._parsed(
                text, "map<string,string>", declared, where, lambda it: self._object(it, declared.parts, where)
            )
        if declared.name == "ARRAY":
            return self._parsed(
                text, "array<string>", declared, where, lambda it: self._array(it, declared.parts[0].type, where)
            )
        if declared.name == "MAP":
            return self._parsed(
                text, "map<string,string>", declared, where, lambda it: self._map(it, declared.parts, where)
            )
        return self._bound(
            self.reading(text, Column(where, declared)),
            lambda it: _pair(it, self.wrong_of(it, text, Column(where, declared)) or _NOTHING),
        )

    def _object(self, pairs: str, columns: tuple[Column, ...], where: str) -> str:
        parts = ", ".join(
            f"'p{number}', {self._part(value_in(pairs, each.name), each.type, f'{where}.{each.name}')}"
            for number, each in enumerate(columns)
        )
        refused = wrong_as(f"in {where} {names_said(columns)}", literal("another name, or one twice"))

        def joined(it: str) -> str:
            fields = ", ".join(f"{literal(each.name)}, {it}.p{number}.value" for number, each in enumerate(columns))
            wrong = ", ".join(f"{it}.p{number}.wrong" for number in range(len(columns)))
            unknown = f"CASE WHEN NOT {has_names(pairs, columns)} THEN {refused} END"
            return _pair(f"named_struct({fields})", f"coalesce({unknown}, {wrong})")

        return self._bound(f"named_struct({parts})", joined)

    def _array(self, texts: str, element: SparkType, where: str) -> str:
        text = self._name()
        return self._bound(
            f"transform({texts}, {text} -> {self._part(text, element, f'{where}[]')})",
            lambda it: _pair(f"{it}.value", _first(f"{it}.wrong")),
        )

    def _map(self, pairs: str, parts: tuple[Column, ...], where: str) -> str:
        key, value = self._name(), self._name()
        keys = f"transform(map_keys({pairs}), {key} -> {self._part(key, parts[0].type, f'key of {where}')})"
        values = f"transform(map_values({pairs}), {value} -> {self._part(value, parts[1].type, f'value of {where}')})"
        twice = wrong_as(f"{where} with each key once", literal("one twice"))

        def joined(it: str) -> str:
            # two texts may be one key, such as 1.0 and 1.00
            double = f"CASE WHEN size(array_distinct({it}.k.value)) < size({it}.k) THEN {twice} END"
            wrong = f"coalesce({_first(f'{it}.k.wrong')}, {double}, {_first(f'{it}.v.wrong')})"
            return self._bound(
                wrong,
                lambda said: _pair(
                    f"CASE WHEN {said} IS NULL THEN map_from_arrays({it}.k.value, {it}.v.value) END", said
                ),
            )

        return self._bound(f"named_struct('k', {keys}, 'v', {values})", joined)

    def _parsed(self, text: str, form: str, declared: SparkType, where: str, body: Callable[[str], str]) -> str:
        refused = _pair("NULL", wrong_as(f"{where} {declared.name}", literal("another JSON value")))
        return self._bound(
            f"from_json({text}, '{form}', {JSON_OPTIONS})",
            lambda it: (
                f"CASE WHEN {text} IS NULL THEN {_pair('NULL', _NOTHING)} WHEN {it} IS NULL THEN {refused} "
                f"ELSE {body(it)} END"
            ),
        )

    def _part(self, text: str, declared: SparkType, where: str) -> str:
        return self._bound(plain(text, declared), lambda it: self._nested(it, declared, where))

    def _bound(self, expression: str, body: Callable[[str], str]) -> str:
        """``body`` of a name that stands for the expression, which is evaluated once."""
        name = self._name()
        return f"get(transform(array({expression}), {name} -> {body(name)}), 0)"

    def _name(self) -> str:
        return f"v{next(self._numbers)}"


def no_utf8(text: str) -> str:
    """SQL that is true where the bytes of ``text``, which is SQL too, are not UTF-8: Spark takes them as they come."""
    if runs_before("4.0"):  # it reads bytes that are no character as U+FFFD
        return f"(encode(decode(CAST({text} AS BINARY), 'UTF-8'), 'UTF-8') <> CAST({text} AS BINARY))"
    return f"NOT is_valid_utf8({text})"


def wrong_as(expected: str, found: str) -> str:
    """SQL that says what is wrong with a record; ``found`` is SQL, and tells nothing of the record."""
    return f"concat({literal(f'expected {expected}, found ')}, {found})"


def _pair(value: str, wrong: str) -> str:
    return f"named_struct('value', {value}, 'wrong', {wrong})"


def _first(wrongs: str) -> str:
    """SQL of the first of an array that is something."""
    return f"get(array_compact({wrongs}), 0)"


def plain(text: str, declared: SparkType) -> str:
    """SQL of a JSON value's text without the marks of numbers; what is nested is parsed first."""
    mark = literal(NUMBER_MARK)
    if declared.parts:
        return text
    if declared.name == "STRING":  # which may hold a whole object as text
        quoted_marks = (literal(f'"{NUMBER_MARK}'), literal(f'{NUMBER_MARK}"'))
        return f"replace(replace(replace({text}, {quoted_marks[0]}, ''), {quoted_marks[1]}, ''), {mark}, '')"
    # from_json hands over what is no number, such as NaN, in quotes
    return f"replace(replace({text}, {mark}, ''), '\"', '')"


def value_in(pairs: str, name: str) -> str:
    """SQL of the text that a map has under a name, NULL where it has none."""
    return f"try_element_at({pairs}, {literal(name)})"


def has_names(pairs: str, columns: Sequence[Column]) -> str:
    """SQL that says whether all keys of a map are names of columns, and none is there twice."""
    names = f"array({', '.join(literal(column.name) for column in columns)})"
    # the intersection has each name once
    return f"size(array_intersect(map_keys({pairs}), {names})) = cardinality({pairs})"


def names_said(columns: Sequence[Column]) -> str:
    return f"only {[column.name for column in columns]}, each once"


def _places(number: str) -> str:
    """SQL of the places after the point that a number with an exponent needs."""
    mantissa = f"substring_index(lower({number}), 'e', 1)"
    digits = f"regexp_replace({mantissa}, '[-+.]', '')"
    fraction = f"CASE WHEN contains({mantissa}, '.') THEN length(substring_index({mantissa}, '.', -1)) ELSE 0 END"
    zeros = f"length({digits}) - length(rtrim('0', {digits}))"
    return f"({fraction} - try_cast(substring_index(lower({number}), 'e', -1) AS INT) - ({zeros}))"
