"""Child processes of a warm parent, and what they tell it over a pipe."""

from __future__ import annotations

import json
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from select import select
from typing import Any

from tests.support.stacks import stacks
from tests.support.waiting import patience

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
            seconds = patience()
            ready, _, _ = select([self.reader], [], [], seconds)
            if not ready:
                doing = stacks(self.pid)
                os.kill(self.pid, signal.SIGKILL)
                # no failed assertion, after which further scenarios are played: they might all wait as long
                raise TimeoutError(f"process {self.pid} was silent for {seconds:.0f} s:\n{doing}")
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
            tell(_told(error))
    finally:
        os._exit(code)


def _told(error: BaseException) -> dict[str, Any]:
    """Of an exception that is being handled."""
    kind = type(error)
    family = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return {"error": f"{kind.__name__}: {error}", "family": family, "trace": traceback.format_exc()}


def run(work: Callable[[Tell], None], what: str) -> list[dict[str, Any]]:
    """``work`` in a child that has to succeed; returns what it told."""
    code, said = fork(work).end()
    assert code == 0, f"{what}: exit code {code}\n{said[-1].get('trace', said[-1]) if said else ''}"
    return said


class Standing:
    """A child that nobody kills: it does one thing after the other, as it is asked.

    A new process needs as long to get warm (compiled SQL, copied memory) as a barrier takes. So what has to be new,
    because it dies, or looks at everything from outside, is forked, and this one does the rest. Work is a function of
    a module, or a :func:`functools.partial` of one, since it is sent over a pipe.
    """

    def __init__(self) -> None:
        orders, self._writer = os.pipe()
        self._said: list[dict[str, Any]] = []
        self._busy = False

        def serve(tell: Tell) -> None:
            with os.fdopen(orders, "rb") as stream:
                while (work := pickle.load(stream)) is not None:
                    try:
                        work(tell)
                    except Exception as error:
                        tell({"done": False, **_told(error)})
                    else:
                        tell({"done": True})

        self._child = fork(serve)
        os.close(orders)

    def ask(self, work: Callable[[Tell], object]) -> None:
        """Let it begin; :meth:`done` waits for the end."""
        self._end_it()  # what was asked before, by somebody who failed instead of waiting
        self._said, self._busy = [], True
        self._send(work)

    def heard(self) -> None:
        """Wait until it says something; that it is done, at the latest."""
        said = self._child.told()
        assert said is not None, "the standing process has ended"
        self._said.append(said)
        self._busy = "done" not in said

    def done(self, what: str) -> list[dict[str, Any]]:
        """Wait until it has done what it was asked, which has to succeed; returns what it told."""
        self._end_it()
        *said, last = self._said
        assert last["done"], f"{what}: {last['trace']}"
        return said

    def run(self, work: Callable[[Tell], object], what: str) -> list[dict[str, Any]]:
        self.ask(work)
        return self.done(what)

    def end(self) -> None:
        """By a word, since a closed pipe says nothing: children that were forked later have it open, too."""
        self._send(None)
        code, said = self._child.end()
        os.close(self._writer)
        assert code == 0, f"the standing process ended with {code}: {said}"

    def _end_it(self) -> None:
        while self._busy:
            self.heard()

    def _send(self, work: Callable[[Tell], object] | None) -> None:
        try:
            os.write(self._writer, pickle.dumps(work))
        except BrokenPipeError as error:
            raise AssertionError("the standing process has ended") from error
