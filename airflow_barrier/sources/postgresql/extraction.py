"""Taking changes, or whole tables, out of a database into segments, by batches that a worker has room for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from psycopg import sql

from airflow_barrier.protocol import changes
from airflow_barrier.protocol.ddl import Column, SparkType, ddl_of, parse_ddl
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.postgresql.database import ALL_ROWS, Database
from airflow_barrier.sources.postgresql.pgoutput import UNSENT, Change, Relation, Transaction, Values, events
from airflow_barrier.sources.postgresql.segments import METADATA, NOTHING, ChangeFile, Segment, Segments
from airflow_barrier.sources.postgresql.types import arrow_type, column_of, spark_type

log = logging.getLogger(__name__)

#: Rows, and bytes of their values, of a table that are held at once.
_ROWS, _BYTES = 50_000, 32 * 1024 * 1024
#: About so many messages are in a segment: the server keeps them on its disk while they are read.
_MESSAGES = 2_000_000
_LOGGED = 1_000_000
_PARTITIONED = "p"


@dataclass(frozen=True)
class Copying:
    """The way from a database's tables into segments. ``as_text``: columns, as ``schema.table.column``, that come as
    text.
    """

    what: str
    database: Database
    segments: Segments
    as_text: frozenset[str]

    def copy(self, sheets: Sheets, table: str, where: sql.Composable, *, is_anew: bool) -> None:
        """Put the table's rows, those that ``where`` names, as insertions. ``is_anew``: all that there was before goes
        first.
        """
        relation, kind = self.database.relation(table)
        names = [column.name for column in relation.columns]
        sheets.know(relation)
        now = int(datetime.now(timezone.utc).timestamp() * 1_000_000)
        if is_anew:
            sheets.add(relation, changes.TRUNCATE, None, now, (None,) * len(names))
        began = sheets.last
        for row in self.database.copied(table, names, where, only=kind != _PARTITIONED):
            sheets.add(relation, changes.INSERT, None, now, row)
        log.info("%s: copied %s rows of %s", self.what, f"{sheets.last - began:,}", table)

    def columns_of(self, relation: Relation) -> tuple[Column, ...]:
        return tuple(
            Column(column.name, self._type(f"{relation.table}.{column.name}", column.type_oid, column.modifier))
            for column in relation.columns
        )

    def _type(self, name: str, oid: int, modifier: int) -> SparkType:
        return SparkType("STRING") if name in self.as_text else spark_type(*self.database.base_type(oid, modifier))


@dataclass(frozen=True)
class Extraction(Copying):
    """The same, also for the changes that a slot has."""

    tables: tuple[str, ...]
    slot: str
    publication: str

    def first(self, before: Segment, *, is_anew: bool = False, with_changes: bool = True) -> Segment:
        """Copy the tables as they are now. What was open then, and has ended since, comes from the slot: a transaction
        is in the copy, or else among the changes. Without them the copy stands alone, and nothing can follow it.

        ``is_anew``: all that there was before goes first.
        """
        if with_changes:
            self.database.wait_settled()  # safety: copied-or-after-the-slot
        with Sheets(self, replace(before, columns={})) as sheets:
            with self.database.snapshot() as (snapshot, until):
                for table in self.tables:
                    self.copy(sheets, table, ALL_ROWS, is_anew=is_anew)
            self.database.write(until)
            if with_changes:
                seen = Snapshot.of(snapshot)
                self._changes(sheets, before, until, None, lambda xid: not seen.sees(xid))
        return self._put(sheets.segment(until))

    def following(self, before: Segment, until: int, *, advance: bool) -> Iterator[Segment]:
        """Take what was committed after ``before``, up to position ``until``, and let go of what was taken. Without
        ``advance`` the slot stays where it is.
        """
        while before.end < until:
            most = _MESSAGES if advance else None
            with Sheets(self, before) as sheets:
                end = self._changes(sheets, before, until, most, lambda _: True)
            before = self._put(sheets.segment(end))
            if advance:
                self.database.advance(self.slot, before.end)
            yield before

    def _changes(
        self, sheets: Sheets, before: Segment, until: int, most: int | None, is_due: Callable[[int], bool]
    ) -> int:
        """Put what was committed after ``before``, up to position ``until``. Returns up to where it went: to ``until``,
        or to the commit with which there were ``most`` messages.

        Raises SourceDataError if the slot has another transaction where the last one of ``before`` was.
        """
        slot = self.database.slot(self.slot)
        confirmed = slot.confirmed if slot else NOTHING
        if confirmed < before.end:  # a server that was killed: what was taken out already does not count
            most = None
        transaction, end, is_taken = Transaction(0, 0, 0), before.end, False
        passed: Transaction | None = None
        with closing(self.database.messages(self.slot, self.publication, until, most)) as found:
            messages = _Counted(found)
            for event in events(messages):
                if isinstance(event, Change):
                    if is_taken and event.relation.table in self.tables:
                        sheets.put(event, transaction)
                elif isinstance(event, Transaction):
                    if event.lsn >= until:
                        break
                    transaction = event
                    if event.lsn < before.end:
                        passed = event
                    is_taken = event.lsn >= before.end and is_due(event.xid)
                else:
                    end = max(end, event)
                    sheets.commit = str(transaction)
        self._check_same(before, confirmed, passed)
        return end if most is not None and messages.count >= most else until

    def _check_same(self, before: Segment, confirmed: int, passed: Transaction | None) -> None:
        """``passed``: the last transaction up to ``before.end`` that the slot has, which begins at ``confirmed``. It is
        the one that was taken out last, or its place is not in the slot any more.
        """
        if before.commit is None:
            return
        taken = Transaction.of(before.commit)
        expected = taken if taken.lsn >= confirmed else None
        if passed != expected:
            raise SourceDataError(  # safety: same-history
                f"{self.what}: expected slot {self.slot} to have transaction {taken}, the last one that was taken out, "
                f"found {passed or 'none'} in its place: the database was restored from a copy of its disk. Have the "
                "source begin anew: airflow-barrier source resnapshot"
            )

    def _put(self, segment: Segment) -> Segment:
        self.segments.put(segment)
        return segment


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of PostgreSQL: the transactions before ``first`` have ended, those from ``next`` on had not begun, and
    of those between ``open`` were going on.
    """

    first: int
    next: int
    open: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """
        >>> Snapshot.of("100:105:101,103").sees(102), Snapshot.of("100:105:101,103").sees(103)
        (True, False)
        """
        first, following, among = text.split(":")
        return cls(int(first), int(following), frozenset(map(int, filter(None, among.split(",")))))

    def sees(self, xid: int) -> bool:
        """Return whether the committed transaction is in it. ``xid``: its last 32 bits; it is less than 2**31 away."""
        since = (xid - self.next + 2**31) % 2**32 - 2**31
        whole = self.next + since
        return whole < self.first or (since < 0 and whole not in self.open)


