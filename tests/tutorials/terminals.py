"""What a tutorial is played in: terminals of a person, who has no settings of Airflow's and Spark's."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import wait_for
from tests.tutorials.blocks import Block, Terminal

#: When a terminal's server is up, as the pages say it.
UP = {"spark": "Spark Connect server started", "airflow": "Airflow is ready"}


class Terminals:
    """``folder`` is where they begin, with `venv` in it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._numbers = count(1)

    def play(self, blocks: list[Block], adapted: Callable[[str], str], **settings: str) -> None:
        """Each block in the first terminal, or, if it is a server, in one of its own until that is up.

        ``settings``: environment variables of all terminals.
        """
        first = self._open(settings)
        first.run(Block(". venv/bin/activate\n", "", ()))
        for block in blocks:
            if block.word in UP:
                server = self._open(settings)
                server.type(block.code)
                wait_for(f"{UP[block.word]!r} in {server.log}", partial(_is_up, block.word, server))
            else:
                first.run(Block(adapted(block.code), block.word, block.expected))

    def _open(self, settings: dict[str, str]) -> Terminal:
        log = self.folder / f"terminal-{next(self._numbers)}.log"
        found = Terminal(self.folder, {**_environment(self.folder), **settings}, log)
        self._stack.callback(found.close)
        return found


def _is_up(word: str, server: Terminal) -> bool:
    return UP[word] in server.log.read_text()


def _environment(folder: Path) -> dict[str, str]:
    """A person's, without what the tests have set for Airflow and Spark; ports of Airflow's that others may have."""
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "SPARK", "BARRIER", "GRPC"))
    }
    logs = {f"AIRFLOW__LOGGING__{part}_LOG_SERVER_PORT": str(free_port()) for part in ("WORKER", "TRIGGER")}
    return {**mine, **logs, "HOME": str(folder)}
