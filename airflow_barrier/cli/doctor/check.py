"""What a check is, what it says, and running them all, each within its time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import BarrierError

if TYPE_CHECKING:
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.operators.group import BarrierGroup

#: Seconds for one check: the first statement on a cold Spark takes some of them.
SECONDS = 90.0


class Verdict(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line: ``about`` what, and what of it."""

    verdict: Verdict
    about: str
    text: str


@dataclass
class Case:
    """The subject of an examination, and what checks have found for those after them."""

    conn_id: str
    spark_conn_ids: Sequence[str]
    dag_files: Sequence[str]
    reader_uri: str | None = None
    settings: Settings | None = None
    groups: list[BarrierGroup] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """``look`` yields findings as it makes them. What it raises on purpose is a finding, too: that something failed.

    ``needs``: checks without which this one is not begun, if one of them failed. ``bounds_itself``: it has to run in
    the main thread.
    """

    about: str
    look: Callable[[Case], Iterator[Finding]]
    needs: tuple[str, ...] = ()
    bounds_itself: bool = False


def ok(about: str, text: str) -> Finding:
    return Finding(Verdict.OK, about, text)


def warn(about: str, text: str) -> Finding:
    return Finding(Verdict.WARN, about, text)


def fail(about: str, text: str) -> Finding:
    return Finding(Verdict.FAIL, about, text)


def skipped(about: str, why: str) -> Finding:
    return Finding(Verdict.SKIPPED, about, f"not looked at: {why}")


def examine(case: Case, checks: Sequence[Check], seconds: float = SECONDS) -> Iterator[Finding]:
    """Each finding as soon as it is there."""
    failed: dict[str, str] = {}  # and what it failed of
    for check in checks:
        missing = [need for need in check.needs if need in failed]
        if missing:
            failed[check.about] = failed[missing[0]]
            yield skipped(check.about, f"{failed[missing[0]]} failed")
            continue
        for finding in _findings(case, check) if check.bounds_itself else _bounded(case, check, seconds):
            if finding.verdict is Verdict.FAIL:
                failed[check.about] = check.about
            yield finding


def _findings(case: Case, check: Check) -> Iterator[Finding]:
    try:
        yield from check.look(case)
    except BarrierError as error:
        yield fail(check.about, str(error))
    except Exception as error:  # a check that breaks must not hide the others
        first = str(error).strip().partition("\n")[0][:300]
        yield fail(check.about, f"{type(error).__name__}: {first}")


def _bounded(case: Case, check: Check, seconds: float) -> Iterator[Finding]:
    """Run a check in a thread, which is left alone when its time is over: what it waits for may have no end."""
    found: queue.Queue[Finding | None] = queue.Queue()

    def look() -> None:
        for finding in _findings(case, check):
            found.put(finding)
        found.put(None)

    threading.Thread(target=look, name=f"doctor-{check.about}", daemon=True).start()
    while True:
        try:
            finding = found.get(timeout=seconds)
        except queue.Empty:
            yield fail(
                check.about, f"expected an answer within {seconds:.0f} s, found none; is what it asks hanging, or slow?"
            )
            return
        if finding is None:
            return
        yield finding
