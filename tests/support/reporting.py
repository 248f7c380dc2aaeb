"""Numbers that a run is judged by (crash points, schedules, mutants), shown in pytest's summary of the run."""

from __future__ import annotations

from typing import Any

import pytest

_lines: list[str] = []
_KEY = "measured"


def report(line: str) -> None:
    """Show ``line`` at the end of the run, whatever else is captured."""
    _lines.append(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes: the one that prints is told
        output[_KEY] = list(_lines)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _lines.extend(getattr(node, "workeroutput", {}).get(_KEY, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section(_KEY)
        for line in _lines:
            terminalreporter.write_line(line)
