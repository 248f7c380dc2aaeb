"""A tutorial as a person plays it: its code blocks in terminals, what they print against what it says."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.waiting import patience, wait_for

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
#: After a block's output: that the shell is done with it, and its exit code.
_DONE = "-- block done: "


@dataclass(frozen=True)
class Block:
    """``word`` follows `sh` in its first line: `until` (it is run again until it succeeds and prints what is expected),
    or the name of a terminal of its own, in which it stays. ``expected``: the lines of the text block after it.
    """

    code: str
    word: str
    expected: tuple[str, ...]

    def is_met_by(self, output: str) -> bool:
        """Each expected line is in the output, in parts that two or more blanks part: columns may be wider there."""
        parts = [part for line in self.expected for part in re.split(r"\s{2,}", line.strip())]
        return all(part in output for part in parts)


def blocks_of(text: str) -> list[Block]:
    """The shell blocks of a page. Raises ValueError for a block that is neither that nor what one prints."""
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        kind, _, word = fence["info"].partition(" ")
        if kind == "text" and found and not found[-1].expected:
            found[-1] = Block(found[-1].code, found[-1].word, tuple(fence["code"].splitlines()))
        elif kind == "sh":
            found.append(Block(fence["code"], word, ()))
        else:
            raise ValueError(f"expected a block `sh`, or `text` after one, found {fence['info']!r}")
    return found


class Terminal:
    """A shell that is open from block to block."""

    def __init__(self, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._out: IO[bytes] = log.open("wb")
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def type(self, code: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(code.encode())
        self._shell.stdin.flush()

    def run(self, block: Block) -> None:
        """Raises AssertionError if the block fails, or prints something else."""

        def is_met() -> bool:
            code, output = self._once(block.code)
            met = code == 0 and block.is_met_by(output)
            assert met or block.word == "until", f"expected {block}, found exit code {code} and: {output}"
            return met

        wait_for(f"{block}; the whole session: {self.log}", is_met)

    def _once(self, code: str) -> tuple[int, str]:
        begin = self.log.stat().st_size
        self.type(f"{code}echo '{_DONE}'$?\n")

        def done() -> tuple[int, str] | None:
            output, mark, rest = self.log.read_bytes()[begin:].decode(errors="replace").partition(_DONE)
            return (int(rest), output) if mark and rest.endswith("\n") else None

        return wait_for(f"the end of {code}; the whole session: {self.log}", done)

    def close(self) -> None:
        """As a window is closed: with all that runs in it."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            # each process of its session: a server may have a process group of its own
            subprocess.run(["pkill", f"-{signum}", "--session", str(self._shell.pid)], check=False)
            try:
                self._shell.wait(timeout=patience(20))
            except subprocess.TimeoutExpired:
                continue
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._out.close()
