"""Records in Spark: what is read becomes the declared columns, or an error that names the record.

A record is decoded whole before anything is made of it. So it does not depend on what a query uses whether a record is
refused, and the rows of a job and the letters of a dead-letter table share out the records between them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.ddl import Column, literal, parse_ddl, quoted
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sources.messages.avro_types import as_written
from airflow_barrier.sources.text.values import no_utf8

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField

FORMATS = ("json", "avro", "binary")
#: What can be asked for of a record beside its value; the column of it begins with an underscore.
METADATA = ("key", "headers", "partition", "offset", "timestamp")
_LETTER = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PLACE = "concat('topic ', topic, ', partition ', partition, ', offset ', offset)"
_END = "airflow_barrier_end"


@dataclass(frozen=True)
class RecordFormat:
    """The way that the records of a topic or stream are decoded.

    :param format: ``json`` (one object a record), ``avro`` (one record of the schema), or ``binary``:
        the columns ``key`` and ``value`` as they are, which the job decodes.
    :param schema: for JSON: all columns, as Spark DDL.
    :param avro_schema: for Avro: the schema of a record, as JSON. Its fields are the columns.
    :param writer_schemas: for Avro that begins with the id of the schema that it was written by, as Confluent's
        serializers put it there: those schemas by their ids. Each record is read as ``avro_schema`` has it.
    :param metadata: what of ``key``, ``headers``, ``partition``, ``offset`` and ``timestamp`` comes as columns, too:
        ``_key``, ``_headers``, … With the key come the records without a value, whose other columns are NULL.

    Raises :class:`ConfigurationError` for settings that contradict each other.
    """

    format: str
    schema: str = ""
    avro_schema: str = ""
    metadata: tuple[str, ...] = ()
    writer_schemas: Mapping[int, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(f"expected format to be one of {FORMATS}, found {self.format!r}")
        for name, wanted in (("schema", "json"), ("avro_schema", "avro")):
            if bool(getattr(self, name)) != (self.format == wanted):
                raise ConfigurationError(
                    f"{name} and format={wanted!r} belong together, found format={self.format!r}; give both or none"
                )
        unknown = [name for name in self.metadata if name not in METADATA]
        if unknown or len(set(self.metadata)) < len(self.metadata):
            raise ConfigurationError(f"expected metadata to be some of {METADATA}, each once, found {self.metadata!r}")
        object.__setattr__(self, "metadata", tuple(self.metadata))
        if self.format == "binary" and "key" in self.metadata:
            raise ConfigurationError("with format='binary' the key is a column already; leave it out of metadata")
        if self.writer_schemas and self.format != "avro":
            raise ConfigurationError(
                f"writer_schemas are for format='avro', found format={self.format!r}; leave them out"
            )
        self._check_columns()
        for number, text in self.writer_schemas.items():
            # a declaration that was stored has them as texts
            if not str(number).isdecimal() or int(number) >= 2**32:
                raise ConfigurationError(f"expected ids of schemas in writer_schemas, such as 7, found {number!r}")
            _avro_record(f"writer_schemas[{number}]", text)
        object.__setattr__(self, "writer_schemas", {int(number): text for number, text in self.writer_schemas.items()})

    def _check_columns(self) -> None:
        columns = [name.lower() for name in self.names]
        double = next((name for name in columns if columns.count(name) > 1), None)
        if double is not None:
            raise ConfigurationError(
                f"column {double} is there twice (Spark does not tell upper from lower case, and metadata come as "
                f"{[*self._metadata]}); name every column once"
            )

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        if self.format == "json":
            return [*(column.name for column in self.columns), *self._metadata]
        if self.format == "avro":
            return [*(field["name"] for field in self.avro["fields"]), *self._metadata]
        return ["key", "value", *self._metadata]

    @property
    def _metadata(self) -> Mapping[str, str]:
        return {f"_{name}": name for name in self.metadata}

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of JSON."""
        return parse_ddl(self.schema)

    @cached_property
    def avro(self) -> dict[str, Any]:
        """The schema of a record of Avro."""
        return _avro_record("avro_schema", self.avro_schema)


