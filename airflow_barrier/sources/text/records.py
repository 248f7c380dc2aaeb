"""The records of text files in Spark: one strict reading, whose result is the rows.

Spark splits a file into lines, and ``from_csv`` or ``from_json`` a line into texts. What they would pass over (bytes
that are no UTF-8, a quote that is not closed, what follows an object on its line, names that nobody declared) is looked
for in the line itself. Texts become values in :mod:`.text_values`.

CSV with values of several lines is split by Spark's own CSV reader, and a worker looks for a quote that is never closed
before (:mod:`airflow_barrier.sources.files.formats`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.protocol.ddl import Column, literal, quoted
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.sources.text.json_objects import json_texts, odd_text
from airflow_barrier.sources.text.scanner import CSV_SCANNER, can_scan
from airflow_barrier.sources.text.values import NUMBER_MARK, Values, no_utf8, wrong_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# In this encoding each byte is a character.
_BYTES = "ISO-8859-1"
# Characters that it does not have: a line is never split at them.
_NEVER_THERE = {"delimiter": "\ufffe", "quote": "\uffff", "escape": "\ufffd", "comment": "\ufffc"}
_BLANK = r"^[\x00-\x20]*\z"


class TextRecords:
    """Text files of one format and schema: ``form`` is csv or json, ``what`` they are, for errors; ``options`` are
    Spark's for reading any file.
    """

    def __init__(
        self, form: str, columns: tuple[Column, ...], dialect: CsvDialect, what: str, options: Mapping[str, str]
    ) -> None:
        self._form, self._columns, self._dialect, self._options = form, columns, dialect, options
        self._values = Values(what, "place", dialect.decimal_separator, json=form == "json")

    def read(self, spark: SparkSession, urls: Sequence[str], header: str | None = None) -> DataFrame:
        """The records. One that is not as declared fails the action that meets it, naming the file.

        ``header``: what the first line of each file has to be; None: whatever it is.
        """
        if self._dialect.multiline:
            return self._typed(self._multiline_records(spark, urls))
        return self._typed(self._records(self._lines(spark, urls, header)))

    def read_in_order(self, spark: SparkSession, url: str) -> DataFrame:
        """The records of one file, by one task and from its beginning: the error names the line, too."""
        lines = spark.read.format("text").options(**self._options).load(url).coalesce(1)
        numbered = lines.selectExpr(
            "value AS line",
            "monotonically_increasing_id() + 1 AS number",
            "_metadata.file_path AS file",
        ).where(f"number > {int(self._form == 'csv' and self._dialect.header)}")
        placed = numbered.selectExpr("line", "concat(file, ', line ', number) AS place")
        return self._typed(self._records(placed))

    # --- records of texts -------------------------------------------------------------------------

    def _typed(self, texts: DataFrame) -> DataFrame:
        """Make typed rows of ``c0``, ``c1``, … and the ``place`` of each record."""
        return texts.selectExpr(
            *(
                f"{self._values.value(f'c{number}', column)} AS {quoted(column.name)}"
                for number, column in enumerate(self._columns)
            )
        )

    def _records(self, lines: DataFrame) -> DataFrame:
        """Make records of ``line`` and ``place``."""
        # most lines begin with something, and are not searched
        filled = lines.where(f"line >= '!' OR NOT line RLIKE {literal(_BLANK)}")
        return self._json_records(filled) if self._form == "json" else self._csv_records(filled)

    def _json_records(self, lines: DataFrame) -> DataFrame:
        found = json_texts(lines, ["place"], self._columns, "one object a line")
        return found.selectExpr("place", f"{self._whole('wrong', 'texts')} AS texts").selectExpr(
            "place", *(f"get(texts, {number}) AS c{number}" for number in range(len(self._columns)))
        )

    def _csv_records(self, lines: DataFrame) -> DataFrame:
        names = [f"c{number}" for number in range(len(self._columns))]
        schema = ", ".join(f"{name} STRING" for name in [*names, "malformed"])
        settings = {**self._dialect.spark_options(), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
        texts = ", ".join(map(literal, (text for setting in settings.items() for text in setting)))
        # a split line is NULL from here on, of which all that follows is NULL, too, and costs nothing
        rest = (
            lines.selectExpr("place", "line", f"{self._split(lines.sparkSession)} AS texts")
            .selectExpr("place", "line", f"CASE WHEN size(texts) = {len(names)} THEN texts END AS split")
            .selectExpr("place", "split", "CASE WHEN split IS NULL THEN line END AS line")
        )
        # a malformed quote would end the query without the file's name
        parsed = rest.selectExpr("place", "split", "line", f"{self._odd_line()} AS wrong").selectExpr(
            "place",
            "split",
            "wrong",
            f"CASE WHEN wrong IS NULL THEN from_csv(line, '{schema}', map({texts})) END AS record",
        )
        wrong = wrong_as(
            f"{len(names)} values a line",
            "CASE WHEN wrong IS NOT NULL THEN wrong WHEN record.malformed IS NOT NULL THEN 'another number of them' "
            "END",
        )
        fields = ", ".join(f"record.{name}" for name in names)
        whole = self._whole(wrong, f"coalesce(split, array({fields}))")
        null = literal(self._dialect.null_value)
        return parsed.selectExpr("place", f"{whole} AS texts").selectExpr(
            "place",
            *(f"CASE WHEN get(texts, {at}) <> {null} THEN get(texts, {at}) END AS c{at}" for at in range(len(names))),
        )

    def _split(self, spark: SparkSession) -> str:
        """SQL of the texts of a line of CSV that has no quote and is UTF-8; NULL of another one."""
        delimiter, quote, count = self._dialect.delimiter, self._dialect.quote, len(self._columns)
        if f"{delimiter}{quote}".isascii() and can_scan(spark):
            return f"{CSV_SCANNER}(line, {literal(delimiter)}, {literal(quote)}, '{count}')"
        odd = [no_utf8("line"), *(f"contains(line, {each})" for each in (r"'\0'", literal(NUMBER_MARK)))]
        if quote:
            odd.append(f"contains(line, {literal(quote)})")
        texts = f"split(line, {literal(re.escape(delimiter))}, -1)"
        if self._dialect.null_value:  # what is empty is NULL, too, unless it is quoted
            texts = f"transform({texts}, text -> CASE WHEN text <> '' THEN text END)"
        return f"CASE WHEN NOT ({' OR '.join(odd)}) THEN {texts} END"

    def _whole(self, wrong: str, record: str) -> str:
        """SQL that is the record; if ``wrong`` says something, it fails.

        It is generated by ``explode``: Spark leaves out what a query does not use, but not what makes its rows.
        """
        return f"explode(CASE WHEN {wrong} IS NULL THEN array({record}) ELSE {self._values.fault(wrong)} END)"

    # --- lines ------------------------------------------------------------------------------------

    def _lines(self, spark: SparkSession, urls: Sequence[str], header: str | None) -> DataFrame:
        """Read ``line`` and ``place``: the bytes of the file, whatever they are."""
        if self._form == "json" or not self._dialect.header:
            texts = spark.read.format("text").options(**self._options).load([*urls])
            return texts.selectExpr("value AS line", "_metadata.file_path AS place")
        # only the CSV reader knows which line is a file's first one, and compares it with the name of the column
        name = "line" if header is None else header.encode().decode(_BYTES)
        checked = {"header": "true", "enforceSchema": str(header is None).lower(), "encoding": _BYTES}
        reader = spark.read.format("csv").options(**self._options, **_NEVER_THERE, **checked)
        raw = reader.schema(f"{quoted(name)} STRING").load([*urls])
        return raw.selectExpr(
            f"CAST(encode({quoted(name)}, '{_BYTES}') AS STRING) AS line", "_metadata.file_path AS place"
        )

    def _odd_line(self) -> str:
        """SQL that says what is wrong with a line of CSV before it is parsed, or NULL."""
        # from_csv ends a line there, and takes what follows for the beginning of the next one
        odd = {f"contains(line, {literal(NUMBER_MARK)})": "the character U+FFFF, which is none"}
        if not self._dialect.quote:
            return odd_text(odd)
        quote = literal(self._dialect.quote)
        unclosed = f"contains(line, {quote}) AND NOT line RLIKE {literal(_quoting(self._dialect))}"
        said = (
            f"a quote ({self._dialect.quote}) that is not closed in its line, or not escaped as the source's "
            "option escape says; values of several lines need the option multiline"
        )
        return odd_text({**odd, unclosed: said})

    def _multiline_records(self, spark: SparkSession, urls: Sequence[str]) -> DataFrame:
        """The texts of CSV whose values go over several lines."""
        settings = {
            **self._options,
            **self._dialect.spark_options(),
            "multiLine": "true",
            "enforceSchema": "false",
            "columnPruning": "false",
            "encoding": "UTF-8",
        }
        names = [quoted(column.name) for column in self._columns]
        reader = spark.read.format("csv").options(**settings).schema(", ".join(f"{name} STRING" for name in names))
        records = reader.load([*urls]).selectExpr(*names, "_metadata.file_path AS place")
        undecoded = " OR ".join(f"contains({name}, '\ufffd')" for name in names)
        wrong = f"CASE WHEN {undecoded} THEN 'bytes that are not' END"
        fields = ", ".join(f"{name} AS c{number}" for number, name in enumerate(names))
        whole = self._whole(wrong_as("UTF-8", wrong), f"struct({fields})")
        return records.selectExpr("place", f"{whole} AS record").selectExpr("place", "record.*")


def _quoting(dialect: CsvDialect) -> str:
    """The pattern of a line whose quotes are closed and escaped. Its loops keep no state, however long the line is."""
    quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
    escape = re.escape(dialect.escape_in_quotes or dialect.quote)
    escaped = f"{quote}{quote}" if dialect.escape_in_quotes is None else f"{escape}."
    inside = f"[^{quote}{escape}]++|{escaped}"
    value = f"(?:{quote}(?:{inside})*+{quote} *+|[^{quote}{delimiter}][^{delimiter}]*+|)"
    return rf"(?s)^(?:{value}{delimiter})*+{value}\z"
