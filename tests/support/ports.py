"""Ports for servers that tests start: each is given once, whichever processes and test runs of this machine ask."""

from __future__ import annotations

import os
import socket
import tempfile
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO

#: Not among those that a kernel gives to connections (`ip_local_port_range`), so none of these takes one meanwhile.
_PORTS = range(20_000, 30_000)
#: Open files whose locks say what is given; they end with this process.
_claims: list[IO[str]] = []


def free_port() -> int:
    """One that nobody listens on, and that is this process's as long as it lives."""
    folder = Path(tempfile.gettempdir()) / f"airflow-barrier-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in _PORTS:
        claim = (folder / str(port)).open("w")
        try:
            flock(claim, LOCK_EX | LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise AssertionError(f"expected a free port in {_PORTS}, found none")
