"""Groups of methods that are a transaction each: what a MetaService consists of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection

from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.rows import load_attempt, lock_topology


class OfTopology(Protocol):
    """A value that says which topology it is about."""

    @property
    def topology(self) -> str: ...


#: What a topology is locked by: its name, a value that says it, or the number of one of its attempts.
Subject: TypeAlias = str | int | OfTopology

_P = ParamSpec("_P")
_R = TypeVar("_R")
_G = TypeVar("_G", bound="Group")
_S = TypeVar("_S", bound=Subject)


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

    def _write_locked(self, subject: Subject, work: Callable[[Connection], _R]) -> _R:
        """Lock the topology of ``subject`` before anything is read, then do ``work`` in the same transaction."""
        return self._write(lambda connection: work(_with_lock(connection, subject)))

    @contextmanager
    def _writing_locked(self, topology: str) -> Iterator[Connection]:
        """A write transaction for a block of the caller's, which cannot be run again, with the topology locked."""
        if isinstance(self._db, Connection):
            yield _with_lock(self._db, topology)
            return
        self._db.open()
        with self._db.transaction(write=True) as connection:
            yield _with_lock(connection, topology)


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


def locked(method: Callable[Concatenate[_G, Connection, _S, _P], _R]) -> Callable[Concatenate[_G, _S, _P], _R]:
    """A method that writes as one of :func:`changes` does, and locks its topology first. Its first argument says which
    topology: see :data:`Subject`.
    """

    @functools.wraps(method)
    def transaction(self: _G, subject: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._write_locked(subject, lambda connection: method(self, connection, subject, *args, **kwargs))

    return transaction


def _with_lock(connection: Connection, subject: Subject) -> Connection:
    if isinstance(subject, int):
        subject = load_attempt(connection, subject)
    topology = subject if isinstance(subject, str) else subject.topology
    lock_topology(connection, topology)  # safety: topology-lock
    return connection
