"""A test that hangs costs minutes: it is said what all processes of the run were doing, and the test fails.

It hangs if neither the process that runs it nor any below computes. A test that waits for Airflow is not noticed, since
Airflow computes all the time: such waits have bounds of their own (`waiting.py`).

A run that takes longer than it may (`ends_after`) says the same, and ends with all that has failed so far: whoever runs
the tests for us would end it without a word. A run that does not end then is killed. (pytest-timeout's
`session_timeout` is looked at between tests only, so a test that hangs is not ended by it.)
"""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from tests.support.costs import Meter
from tests.support.slowness import slowness
from tests.support.stacks import FILE, stacks, tell

#: Of a core, all processes together: servers that have nothing to do take less.
_IDLE = 0.05
#: How often it looks until it is sure. That may be two looks after the time, and still before the test's own is over.
_LOOKS = 12


class _Watchdog(threading.Thread):
    """Looks after the process that runs tests, and all below it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._seconds = seconds
        # Standard error as the run has it. While a test runs, pytest has put a file of its own in this place.
        self._stderr = os.dup(2)
        self._main = threading.get_ident()
        self.running: pytest.Item | None = None

    def run(self) -> None:
        pause, meter = self._seconds / _LOOKS, Meter()
        looks, before, mine = 0, None, 0.0
        while True:
            threading.Event().wait(pause)
            item, computed, looking = self.running, meter().total(), time.thread_time()
            quiet = computed - (looking - mine) < _IDLE * pause and not _waits_for_others()
            mine = looking
            looks, before = looks + 1 if quiet and item is before else 0, item
            if item is None:  # between tests
                looks = 0
            elif looks == _LOOKS:
                self._say(item, _everything())
                signal.pthread_kill(self._main, signal.SIGUSR2)
            elif looks == 2 * _LOOKS:
                self._say(item, "and it did not even fail: the process ends")
                _kill()

    def fail(self, *_: object) -> None:
        if self.running:
            pytest.fail(f"nothing happened for {self._seconds:.0f} s; standard error of the run says who did what")

    def _say(self, item: pytest.Item, text: str) -> None:
        title = f"nothing happened for {self._seconds:.0f} s in {item.nodeid}"
        os.write(self._stderr, f"\n===== {title}\n{text}\n=====\n".encode())


def _ours() -> list[psutil.Process]:
    """This process and all below it."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def _everything() -> str:
    """Of the whole run: a test may wait for a server that another of its processes has started."""
    first = psutil.Process(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    said = []
    for process in [first, *first.children(recursive=True)]:
        with suppress(psutil.Error, OSError):  # it has ended since
            said.append(_doing(process))
    return "\n".join(said)


def _doing(process: psutil.Process) -> str:
    status, place = process.status(), Path(f"/proc/{process.pid}/wchan").read_text()
    command = shlex.join(filter(None, process.cmdline()))[:200]  # a title leaves empty ones behind
    said = f"--- {process.pid} of {process.ppid()}, {status} in {place}: {command}"
    if status == psutil.STATUS_STOPPED:
        return said  # it would answer once it goes on
    if process.name() == "java":
        process.send_signal(signal.SIGQUIT)
        return f"{said}\n(its threads are in {os.readlink(f'/proc/{process.pid}/fd/1')})"
    is_python = Path(process.exe()).name.startswith("python")
    return f"{said}\n{stacks(process.pid)}" if is_python else said


def _waits_for_others() -> bool:
    """Whether one of ours waits for the lock of a file. Another process of the run has it, and is looked after, too."""
    waiting = {line.split()[5] for line in Path("/proc/locks").read_text().splitlines() if "->" in line}
    return any(str(process.pid) in waiting for process in _ours())


def _kill() -> NoReturn:
    for process in _ours()[1:]:
        with suppress(psutil.Error):
            process.kill()
    os._exit(1)


def _end(seconds: float, patience: float, stderr: int, failed: Callable[[], str]) -> NoReturn:
    os.write(stderr, f"\n===== the run has taken {seconds:.0f} s and ends\n".encode())
    # what a process does not say in time is left out
    telling = threading.Thread(target=lambda: os.write(stderr, f"{_everything()}\n=====\n".encode()), daemon=True)
    telling.start()
    telling.join(patience)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(patience)  # in which pytest says what has failed, and ends
    os.write(stderr, f"\n===== and it did not end: it is killed; failed so far: {failed() or 'nothing'}\n".encode())
    _kill()


def _failed(config: pytest.Config) -> str:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("failed", []) + reporter.stats.get("error", []) if reporter else []
    return ", ".join(report.nodeid for report in reports)


# --- pytest ---------------------------------------------------------------------------------------

_dog: _Watchdog | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hangs_after", "seconds in which nothing happens, until a test is taken to hang", default="240")
    parser.addini("ends_after", "seconds that the whole run may take, 0: for ever", default="0")


def pytest_configure(config: pytest.Config) -> None:
    global _dog
    if FILE not in os.environ:  # the first process of a run; its children have it from their environment
        descriptor, os.environ[FILE] = tempfile.mkstemp(prefix="airflow-barrier-stacks-")
        os.close(descriptor)
        config.add_cleanup(lambda: Path(os.environ.pop(FILE)).unlink(missing_ok=True))
        tell()
    _dog = _Watchdog(float(config.getini("hangs_after")) * slowness())
    longest = float(config.getini("ends_after"))
    if longest and not hasattr(config, "workerinput"):
        patience = float(config.getini("hangs_after"))
        timer = threading.Timer(longest, _end, (longest, patience, os.dup(2), partial(_failed, config)))
        timer.daemon = True
        timer.start()
        config.add_cleanup(timer.cancel)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    assert _dog is not None
    if not _dog.is_alive():  # not earlier: a process that only collects may fork afterwards
        signal.signal(signal.SIGUSR2, _dog.fail)
        _dog.start()
    _dog.running = item
    try:
        return (yield)
    finally:
        _dog.running = None
