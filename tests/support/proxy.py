"""A TCP proxy in front of PostgreSQL that cuts a connection at one statement, before or after the server ran it, or
holds the statement.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqlalchemy import make_url

from airflow_barrier.coordinator.settings import Settings
from tests.support.waiting import patience

#: Requests for encryption, which come before the first real message.
_ENCRYPTION = {80877103, 80877104}
_CANCEL = 80877102
#: The server waits for what comes next: another statement, or the rows of a COPY.
_WAITS = (b"Z", b"G")


@dataclass(frozen=True)
class Cut:
    """At the statement of that number: it never reaches the server, or (``answered``) its answer never comes back.

    ``number`` None: at the first COMMIT of a write transaction. ``last_words``: what the client is told before the end,
    if the statement never reached the server.
    """

    number: int | None
    answered: bool
    last_words: bytes = b""


@dataclass(frozen=True)
class Hold:
    """Before the statement of that number: it has ``come``, and waits until it may ``go_on``.

    ``answered``: it is the server's answer that waits; of a COPY that the server is ready for the rows.
    """

    number: int
    answered: bool = False
    come: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class Seen:
    """What went through since :meth:`Proxy.watching` began: the text of each statement, and whether the cut came.

    ``trips``: how often the server said that it waits for the client, which had waited for it.
    """

    cut: Cut | Hold | None
    statements: list[str] = field(default_factory=list)
    trips: int = 0
    happened: bool = False

    def is_due(self, statement: str) -> bool:
        """Whether the cut comes at this one, which is the last one seen."""
        if self.cut is None:
            return False
        if self.cut.number is not None:
            return self.cut.number == len(self.statements) - 1
        return statement.startswith("COMMIT") and any("pg_current_xact_id" in text for text in self.statements)

    @property
    def worth_cutting(self) -> list[Cut]:
        """Before each statement of a transaction, and after each COMMIT.

        Not before one that came already in the same transaction, on another row. And one cut is enough where a
        transaction only reads: it changes nothing, and is repeated from its beginning.
        """
        cuts = []
        reading, known = False, set[str]()
        for number, text in enumerate(self.statements):
            if text.startswith("BEGIN"):
                reading, known = "READ ONLY" in text, set()
            if text in known or (reading and known):
                continue
            known.add(text)
            cuts.append(Cut(number, answered=False))
            cuts += [Cut(number, answered=True)] * text.startswith("COMMIT")
        return cuts


class Proxy:
    """Listens on a port of its own for any number of connections. ``target`` may change: new ones go there.
    ``distance``: seconds by which each answer comes later, as from a server far away.

    >>> with Proxy(5432) as proxy, proxy.watching(Cut(3, answered=False)) as seen:  # doctest: +SKIP
    ...     work_through(proxy.port)
    """

    def __init__(self, target: int, distance: float = 0.0) -> None:
        self.target = target
        self.distance = distance
        self._lock = threading.Lock()
        self._seen = Seen(None)
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._refused = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Proxy:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(timeout=patience())
            assert not thread.is_alive()

    @contextlib.contextmanager
    def watching(self, cut: Cut | Hold | None = None) -> Iterator[Seen]:
        """Count statements from here on, and cut or hold once."""
        with self._lock:
            self._seen = seen = Seen(cut)
        try:
            yield seen
        finally:
            with self._lock:
                self._seen = Seen(None)

    def cut_all(self) -> None:
        """Every connection that is open now."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)

    def wait_for_refused(self, count: int) -> bool:
        """Until so many connections were asked for that there was no server for."""
        return all(self._refused.acquire(timeout=patience()) for _ in range(count))

    # --- inside -----------------------------------------------------------------------------------

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # it is down, as the client finds out now
                client.close()
                self._refused.release()
                continue
            connection = _Connection(client, server, threading.Event())
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            self._run(self._forward, connection)
            self._run(self._answer, connection)

    def _forward(self, connection: _Connection) -> None:
        """From client to server, message by message."""
        with self._closing(connection):
            if not connection.greet():
                return
            for kind, message in connection.messages(connection.client):
                statement = _statement(kind, message)
                if statement is not None:
                    cut = self._count(statement)
                    if isinstance(cut, Hold) and cut.answered:
                        connection.held = cut
                    elif isinstance(cut, Hold):
                        _hold(cut)
                    elif cut is not None and not cut.answered:
                        connection.client.sendall(cut.last_words)
                        return
                    elif cut is not None:
                        connection.silenced.set()
                connection.server.sendall(message)

    def _answer(self, connection: _Connection) -> None:
        """From server to client; nothing any more once the cut came, which waits for the server to be done."""
        with self._closing(connection):
            for kind, message in connection.messages(connection.server):
                if kind in _WAITS:
                    self._seen.trips += 1
                    time.sleep(self.distance)
                if connection.held is not None and kind in _WAITS:
                    hold, connection.held = connection.held, None
                    _hold(hold)
                if not connection.silenced.is_set():
                    connection.client.sendall(message)
                elif kind == b"Z":
                    return

    def _count(self, statement: str) -> Cut | Hold | None:
        with self._lock:
            seen = self._seen
            seen.statements.append(statement)
            if seen.happened or not seen.is_due(statement):
                return None
            seen.happened = True
            return seen.cut

    @contextlib.contextmanager
    def _closing(self, connection: _Connection) -> Iterator[None]:
        """Whoever is done first ends both directions."""
        both = (connection.client, connection.server)
        try:
            with contextlib.suppress(OSError):  # the other direction ended it
                yield
        finally:
            for each in both:
                _shut(each)
            if connection.last_to_leave():
                with self._lock:
                    self._sockets -= set(both)
                for each in both:
                    each.close()


