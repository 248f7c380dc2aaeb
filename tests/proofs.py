"""What a checkout proves, a line each, in an order that stays when lines of code move: for `diff`.

After `make install`, before a change and after it:

    .venv/bin/python -m tests.proofs > /tmp/before    # and then > /tmp/after
    diff /tmp/before /tmp/after

A line with `<` is a proof that is gone, unless one with `>` is the same under a new name. Crash points: how often each
task does what (`tests/crash/counts.txt`, which a test compares with a recording). Mutants: each with the tests that
notice it. Tests: all that pytest collects, the orders of races by their cases.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.crash.points import COUNTS
from tests.mutation.test_mutants import MUTANTS


def main() -> None:
    lines = [*_crash_points(), *_mutants(), *_tests()]
    print("\n".join(sorted(lines)))


def _crash_points() -> Iterator[str]:
    for line in COUNTS.read_text().splitlines():
        yield f"crash points: {line}"


def _mutants() -> Iterator[str]:
    for name, mutant in MUTANTS.items():
        check, where = name.split()[0], mutant["mutant"]
        for test in mutant["killers"]:
            yield f"mutant: {check} ({where['path']} {where['label']}) by {test}"


def _tests() -> Iterator[str]:
    """Without those that are a mutant each: their names have the lines of the code."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if "::" in line and not line.startswith("tests/mutation/test_mutants.py::test_a_check_"):
            yield f"test: {line}"


if __name__ == "__main__":
    main()
