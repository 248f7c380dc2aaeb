"""Groups of methods that are a transaction each: what a MetaService consists of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from airflow_barrier.metaservice.database import Database

_P = ParamSpec("_P")
_R = TypeVar("_R")
_G = TypeVar("_G", bound="Group")


class Group:
    """A group of operations on one kind of rows. Each method is one transaction, which it opens itself.

    A group that is made over a :class:`Connection` joins the transaction that is open there: a method of another group
    calls it so.
    """

    def __init__(self, db: Database | Connection) -> None:
        self._db = db

    def _read(self, work: Callable[[Connection], _R]) -> _R:
        return work(self._db) if isinstance(self._db, Connection) else self._db.read(work)

    def _write(self, work: Callable[[Connection], _R]) -> _R:
        return work(self._db) if isinstance(self._db, Connection) else self._db.write(work)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A write transaction for a block of the caller's, which cannot be run again."""
        if isinstance(self._db, Connection):
            yield self._db
            return
        self._db.open()
        with self._db.transaction(write=True) as connection:
            yield connection


def reads(method: Callable[Concatenate[_G, Connection, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
    """A method that only reads: all its queries see one state."""

    @functools.wraps(method)
    def transaction(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._read(lambda connection: method(self, connection, *args, **kwargs))

    return transaction


def changes(method: Callable[Concatenate[_G, Connection, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
    """A method that writes, once, whatever breaks. It may run again if it certainly did not happen."""

    @functools.wraps(method)
    def transaction(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._write(lambda connection: method(self, connection, *args, **kwargs))

    return transaction
