"""Runs tests against mutants: one warm process that has everything imported, and a forked child a mutant, two at once.

Called as a script, in a process of its own: a test run has threads (of gRPC, of pools), and forking those is not safe.
Reads jobs as JSON from standard input and writes one JSON result a line to the file that is named as its argument.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_AT_ONCE = 2
#: Seconds for one child. A test of it has less, so this is for what hangs outside of tests.
_LONGEST = 600
#: A test that hangs says one of these.
HANGS = ("from pytest-timeout", "nothing happened for")
#: What a busy machine does to a test: no sign that a check is missed. The job gets another go.
_OUTAGES = (*HANGS, "UnknownException: (org.apache.iceberg.jdbc")


def main() -> None:
    sys.path[0] = ""  # not this folder, whose modules are known as tests.mutation.…
    sys.path.remove("")
    sys.path.append(str(ROOT))
    os.chdir(ROOT)
    folder = Path(sys.argv[1])
    jobs: list[dict[str, Any]] = json.load(sys.stdin)
    _warm_up(sorted({test for job in jobs for test in job["killers"]}), folder)
    running: dict[int, dict[str, Any]] = {}
    with (folder / "results.jsonl").open("w") as results:
        while jobs or running:
            while len(running) < _AT_ONCE and (job := _next(jobs, running)) is not None:
                jobs.remove(job)
                running[_fork(job, folder)] = job
            job = running.pop(os.wait()[0])
            said = folder / f"{job['number']}.json"
            result = json.loads(said.read_text()) if said.exists() else {"ended": "without a word"}
            if result.get("outage") and not job.get("again"):
                jobs.append({**job, "again": result["outage"], "number": f"{job['number']}-again"})
                continue
            results.write(json.dumps({**job, **result}) + "\n")
            results.flush()


def _next(jobs: list[dict[str, Any]], running: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """Those that use the same server one after another: their tests have tables of the same names."""
    busy = {job["server"] for job in running.values()} - {None}
    return next((job for job in jobs if job["server"] not in busy), None)


def _warm_up(tests: list[str], folder: Path) -> None:
    """Import what the children need; a test that does not exist ends it here."""
    code, output = _pytest(["--collect-only", *tests], folder / "warm", [])
    if code != 0:
        sys.exit(f"the killers cannot be collected:\n{output}")
    # pytest collects garbage twice when it ends: each child would look at, and so copy, all that was imported here
    gc.collect()
    gc.freeze()


def _fork(job: dict[str, Any], folder: Path) -> int:
    from tests.support.computing import a_core

    pid = os.fork()
    if pid:
        return pid
    try:
        with a_core():
            faulthandler.dump_traceback_later(_LONGEST, exit=True)
            result = _in_child(job, folder)
        (folder / f"{job['number']}.json").write_text(json.dumps(result))
    finally:
        os._exit(0)


def _in_child(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    from tests.mutation.applying import apply

    if job["mutant"] is not None:
        apply(**job["mutant"])
    seen = _Seen()
    if not job["killers"]:
        return {"ended": "without a test to run"}
    code, output = _pytest(["-x", *job["killers"]], folder / str(job["number"]), [seen])
    found = {"failed": seen.failed, "where": seen.where, "outage": seen.outage, "passed": seen.passed}
    return {"code": code, **found, "output": output[-3000:]}


def _pytest(arguments: list[str], folder: Path, plugins: list[object]) -> tuple[int, str]:
    import pytest

    folder.mkdir()
    output = folder / "output.txt"
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    # One database is enough for a mutant's MetaService, and SQLite's is the quicker one to make.
    common = ["-q", "-k", "not postgresql or delivering or sinks", f"--basetemp={folder / 'tmp'}"]
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            code = int(pytest.main([*common, *arguments], plugins=plugins))
        finally:
            sys.stdout.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
    return code, output.read_text()


class _Seen:
    """A plugin that remembers the first failure."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.where: str | None = None
        self.outage: str | None = None
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed and self.failed is None:
            self.failed, self.where = report.nodeid, report.when
            self.outage = next((sign for sign in _OUTAGES if sign in report.longreprtext), None)


if __name__ == "__main__":
    main()