def _avro_record(setting: str, text: str) -> dict[str, Any]:
    """The schema of a record."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"expected {setting} to be JSON, found {error}") from None
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    named = isinstance(fields, list) and all(isinstance(one, dict) and "name" in one for one in fields)
    if not fields or not named:
        raise ConfigurationError(
            f"expected {setting} to be a record with fields, such as "
            '{"type": "record", "name": "purchase", "fields": [{"name": "id", "type": "long"}]}, found '
            f"{text[:80]!r}"
        )
    return dict(schema)


def decoded(
    records: DataFrame, form: RecordFormat, what: str, skip_broken: bool = False, place: str = _PLACE
) -> DataFrame:
    """The declared columns of records, which are as Kafka's connector reads them with their headers.

    A record that does not decode fails the action that meets it; see
    :func:`~airflow_barrier.sources.spark_errors.source_error`. With ``skip_broken`` it is left out: see
    :func:`broken`. ``what`` is read, for errors: ``source purchases``, and ``place`` SQL that says where a record is.
    """
    from airflow_barrier.sources.text.values import Values

    carried = [f"{column} AS {quoted(name)}" for name, column in form._metadata.items()]
    if form.format == "binary":
        return records.selectExpr("key", "value", *carried)
    found, values = _found(records, form)
    fields = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
    refused = "array()" if skip_broken else Values(what, place).fault("wrong")
    rows = f"explode(CASE WHEN wrong IS NULL THEN array(struct({fields})) ELSE {refused} END) AS record"
    return found.selectExpr(*carried, rows).selectExpr(
        *(f"record.{quoted(name)}" for name in values), *map(quoted, form._metadata)
    )


def broken(records: DataFrame, form: RecordFormat, what: str) -> DataFrame:
    """Return the records that :func:`decoded` leaves out or fails for, as they are, and the ``reason`` in words, which
    quote nothing of the record.
    """
    if form.format == "binary":
        return records.selectExpr(*_LETTER, "CAST(NULL AS STRING) AS reason").where("false")
    found, _ = _found(records, form)
    said = literal(f"{what}: ")
    reasons = f"explode(CASE WHEN wrong IS NULL THEN array() ELSE array(concat({said}, wrong)) END) AS reason"
    return found.selectExpr(*_LETTER, reasons)


def _found(records: DataFrame, form: RecordFormat) -> tuple[DataFrame, dict[str, str]]:
    """The records with ``wrong``, which says what is wrong with each, or is NULL; and SQL of the columns' values."""
    from airflow_barrier.sources.text.values import wrong_as

    found, wrong, values = (_json if form.format == "json" else _avro)(records.select(*_LETTER), form)
    none = wrong_as("a value", literal("none (add metadata=('key',) to get these)"))
    empty = "NULL" if "key" in form.metadata else none
    return found.selectExpr("*", f"CASE WHEN value IS NULL THEN {empty} ELSE {wrong} END AS wrong"), values


# --- JSON -----------------------------------------------------------------------------------------


def _json(records: DataFrame, form: RecordFormat) -> tuple[DataFrame, str, dict[str, str]]:
    from airflow_barrier.sources.text.json_objects import json_texts
    from airflow_barrier.sources.text.values import Values

    columns = dict(enumerate(form.columns))
    read = Values("", "", json=True)
    found = json_texts(
        records.selectExpr("*", "CAST(value AS STRING) AS line"), _LETTER, form.columns, "one JSON object"
    )
    # each step is evaluated once, since the next one uses it more than once
    texts = found.selectExpr(*_LETTER, "wrong AS unlike", *(f"get(texts, {number}) AS c{number}" for number in columns))
    readings = texts.selectExpr(
        "*", *(f"{read.reading(f'c{number}', one)} AS r{number}" for number, one in columns.items())
    )
    wrongs = [read.wrong_of(f"r{number}", f"c{number}", one) for number, one in columns.items()]
    wrong = ", ".join(["unlike", *(each for each in wrongs if each is not None)])
    return (
        readings,
        f"coalesce({wrong}, NULL)",
        {one.name: read.value_of(f"r{number}", one) for number, one in columns.items()},
    )


# --- Avro -----------------------------------------------------------------------------------------


