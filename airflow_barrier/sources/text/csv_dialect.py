"""How a CSV file is written, from the options that an author gives: Spark's names and words, and two of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError

_NAMES = ("header", "delimiter", "quote", "escape", "nullValue", "decimal_separator", "multiline")
_SWITCHES = {"true": True, "false": False}
# as Spark has them in its options, where a tab cannot be typed
_ESCAPED = {"\\t": "\t", "\\\\": "\\"}


@dataclass(frozen=True)
class CsvDialect:
    """Each field as Spark understands its option; ``quote`` may be empty: then nothing is quoted.

    ``decimal_separator`` is what numbers have before their fraction. ``multiline``: quoted values may hold line breaks.

    >>> CsvDialect.of({"delimiter": "\\\\t", "header": "true"}).delimiter
    '\\t'
    """

    header: bool = False
    delimiter: str = ","
    quote: str = '"'
    escape: str = "\\"
    null_value: str = ""
    decimal_separator: str = "."
    multiline: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvDialect:
        """Raises :class:`ConfigurationError` that names the option."""
        unknown = sorted(set(options) - set(_NAMES))
        if unknown:
            raise ConfigurationError(f"expected options for CSV of {sorted(_NAMES)}, found {unknown}")
        dialect = cls(
            header=_switch(options, "header"),
            delimiter=_character(options, "delimiter", ","),
            quote=_character(options, "quote", '"') if options.get("quote") != "" else "",
            escape=_character(options, "escape", "\\"),
            null_value=_text(options, "nullValue", ""),
            decimal_separator=_text(options, "decimal_separator", "."),
            multiline=_switch(options, "multiline"),
        )
        if dialect.decimal_separator not in (".", ","):
            raise ConfigurationError(
                f"option decimal_separator: expected '.' or ',', found {dialect.decimal_separator!r}"
            )
        if dialect.delimiter in (dialect.quote, dialect.escape):
            raise ConfigurationError(
                f"option delimiter: expected another character than quote and escape, found {dialect.delimiter!r}"
            )
        return dialect

    @property
    def escape_in_quotes(self) -> str | None:
        """The character before a quote inside quotes; None where a quote is doubled instead (RFC 4180)."""
        return None if self.escape == self.quote else self.escape

    def spark_options(self) -> dict[str, str]:
        """The options of Spark's own parser, and of ``from_csv``: what is not quoted as it has to be, is an error."""
        return {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "nullValue": self.null_value,
            "header": str(self.header).lower(),
            "unescapedQuoteHandling": "RAISE_ERROR",
        }


def _switch(options: Mapping[str, Any], name: str) -> bool:
    found = options.get(name, False)
    switch = found if isinstance(found, bool) else _SWITCHES.get(str(found).lower())
    if switch is None:
        raise ConfigurationError(f"option {name}: expected True or False, found {found!r}")
    return switch


def _character(options: Mapping[str, Any], name: str, otherwise: str) -> str:
    found = _text(options, name, otherwise)
    character = _ESCAPED.get(found, found)
    if len(character) != 1 or character in "\r\n\0":
        raise ConfigurationError(f"option {name}: expected one character (a tab is '\\t'), found {found!r}")
    return character


def _text(options: Mapping[str, Any], name: str, otherwise: str) -> str:
    found = options.get(name, otherwise)
    if not isinstance(found, str):
        raise ConfigurationError(f"option {name}: expected text, found {found!r}")
    return found
