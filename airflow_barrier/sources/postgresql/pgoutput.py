"""Messages of PostgreSQL's output plugin `pgoutput`, in version 1 of its protocol, which has whole transactions only.

Source: "Logical Replication Message Formats" in PostgreSQL's manual. Values are text, as the type's own output function
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple

#: The value of a column that an update left alone and that lies apart (TOAST): the server does not send it.
UNSENT: Any = object()

_BEGIN = Struct(">xQqI")
_OID = Struct(">xI")
_TRUNCATE = Struct(">xIB")
#: Microseconds from 1970 to 2000, where PostgreSQL's time begins.
_EPOCH = 946_684_800_000_000

Values = tuple[Any, ...]


class RelationColumn(NamedTuple):
    """A column as a message of a relation has it: ``modifier`` is the type's, -1 for none."""

    name: str
    is_key: bool
    type_oid: int
    modifier: int


@dataclass(frozen=True)
class Relation:
    """A table as it is from one message on. ``identity``: which old values an update or a delete sends: ``d`` those of
    the primary key, ``i`` of an index, ``f`` all, ``n`` none.
    """

    table: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The columns of which old values are sent; all of them with ``f``."""
        return tuple(column.name for column in self.columns if column.is_key)

    @cached_property
    def without_key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if not column.is_key)


class Transaction(NamedTuple):
    """``lsn``: where its commit stands, by which transactions are in order. ``committed_at``: microseconds since 1970.
    ``end``: the position after the commit, known with the end of the transaction only.
    """

    lsn: int
    committed_at: int
    xid: int

    def __str__(self) -> str:
        """
        >>> transaction = Transaction(26396936, 1764449247665772, 734)
        >>> Transaction.of(str(transaction)) == transaction
        True
        """
        return f"{self.lsn:X}/{self.committed_at}/{self.xid}"

    @classmethod
    def of(cls, text: str) -> Transaction:
        lsn, committed_at, xid = text.split("/")
        return cls(int(lsn, 16), int(committed_at), int(xid))


class Change(NamedTuple):
    """A row of ``relation`` that was ``before`` and is ``after``, None: it was not, or is not any more. Both None: all
    rows of the table went.
    """

    relation: Relation
    before: Values | None
    after: Values | None


def events(messages: Iterable[bytes]) -> Iterator[Transaction | Change | int]:
    """Yield each transaction when it begins, its changes in their order, and the position after its commit.

    Raises ValueError for what version 1 does not have.
    """
    relations: dict[int, Relation] = {}
    for data in messages:
        kind = data[:1]
        if kind == b"I":
            relation = relations[_OID.unpack_from(data)[0]]
            yield Change(relation, None, _row(data, 6)[0])
        elif kind == b"U":
            yield _update(relations[_OID.unpack_from(data)[0]], data)
        elif kind == b"D":
            relation = relations[_OID.unpack_from(data)[0]]
            yield Change(relation, _row(data, 6)[0], None)
        elif kind == b"B":
            lsn, committed_at, xid = _BEGIN.unpack_from(data)
            yield Transaction(lsn, committed_at + _EPOCH, xid)
        elif kind == b"C":
            yield int.from_bytes(data[10:18], "big")
        elif kind == b"R":
            oid, relation = _relation(data)
            relations[oid] = relation
        elif kind == b"T":
            count, _ = _TRUNCATE.unpack_from(data)
            for number in range(count):
                at = 6 + 4 * number
                yield Change(relations[int.from_bytes(data[at : at + 4], "big")], None, None)
        elif kind not in (b"O", b"Y"):  # where a transaction came from, and names of types
            raise ValueError(f"expected a message of pgoutput's version 1, found one of kind {kind!r}")


def _update(relation: Relation, data: bytes) -> Change:
    """The old row is there as a whole, as its key where that has changed, or not at all: then its key is the new
    one's.
    """
    if data[5:6] == b"N":
        after, _ = _row(data, 6)
        before = tuple(value if column.is_key else None for column, value in zip(relation.columns, after, strict=True))
        return Change(relation, before, after)
    before, at = _row(data, 6)
    after, _ = _row(data, at + 1)
    if relation.identity == "f":
        after = tuple(old if new is UNSENT else new for old, new in zip(before, after, strict=True))
    return Change(relation, before, after)


def _row(data: bytes, at: int) -> tuple[Values, int]:
    """The values of a row that begins at ``at``, and where it ends."""
    values: list[Any] = []
    count = int.from_bytes(data[at : at + 2], "big")
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # t: text
            begin = at + 5
            at = begin + int.from_bytes(data[at + 1 : begin], "big")
            values.append(data[begin:at])
        else:  # n: NULL, u: unsent
            values.append(None if kind == 0x6E else UNSENT)
            at += 1
    return tuple(values), at


def _relation(data: bytes) -> tuple[int, Relation]:
    (oid,) = _OID.unpack_from(data)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    count = int.from_bytes(data[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        column, at = _text(data, at + 1)
        modifier = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
        columns.append(RelationColumn(column, is_key, int.from_bytes(data[at : at + 4], "big"), modifier))
        at += 8
    # an empty name is that of pg_catalog
    return oid, Relation(f"{schema or 'pg_catalog'}.{name}", identity, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
