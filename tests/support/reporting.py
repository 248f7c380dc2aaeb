"""Numbers that a run is judged by (crash points, schedules, mutants), shown in pytest's summary of the run."""

from __future__ import annotations

import pytest

_lines: list[str] = []


def report(line: str) -> None:
    """Show ``line`` at the end of the run, whatever else is captured."""
    _lines.append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section("measured")
        for line in _lines:
            terminalreporter.write_line(line)
