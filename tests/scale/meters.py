"""What a piece of work costs in a database: not in time, which depends on who else is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event

#: Instructions of SQLite's machine are counted in steps of so many.
_GRAIN = 10

# Of this transaction: rows read by scans and by way of indexes, and rows written.
_TOUCHED = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del) "
    "FROM pg_stat_xact_user_tables"
)


@dataclass(frozen=True)
class Cost:
    """``touched``: rows read and written (PostgreSQL), or instructions run (SQLite)."""

    statements: int
    touched: int


class Meter:
    """Counts on every connection that is made while :func:`metering`."""

    def __init__(self) -> None:
        self._statements = 0
        self._touched = 0

    def of(self, work: Callable[[], object]) -> Cost:
        statements, touched = self._statements, self._touched
        work()
        return Cost(self._statements - statements, self._touched - touched)

    def connected(self, connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.set_progress_handler(self._tick, _GRAIN)

    def executed(self, *_: object) -> None:
        self._statements += 1

    def ending(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            with connection.connection.cursor() as cursor:
                cursor.execute(_TOUCHED)
                self._touched += int(cursor.fetchone()[0])
                # or the next transaction of this connection is charged with this one's rows too
                cursor.execute("SELECT pg_stat_force_next_flush()")

    def _tick(self) -> None:
        self._touched += _GRAIN


@contextmanager
def metering() -> Iterator[Meter]:
    meter = Meter()
    listeners = (
        ("connect", meter.connected),
        ("before_cursor_execute", meter.executed),
        ("commit", meter.ending),
    )
    for name, listener in listeners:
        event.listen(Engine, name, listener)
    try:
        yield meter
    finally:
        for name, listener in listeners:
            event.remove(Engine, name, listener)