def _avro(records: DataFrame, form: RecordFormat) -> tuple[DataFrame, str, dict[str, str]]:
    """Spark makes a record of NULLs of bytes that are none, and passes over what follows a record. So bytes that nobody
    can guess are put after each value, and read as one more field: it holds them only if all before it was one record.
    """
    from airflow_barrier.sources.text.values import wrong_as

    end = secrets.token_bytes(16)
    written = {number: as_written(_avro_record("", text), form.avro) for number, text in form.writer_schemas.items()}
    found = records.selectExpr(
        "*", f"{_from_avro(form, end, {each: was for each, (was, _) in written.items()})} AS record"
    )
    if any(schema != form.avro for schema, _ in written.values()):
        declared = records.selectExpr(f"{_from_avro(replace(form, writer_schemas={}), end, {})} AS record").schema[
            "record"
        ]
        found = found.withColumn("record", found["record"].cast(_nullable(declared.dataType)))
    ids = [f"X'00{number:08x}'" for number in form.writer_schemas]
    known, unread = f"substring(value, 1, 5) IN ({', '.join(ids)})", f"record.{_END} IS NULL"
    if ids:
        unknown = literal("the id of a schema that is neither in writer_schemas nor in the registry, ")
        number = f"concat({unknown}, conv(hex(substring(value, 2, 4)), 16, 10))"
        wrong = {
            "NOT startswith(value, X'00') OR length(value) < 5": literal("bytes that begin with no schema's id"),
            f"NOT {known}": number,
            **{
                f"startswith(value, X'00{each:08x}')": literal(f"a schema of another meaning, by which {other}")
                for each, (_, other) in written.items()
                if other is not None
            },
            unread: literal("bytes that are none by their writer's schema, or a schema that does not become this one"),
        }
    else:
        wrong = {
            f"{unread} AND startswith(value, X'00')": literal(
                "bytes that are none; if they begin with a schema's id, as Confluent's serializers put it there, give "
                "the source a registry or writer_schemas"
            ),
            unread: literal("bytes that are none"),
        }
    wrong[f"record.{_END} <> X'{end.hex()}'"] = literal("more bytes after it")
    names = count()
    for part in _fields(found.schema["record"].dataType):
        odd = _odd_text(f"record.{quoted(part.name)}", part.dataType, names)
        wrong |= {odd: literal("text that is no UTF-8")} if odd is not None else {}
    cases = " ".join(f"WHEN {condition} THEN {said}" for condition, said in wrong.items())
    # without a value the record is NULL, and so are its columns
    values = {each["name"]: f"record.{quoted(each['name'])}" for each in form.avro["fields"]}
    return found, wrong_as("a record of the Avro schema", f"CASE {cases} END"), values


def _nullable(kind: DataType) -> DataType:
    """The type without what may not be NULL, as which nothing can be cast."""
    from pyspark.sql.types import StructType

    def without(part: dict[str, Any]) -> dict[str, Any]:
        return part | {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in part}

    return StructType.fromJson(json.loads(kind.json(), object_hook=without))


def _from_avro(form: RecordFormat, end: bytes, readers: Mapping[int, Mapping[str, Any]]) -> str:
    """``readers``: as which schemas what was written by those of an id is read."""
    kind = {"type": "fixed", "name": "end", "namespace": "airflow_barrier", "size": len(end)}

    def ended(schema: Mapping[str, Any]) -> str:
        whole = json.dumps({**schema, "fields": [*schema["fields"], {"name": _END, "type": kind}]})
        return literal(whole.replace("$", "\\u0024"))  # SQL takes ${...} for a variable

    def read(value: str, schema: Mapping[str, Any], *options: str) -> str:
        settings = ", ".join(["'mode', 'PERMISSIVE', 'datetimeRebaseMode', 'CORRECTED'", *options])
        return f"from_avro(concat({value}, X'{end.hex()}'), {ended(schema)}, map({settings}))"

    if not form.writer_schemas:
        return read("value", form.avro)
    cases = " ".join(
        f"WHEN X'00{number:08x}' THEN "
        + read("substring(value, 6)", _avro_record("", schema), f"'avroSchema', {ended(readers[number])}")
        for number, schema in form.writer_schemas.items()
    )
    return f"CASE substring(value, 1, 5) {cases} END"


def _odd_text(value: str, kind: DataType, names: Iterator[int]) -> str | None:
    """SQL that says whether a text in the value is no UTF-8, which Spark takes as it comes; None without texts."""
    name = kind.typeName()
    if name == "string":
        return no_utf8(value)
    if name == "struct":
        parts = {f"{value}.{quoted(part.name)}": part.dataType for part in _fields(kind)}
        odd = [_odd_text(part, its, names) for part, its in parts.items()]
    elif name == "array":
        odd = [_odd_element(value, kind.elementType, names)]  # type: ignore[attr-defined]
    elif name == "map":
        odd = [
            _odd_element(f"map_keys({value})", kind.keyType, names),  # type: ignore[attr-defined]
            _odd_element(f"map_values({value})", kind.valueType, names),  # type: ignore[attr-defined]
        ]
    else:
        return None
    return " OR ".join(each for each in odd if each is not None) or None


def _odd_element(values: str, kind: DataType, names: Iterator[int]) -> str | None:
    name = f"e{next(names)}"
    odd = _odd_text(name, kind, names)
    return None if odd is None else f"exists({values}, {name} -> {odd})"


def _fields(kind: DataType) -> Sequence[StructField]:
    return kind.fields  # type: ignore[attr-defined,no-any-return]