class _Counted:
    """Messages, and how many have come."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._messages = messages
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for message in self._messages:
            self.count += 1
            yield message


class Sheets:
    """The files of a segment while they are written: one a table, and another one when its columns change."""

    def __init__(self, copying: Copying, before: Segment) -> None:
        self._copying = copying
        self._before = before
        self.last = before.last
        self.commit = before.commit
        self._columns = dict(before.columns)
        self._known: dict[str, Relation] = {}
        self._open: dict[str, _Sheet] = {}
        self._files: list[ChangeFile] = []
        self._streams = ExitStack()

    def __enter__(self) -> Sheets:
        self._streams.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for table in [*self._open]:
            if error == (None, None, None):
                self._close(table)
            else:
                self._open[table].leave()
        self._streams.__exit__(*error)

    def segment(self, end: int) -> Segment:
        begin = self._before
        files = tuple(self._files)
        return Segment(begin.end, end, begin.last, self.last, begin.history, self.commit, self._columns, files)

    def know(self, relation: Relation) -> None:
        """Go on with a table as it is from now on."""
        if self._known.get(relation.table) is relation:
            return
        columns = self._copying.columns_of(relation)
        self._known[relation.table] = relation
        if self._columns.get(relation.table) != ddl_of(columns):
            self._close(relation.table)
            self._columns[relation.table] = ddl_of(columns)

    def put(self, change: Change, transaction: Transaction) -> None:
        relation, xid, at = change.relation, transaction.xid, transaction.committed_at
        self.know(relation)
        if change.before is None and change.after is None:
            self.add(relation, changes.TRUNCATE, xid, at, (None,) * len(relation.columns))
        if change.before is not None:
            unsent = () if relation.identity == "f" else relation.without_key
            self.add(relation, changes.DELETE, xid, at, change.before, unsent)
        if change.after is not None:
            row, unsent = change.after, ()
            if UNSENT in row:
                row, unsent = _without_unsent(change, row)
            self.add(relation, changes.INSERT, xid, at, row, unsent)

    def add(
        self,
        relation: Relation,
        kind: str,
        xid: int | None,
        at: int,
        row: tuple[Any, ...],
        unsent: tuple[str, ...] = (),
    ) -> None:
        sheet = self._open.get(relation.table)
        if sheet is None:
            sheet = self._open[relation.table] = self._new(relation.table)
        self.last += 1
        sheet.add((kind, _WEIGHTS[kind], self.last, xid, at, unsent), row)
        if self.last % _LOGGED == 0:
            log.info("%s: change %s", self._copying.what, f"{self.last:,}")

    def _new(self, table: str) -> _Sheet:
        uri, stream = self._streams.enter_context(self._copying.segments.new_file(self._before.end))
        return _Sheet(f"{self._copying.what}: table {table}", table, uri, self._columns[table], stream)

    def _close(self, table: str) -> None:
        if table in self._open:
            self._files.append(self._open.pop(table).close())


def _without_unsent(change: Change, row: Values) -> tuple[Values, tuple[str, ...]]:
    """Return the row with NULL for what was not sent, and its names. If its key has changed, the key's are among them:
    what was not sent is that of the row with the former key.
    """
    names = [column.name for column in change.relation.columns]
    unsent = [name for name, value in zip(names, row, strict=True) if value is UNSENT]
    for column, before, after in zip(change.relation.columns, change.before or row, row, strict=True):
        if column.is_key and before != after:
            unsent += [name for name in change.relation.key if name not in unsent]
            break
    return tuple(None if value is UNSENT else value for value in row), tuple(unsent)


_WEIGHTS = {changes.INSERT: 1, changes.DELETE: -1, changes.TRUNCATE: 0}


class _Sheet:
    """A Parquet file that is being written."""

    def __init__(self, what: str, table: str, uri: str, columns: str, stream: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._what, self._table, self._uri, self._ddl, self._stream = what, table, uri, columns, stream
        self._columns = parse_ddl(columns)
        fields = [(column.name, arrow_type(column.type)) for column in self._columns]
        kinds = [pa.list_(pa.string()) if column.type.parts else arrow_type(column.type) for column in METADATA]
        told = [(column.name, kind) for column, kind in zip(METADATA, kinds, strict=True)]
        self._schema = pa.schema([*fields, *told])
        self._writer = pq.ParquetWriter(stream, self._schema, compression="zstd")
        self._told: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = self._count = 0

    def add(self, told: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self._told.append(told)
        self._rows.append(row)
        self._bytes += sum([len(value) for value in row if value is not None])
        if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
            self._write()

    def close(self) -> ChangeFile:
        if self._rows:
            self._write()
        self._writer.close()
        return ChangeFile(self._table, self._uri, self._count, self._stream.tell(), self._ddl)

    def leave(self) -> None:
        """End without what is not written yet: the file does not count."""
        with suppress(Exception):
            self._writer.close()

    def _write(self) -> None:
        import pyarrow as pa

        values = zip(*self._rows, strict=True) if self._columns else ()
        arrays = [self._array(column, texts) for column, texts in zip(self._columns, values, strict=True)]
        told = zip(*self._told, strict=True)
        types = self._schema.types[len(arrays) :]
        arrays += [pa.array(each, kind) for each, kind in zip(told, types, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, self._schema))
        self._count += len(self._rows)
        self._told, self._rows, self._bytes = [], [], 0

    def _array(self, column: Column, texts: Sequence[Any]) -> Any:
        import pyarrow as pa

        try:
            return column_of(column.type, texts)
        except (pa.ArrowException, ValueError, OverflowError):
            first, last = self._told[0][2], self._told[-1][2]
        raise SourceDataError(  # safety: values-fit-their-type
            f"{self._what}: expected values of column {column.name} that {column.type} holds, found one among changes "
            f"{first} to {last} that it does not hold, such as an infinite date, a year after 9999 or a number that is "
            f"none; have the column come as text: as_text=['{self._table}.{column.name}']. Nothing of it is lost: the "
            "database keeps the changes until they are read"
        )
