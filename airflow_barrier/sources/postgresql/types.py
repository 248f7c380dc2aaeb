"""Types of PostgreSQL as Spark has them, and columns of texts as Arrow has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.ddl import SparkType

if TYPE_CHECKING:
    import pyarrow as pa

#: By their numbers in pg_type, which are the same in every database. All others are STRING, as PostgreSQL prints them.
_BY_OID = {
    16: "BOOLEAN",
    17: "BINARY",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INT",
    700: "FLOAT",
    701: "DOUBLE",
    1082: "DATE",
    1114: "TIMESTAMP_NTZ",
    1184: "TIMESTAMP",
}
_NUMERIC = 1700
#: What a numeric's modifier has beside its digits: a header's size.
_HEADER = 4
_MOST_DIGITS = 38
_INTEGERS = ("SMALLINT", "INT", "BIGINT")


def spark_type(oid: int, modifier: int) -> SparkType:
    """The type of a column. A ``numeric`` without digits, or of more than Spark's, is text: nothing of it is rounded.

    >>> str(spark_type(1700, 655366)), str(spark_type(1700, -1)), str(spark_type(2950, -1))
    ('DECIMAL(10,2)', 'STRING', 'STRING')
    """
    if oid != _NUMERIC or modifier < 0:
        return SparkType(_BY_OID.get(oid, "STRING"))
    digits, scale = (modifier - _HEADER) >> 16, (modifier - _HEADER) & 0x7FF
    if digits > _MOST_DIGITS or scale > digits:  # also a negative scale, which has eleven bits
        return SparkType("STRING")
    return SparkType("DECIMAL", (digits, scale))


def is_wider(new: SparkType, old: SparkType) -> bool:
    """Return whether each value of ``old`` is one of ``new``, and Spark casts it so whatever its conf."""
    if new == old:
        return True
    if new.name in _INTEGERS and old.name in _INTEGERS:
        return _INTEGERS.index(new.name) > _INTEGERS.index(old.name)
    if (new.name, old.name) == ("DOUBLE", "FLOAT"):
        return True
    if new.name == old.name == "DECIMAL":
        (digits, scale), (digits_before, scale_before) = new.numbers, old.numbers
        return scale >= scale_before and digits - scale >= digits_before - scale_before
    return False


def column_of(kind: SparkType, texts: Sequence[Any]) -> pa.Array:
    """The values that PostgreSQL printed, as bytes or str, in a session with ISO dates and time zone UTC.

    Raises pyarrow's ArrowInvalid, or ValueError, for a value that the type does not hold: an infinite date, a number
    that is none. Both quote it.
    """
    import pyarrow as pa

    plain = pa.array(texts, pa.string())
    convert = _CONVERSIONS.get(kind.name)
    return convert(plain) if convert else plain.cast(arrow_type(kind))


def arrow_type(kind: SparkType) -> pa.DataType:
    import pyarrow as pa

    if kind.name == "DECIMAL":
        return pa.decimal128(*kind.numbers)
    types: dict[str, pa.DataType] = {
        "BOOLEAN": pa.bool_(),
        "BINARY": pa.binary(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "DATE": pa.date32(),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "STRING": pa.string(),
    }
    return types[kind.name]


def _booleans(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(texts, "t")


def _bytes(texts: pa.Array) -> pa.Array:
    import pyarrow as pa

    # after \x, which bytea_output = hex begins with
    return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary())


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"BOOLEAN": _booleans, "BINARY": _bytes}