def settings_through(proxy: Proxy, settings: Settings) -> Settings:
    """The settings of a deployment on PostgreSQL, by way of the proxy."""
    return replace(
        settings,
        metaservice_url=through(proxy, settings.metaservice_url),
        catalog_uri=through(proxy, settings.catalog_uri),
    )


def through(proxy: Proxy, url: str) -> str:
    """The URL of a database by way of the proxy; with its password, if it has one."""
    return make_url(url).set(port=proxy.port).render_as_string(hide_password=False)


@dataclass
class _Connection:
    client: socket.socket
    server: socket.socket
    silenced: threading.Event
    held: Hold | None = None
    _left: list[None] = field(default_factory=list)

    def last_to_leave(self) -> bool:
        self._left.append(None)  # atomic
        return len(self._left) == 2

    def greet(self) -> bool:
        """The start of a session, whose messages have no kind. False: there is none."""
        while True:
            head = _exactly(self.client, 8)
            if head is None:
                return False
            length, code = struct.unpack("!ii", head)
            if code in _ENCRYPTION:
                self.client.sendall(b"N")
                continue
            rest = _exactly(self.client, length - 8)
            if rest is None:
                return False
            self.server.sendall(head + rest)
            return code != _CANCEL

    @staticmethod
    def messages(source: socket.socket) -> Iterator[tuple[bytes, bytes]]:
        """Kind and whole text of each message until the end."""
        while (head := _exactly(source, 5)) is not None:
            (length,) = struct.unpack("!i", head[1:])
            rest = _exactly(source, length - 4)
            if rest is None:
                return
            yield head[:1], head + rest


def _hold(hold: Hold) -> None:
    hold.come.set()
    hold.go_on.wait(patience())


def _statement(kind: bytes, message: bytes) -> str | None:
    """The SQL that a message brings, if it does."""
    if kind == b"Q":
        return message[5:-1].decode()
    if kind == b"P":
        return message[5:].split(b"\0")[1].decode()
    return None


def _exactly(source: socket.socket, size: int) -> bytes | None:
    """So many bytes; None if the connection ends before."""
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        end.shutdown(socket.SHUT_RDWR)
