"""Engines and transactions of SQLAlchemy, as MetaService and catalog have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_barrier.systems.postgresql import CONNECT_ARGUMENTS

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, CursorResult, Engine, Executable

#: Seconds that a writer waits for another one's transaction.
LOCK_TIMEOUT = 30
#: Codes of a write on a server that only reads; the second is the answer to the very BEGIN of one.
_DEMOTED = ("25006", "0A000")


def postgresql_engine(url: URL) -> Engine:
    """Return an engine whose connections begin no transaction by themselves: see :func:`begun`.

    Raises ModuleNotFoundError where psycopg is not installed.
    """
    from sqlalchemy import create_engine, event

    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args=dict(CONNECT_ARGUMENTS))

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}s'")
        connection.commit()

    @event.listens_for(engine, "after_cursor_execute")
    def _go_to_last_answer(connection: Connection, cursor: Any, *_: Any) -> None:
        while cursor.nextset():
            pass

    @event.listens_for(engine, "handle_error")
    def _leave_demoted_server(context: Any) -> None:
        if getattr(context.original_exception, "sqlstate", None) in _DEMOTED:
            # Another one has taken over. Connections from before would stay with this one.
            context.is_disconnect = True

    return engine


@contextmanager
def begun(engine: Engine, beginning: Sequence[Executable]) -> Iterator[tuple[Connection, CursorResult[Any]]]:
    """Return a connection on which the statements of ``beginning`` were executed, and what the last one found. The end
    of the block commits, an exception rolls back.

    A connection that broke while nobody used it says so now, and another one takes its place: no statement before has
    changed anything. That saves a request which only asks whether it is there.

    >>> with begun(engine, [text("BEGIN")]) as (connection, _):  # doctest: +SKIP
    ...     connection.execute(...)
    """
    from sqlalchemy.exc import DBAPIError

    with ExitStack() as stack:
        for is_last in (False, True):
            try:
                with ExitStack() as trying:
                    connection = trying.enter_context(engine.connect())
                    trying.enter_context(connection.begin())
                    found = [connection.execute(statement) for statement in beginning][-1]
                    stack.push(trying.pop_all())
                break
            except DBAPIError as error:
                if is_last or not error.connection_invalidated:
                    raise
        yield connection, found
