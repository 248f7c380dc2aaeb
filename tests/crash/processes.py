"""Child processes of a warm parent, and what they tell it over a pipe."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from select import select
from typing import Any

from tests.support.waiting import PATIENCE

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Child:
    """A forked process."""

    pid: int
    reader: int
    _buffer: bytes = field(default=b"", repr=False)

    def told(self) -> dict[str, Any] | None:
        """The next thing it says; None once it has ended."""
        while b"\n" not in self._buffer:
            ready, _, _ = select([self.reader], [], [], PATIENCE)
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"process {self.pid} was silent for {PATIENCE} s")
            data = os.read(self.reader, 65536)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait for its end: the exit code, or minus the signal that killed it, and what it said last."""
        said = []
        while (thing := self.told()) is not None:
            said.append(thing)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status), said

    def stopped(self) -> None:
        """Wait until it, which said that it will, has suspended itself."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"process {self.pid} ended ({status}) instead of suspending itself"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def fork(work: Callable[[Tell], None]) -> Child:
    """Run ``work`` in a child. It exits with 0, or with 1 after an exception, which is the last thing it tells."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader)
    code = 1
    try:
        os.close(reader)

        def tell(thing: dict[str, Any]) -> None:
            os.write(writer, json.dumps(thing).encode() + b"\n")

        try:
            work(tell)
            code = 0
        except BaseException as error:  # whatever it was, the parent is told
            kind = type(error)
            family = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
            tell({"error": f"{kind.__name__}: {error}", "family": family, "trace": traceback.format_exc()})
    finally:
        os._exit(code)


def run(work: Callable[[Tell], None], what: str) -> list[dict[str, Any]]:
    """``work`` in a child that has to succeed; returns what it told."""
    code, said = fork(work).end()
    assert code == 0, f"{what}: exit code {code}\n{said[-1].get('trace', said[-1]) if said else ''}"
    return said
