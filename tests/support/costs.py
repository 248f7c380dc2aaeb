"""What each folder of tests cost: items, seconds in which a worker was busy with them, and seconds of CPU.

CPU is that of the worker and of all processes below it: what a server does meanwhile counts for the test that runs
meanwhile. Spark Connect servers have a line of their own, since all workers share one, below whichever started it. A
landing that is over its budget says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass

import psutil
import pytest

from tests.support.drawing import folder_of
from tests.support.slowness import slowness

#: Seconds of CPU that a landing of few files may take on the reference host (`slowness.py`). No folder has a budget of
#: its own: what it costs depends on what the landing changes and draws.
BUDGET = 2000
_CPU = "cpu"
_SERVERS = "Spark Connect servers"


class Meter:
    """Seconds of CPU since the last call: of the Spark Connect servers below this process, and of it and all else."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._last = self._now()

    def __call__(self) -> Counter[str]:
        before, self._last = self._last, self._now()
        return self._last - before  # without less than nothing: the time of who nobody waited for goes with it

    def _now(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for process in [self._me, *self._me.children(recursive=True)]:
            try:
                total[_kind(process)] += sum(process.cpu_times()[:4])
            except psutil.Error:
                continue  # it has ended since
        return total


def _kind(process: psutil.Process) -> str:
    is_server = process.name() == "java" and any("SparkConnectServer" in word for word in process.cmdline())
    return _SERVERS if is_server else _CPU


@dataclass
class _Cost:
    items: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, report: pytest.TestReport, cpu: float) -> None:
        self.items += report.when == "call"
        self.wall += report.duration
        self.cpu += cpu


_meter: Meter | None = None
_folders: dict[str, _Cost] = defaultdict(_Cost)
_workers: dict[str, _Cost] = defaultdict(_Cost)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    global _meter
    _meter = _meter or Meter()
    report = yield
    report.user_properties += [(kind, round(seconds, 3)) for kind, seconds in _meter().items()]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    took = dict(report.user_properties)
    cpu, servers = float(took.get(_CPU, 0.0)), float(took.get(_SERVERS, 0.0))
    _folders[folder_of(report.nodeid)].add(report, cpu)
    _folders[_SERVERS].cpu += servers
    _workers[getattr(report, "worker_id", "this process")].add(report, cpu + servers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not _folders:
        return
    terminalreporter.section("costs")
    terminalreporter.write_line(f"{'items':>6} {'wall s':>8} {'CPU s':>8}")
    for costs in (_workers, _folders):
        for name, cost in sorted(costs.items(), key=lambda one: -one[1].wall):
            terminalreporter.write_line(f"{cost.items:>6} {cost.wall:>8.1f} {cost.cpu:>8.1f}  {name}")
    took, allowed = sum(cost.cpu for cost in _workers.values()), BUDGET * slowness()
    if config.getoption("landing") and took > allowed:
        terminalreporter.write_line(
            f"the landing is over its budget of {BUDGET} s of CPU, times {slowness()} on this host: it took {took:.0f}",
            red=True,
        )
