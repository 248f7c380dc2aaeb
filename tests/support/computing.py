"""One semaphore for all child processes of a run that compute: no more of them at once than there are cores.

Crash lanes, mutants and explorations of races each start processes. Without it they would take the cores from each
other, and from Spark and Airflow, whose time-outs would then tell of nothing but that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from typing import IO

import pytest

_FOLDER = "BARRIER_TEST_CORES"
_CORES = os.cpu_count() or 1


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a run makes the folder; its children have it from their environment."""
    if _FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="airflow-barrier-cores-")
        os.environ[_FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop(_FOLDER))


@contextmanager
def a_core() -> Iterator[None]:
    """Wait for a core, and have it until the block, or the process, ends. Who has one asks for no other."""
    with ExitStack() as opened:
        cores = [opened.enter_context((Path(os.environ[_FOLDER]) / str(number)).open("w")) for number in range(_CORES)]
        if not any(map(_is_free, cores)):
            flock(cores[os.getpid() % _CORES], LOCK_EX)
        try:
            yield
        finally:
            for core in cores:  # closing is not enough: a child that was forked in the block has them open, too
                flock(core, LOCK_UN)


def _is_free(core: IO[str]) -> bool:
    """Whether it was: then it is ours."""
    try:
        flock(core, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True
