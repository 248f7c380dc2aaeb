"""Servers for tests, each a process of its own: started until it answers, stopped with all that it started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from demo.jars import downloading
from tests.support.waiting import patience

MAVEN = "https://repo1.maven.org/maven2"
#: Where downloaded jars are kept, beside Spark's.
JARS = Path(os.environ.get("BARRIER_TEST_IVY") or Path(__file__).parents[2] / ".demo" / "ivy") / "catalogs"


@contextmanager
def serving(
    command: Sequence[str], url: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run ``command`` until the block ends; enter it once ``url`` answers (``tcp://HOST:PORT``: takes connections).

    Raises RuntimeError with the end of ``log``, to which the process writes, if it ends or does not answer.
    """
    with log.open("wb") as output:
        process = started(command, output, log.parent, environment)
    try:
        await_answer(process, url, log)
        yield
    finally:
        killed(process)  # nothing that such a server keeps is needed afterwards


def started(
    command: Sequence[str], output: IO[bytes], folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Return the process of a server, which works in ``folder`` and ends with the thread that starts it."""
    # Where Linux's setpriv is there, a killed test run takes its server along.
    dying_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return subprocess.Popen(
        [*dying_with_us, *command],
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )


def await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server answers. Raises RuntimeError with the end of its log if it ends or does not answer."""
    deadline = time.monotonic() + patience()
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            how = "does not answer" if process.poll() is None else f"ended with code {process.returncode}"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise RuntimeError(f"the server {how} at {url}:\n{tail}\n(the whole log: {log})")
        time.sleep(0.1)


def killed(process: subprocess.Popen[bytes]) -> None:
    """Kill a server, with all that it started; one that has ended is fine."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=patience())


def downloaded(path: str, digest: str) -> Path:
    """A file of Maven Central, with this SHA-256; downloaded once a machine. Raises RuntimeError for another one."""
    target = JARS / path.rpartition("/")[2]
    with downloading(JARS) as patiently:
        if not target.exists():
            patiently(_download, f"{MAVEN}/{path}", digest, target)
    return target


def _download(url: str, digest: str, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    with urllib.request.urlopen(url, timeout=120) as answer, part.open("wb") as file:
        shutil.copyfileobj(answer, file)
    found = sha256(part.read_bytes()).hexdigest()
    if found != digest:
        raise RuntimeError(f"{url}: expected SHA-256 {digest}, found {found}")
    part.replace(target)


def _answers(url: str) -> bool:
    try:
        if url.startswith("tcp://"):
            host, _, port = url.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10):
                return True
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
