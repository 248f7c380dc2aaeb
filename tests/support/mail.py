"""An SMTP server that keeps what it is given."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage


class Mailbox(socketserver.ThreadingTCPServer):
    """``mails``: what has come, the oldest first."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.port = int(self.server_address[1])
        self.mails: list[EmailMessage] = []


class _Conversation(socketserver.StreamRequestHandler):
    server: Mailbox

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())

    def handle(self) -> None:
        self._say("220 mailbox")
        for line in self.rfile:
            command = line.strip().upper()[:4]
            if command == b"DATA":
                self._say("354 go on")
                self._keep()
            self._say("221 bye" if command == b"QUIT" else "250 fine")

    def _keep(self) -> None:
        lines = []
        for line in self.rfile:
            if line == b".\r\n":
                break
            lines.append(line.removeprefix(b"."))
        message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.server.mails.append(message)


def text_of(mail: EmailMessage) -> str:
    """Its body."""
    return "".join(str(part.get_content()) for part in mail.walk() if part.get_content_type() == "text/html").strip()


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
