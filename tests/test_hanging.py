"""A test that hangs fails soon, and the run says what it waited for, or what all processes were doing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def reference_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of the suites below are short, and said as they are."""
    monkeypatch.setenv("BARRIER_TEST_SLOWNESS", "1")


CONFTEST = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
pytest_plugins = ["tests.support.waiting", "tests.support.watchdog"]
"""
WAITING = """
import time
import pytest
from tests.support.waiting import wait_for

@pytest.fixture(scope="session")
def server():
    time.sleep(1.5)

def test_begins_after_its_server(server):
    time.sleep(1.5)

def test_waits_in_vain():
    wait_for("Godot", lambda: False)
"""
HANGING = """
import signal
import subprocess
import sys
import time
from threading import Event

CHILD = '''
import sys
from threading import Event
sys.path[:] = {path}
from tests.support import stacks
def waits_in_vain():
    Event().wait()
waits_in_vain()
'''

def test_hangs():
    subprocess.run([sys.executable, "-c", CHILD.format(path=sys.path)])

def test_cannot_even_fail():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    Event().wait()

def test_computes():
    until = time.monotonic() + 6
    while time.monotonic() < until:
        sum(range(1000))
"""


def run(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=tests)
    return pytester.runpytest_subprocess(*arguments)


def test_a_wait_ends_before_its_test_and_a_test_has_all_of_its_time(pytester: pytest.Pytester) -> None:
    done = run(pytester, WAITING, "-o", "timeout=2.5")
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(["E * AssertionError: waited 1 s in vain for Godot"])


def test_what_hangs_is_told_and_fails(pytester: pytest.Pytester) -> None:
    """Also in a process of several, of which none has the terminal."""
    done = run(pytester, HANGING, "-o", "hangs_after=4", "-n", "2", "-k", "hangs or computes")
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_hangs - Failed: nothing happened for 4 s*"])
    said = done.stderr.str()
    assert "nothing happened for 4 s in test_it.py::test_hangs" in said
    processes = re.split(r"^--- \d+ of \d+, \w+ in ", said, flags=re.MULTILINE)[1:]
    assert len(processes) == 4  # the run's first one, two that run tests, and the child
    assert sum(" in test_hangs\n" in one for one in processes) == 1
    assert sum(" in waits_in_vain\n" in one for one in processes) == 1


def test_a_process_that_cannot_even_fail_ends(pytester: pytest.Pytester) -> None:
    done = run(pytester, HANGING, "-o", "hangs_after=4", "-k", "cannot_even_fail")
    assert done.ret == 1
    assert "and it did not even fail: the process ends" in done.stderr.str()


def test_a_run_that_takes_too_long_tells_what_has_failed(pytester: pytest.Pytester) -> None:
    """Also of the processes that would go on for hours."""
    tests = "from threading import Event\ndef test_fails(): assert False\ndef test_is_long(): Event().wait()"
    done = run(pytester, tests, "-o", "ends_after=30", "-n", "2")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.assert_outcomes(failed=1)
    said = done.stderr.str()
    assert "the run has taken 30 s and ends" in said
    assert "in test_is_long\n" in said


def test_a_run_that_does_not_end_then_is_killed(pytester: pytest.Pytester) -> None:
    tests = """
import signal

def test_fails():
    assert False

def test_is_deaf_and_computes():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pass
"""
    done = run(pytester, tests, "-o", "ends_after=4", "-o", "hangs_after=2")
    assert done.ret == 1
    assert "and it did not end: it is killed; failed so far: test_it.py::test_fails" in done.stderr.str()
