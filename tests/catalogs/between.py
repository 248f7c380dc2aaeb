"""What stands between a client and a REST catalog: a proxy over HTTP that misbehaves as it is told."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.rest_catalog import RestServer
from tests.support.waiting import patience

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Between:
    """``misbehave`` is asked with method, path and a call to the real server; it says the answer, None: the real one.

    ``asked``: methods and paths so far.
    """

    uri: str
    warehouse: str
    properties: tuple[tuple[str, str], ...] = ()
    misbehave: Callable[[str, str, Callable[[], Answer]], Answer | None] = lambda *_: None
    asked: list[tuple[str, str]] = field(default_factory=list)


def refusing(status: int, *, only: str = "") -> Callable[[str, str, Callable[[], Answer]], Answer | None]:
    """Answers with that code, to all requests or to those of one method."""
    body = b'{"error": {"message": "not for you", "type": "Refused", "code": %d}}' % status
    return lambda method, *_: (status, {}, body) if only in ("", method) else None


@contextmanager
def between(server: RestServer | None = None) -> Iterator[Between]:
    """In front of ``server``; without one all answers are ``misbehave``'s."""
    target = urlsplit(server.uri).netloc if server is not None else None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name not in ("Host", "Connection")}
            proxy.asked.append((self.command, self.path))

            def forward() -> Answer:
                assert target is not None
                connection = http.client.HTTPConnection(target, timeout=patience())
                connection.request(self.command, self.path, data, {**headers, "Accept-Encoding": "identity"})
                got = connection.getresponse()
                read = (got.status, {"Content-Type": got.headers.get("Content-Type", "")}, got.read())
                connection.close()
                return read

            status, said, body = proxy.misbehave(self.command, self.path, forward) or forward()
            self.send_response(status)
            for name, value in {**said, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # whoever asked has gone
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

        do_GET = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        warehouse = server.warehouse if server is not None else ""
        proxy = Between(f"http://127.0.0.1:{serving.server_port}", warehouse)
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            serving.shutdown()
            thread.join(timeout=10)
