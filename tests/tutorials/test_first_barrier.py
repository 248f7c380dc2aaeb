"""The blocks of the tutorials that are played in `init`'s project, one after the other, on `airflow standalone` and a
Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.support.airflow import LONG
from tests.support.drawing import OPERATIONS, drawn
from tests.support.ports import free_port
from tests.support.spark import IVY
from tests.support.waiting import wait_for
from tests.tutorials.blocks import Block, Terminal, blocks_of

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
#: When a terminal's server is up, as the page says it.
UP = {"spark": "Spark Connect server started", "airflow": "Airflow is ready"}


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.timeout(LONG)
def test_what_the_tutorials_say_is_so(tmp_path: Path, terminals: ExitStack) -> None:
    (tmp_path / "venv").symlink_to(sys.prefix)  # in place of the block that installs
    logs = (tmp_path / f"terminal-{number}.log" for number in count(1))

    def terminal() -> Terminal:
        found = Terminal(tmp_path, environment(tmp_path), next(logs))
        terminals.callback(found.close)
        return found

    first = terminal()
    first.run(Block(". venv/bin/activate\n", "", ()))
    pages = ["first-barrier.md", *drawn(["last-tuesday.md"], "tutorials", lambda _: OPERATIONS["revision"])]
    install, *blocks = (block for page in pages for block in blocks_of((TUTORIALS / page).read_text()))
    assert install.word == "install"
    for block in blocks:
        if block.word in UP:
            server = terminal()
            server.type(block.code)
            wait_for(f"{UP[block.word]!r} in {server.log}", partial(is_up, block.word, server))
        else:
            first.run(Block(adapted(block.code), block.word, block.expected))


def is_up(word: str, server: Terminal) -> bool:
    return UP[word] in server.log.read_text()


def environment(folder: Path) -> dict[str, str]:
    """A person's, without what the tests have set for Airflow and Spark; ports of Airflow's that others may have."""
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "SPARK", "BARRIER", "GRPC"))
    }
    logs = {f"AIRFLOW__LOGGING__{part}_LOG_SERVER_PORT": str(free_port()) for part in ("WORKER", "TRIGGER")}
    return {**mine, **logs, "HOME": str(folder)}


def adapted(code: str) -> str:
    """Ports that nobody else on this machine has, and jars that were downloaded already."""
    ports = f"--spark-port {free_port()} --airflow-port {free_port()}"
    jars = f"echo 'spark.jars.ivy {IVY}' >> shop/spark.properties"
    return code.replace("airflow-barrier init shop\n", f"airflow-barrier init shop {ports}\n{jars}\n")
