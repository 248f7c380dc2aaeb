"""A Pravega cluster as sources and sinks ask it: answers that are waited for a bounded time, and what went wrong in
words.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SinkUnavailableError, SourceUnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

#: Airflow brings no type of connection for Pravega.
CONN_TYPE = "generic"
#: Seconds for one answer, and until the controller takes a connection.
ANSWER = 30
_CONNECT = 10.0
_PORT = 9090
_NAME = re.compile(r"[A-Za-z0-9.-]{1,200}")


def name_fault(name: str) -> str | None:
    """Return why Pravega has no scope or stream of this name, as "expected …, found …"; None: it may have one.

    >>> name_fault("purchases"), name_fault("a_b")
    (None, "expected letters, digits, '.' and '-', 200 at most, found 'a_b'")
    """
    if _NAME.fullmatch(name):
        return None
    return f"expected letters, digits, '.' and '-', 200 at most, found {name!a}"


def address_of(what: str, credentials: Credentials | None) -> str:
    """The controller's address. ``what`` enters, such as `source purchases`, is for errors.

    Raises ConfigurationError.
    """
    if credentials is None:
        raise ConfigurationError(f"{what}: expected a connection of type {CONN_TYPE}, found none; define it")
    where = f"{what}: connection {credentials.conn_id}"
    if not credentials.host:
        raise ConfigurationError(f"{where}: expected the host of Pravega's controller, found none; name it")
    if credentials.login or credentials.password:
        raise ConfigurationError(
            f"{where}: expected no login and no password, found one: a Pravega that asks for them, or for TLS, cannot "
            "be entered by this version"
        )
    return f"{credentials.host}:{credentials.port or _PORT}"


def dataset(scope: str, stream: str, credentials: Credentials | None) -> tuple[str, str]:
    """Namespace and name of a stream in OpenLineage."""
    host = f"{credentials.host}:{credentials.port or _PORT}" if credentials and credentials.host else "unknown"
    return f"pravega://{host}", f"{scope}/{stream}"


class Client:
    """A Pravega cluster as ``credentials`` enter it. A context manager: leaving it ends the process that asks.

    :param what: who asks, such as `source purchases`.
    :param unavailable_error: for a cluster that does not answer.
    :param patience: seconds for one answer.

    Raises ConfigurationError for a connection that leads nowhere, and where Pravega's client is not installed; entering
    it raises ``unavailable_error``.
    """

    #: what the process runs
    module = "airflow_barrier.systems.pravega_process"

    def __init__(
        self,
        what: str,
        credentials: Credentials | None,
        unavailable_error: type[SourceUnavailableError | SinkUnavailableError],
        patience: int = ANSWER,
    ) -> None:
        self.what, self.address = what, address_of(what, credentials)
        self._conn_id = credentials.conn_id if credentials else ""
        self._unavailable_error, self._patience = unavailable_error, patience
        self._process: subprocess.Popen[bytes] | None = None
        if find_spec("pravega_client") is None:
            raise ConfigurationError(
                f"{what}: expected Pravega's client on this worker, found no module pravega_client; install "
                "'airflow-provider-barrier[pravega]' on a Python 3.10 or 3.11 for x86-64: the client was made for no "
                "later ones"
            )

    def __enter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        try:  # the client would wait for a controller that is away as long as for one that thinks
            socket.create_connection((host, int(port)), _CONNECT).close()
        except OSError as error:
            raise self.unavailable(str(error)) from None
        command = [sys.executable, "-m", self.module, f"tcp://{self.address}", str(self._patience)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
        return self

    def __exit__(self, *error: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, request: str, *arguments: Any) -> Any:
        """Return what a method of :class:`~airflow_barrier.systems.pravega_process.Session` answers."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise self.unavailable("an earlier question that was not answered")
        try:
            pickle.dump((request, arguments), process.stdin)
            process.stdin.flush()
            is_answered, answer = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.__exit__()
            raise self.unavailable(f"no answer within {self._patience} s") from None
        if not is_answered:
            raise self.unavailable(answer[:500])
        return answer

    def unavailable(self, found: str) -> SourceUnavailableError | SinkUnavailableError:
        return self._unavailable_error(
            f"{self.what}: expected Pravega at {self.address} to answer, found: {found}; see that it runs, and that "
            f"connection {self._conn_id} leads to its controller"
        )
