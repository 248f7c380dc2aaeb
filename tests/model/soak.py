"""Schedules for as long as asked, on all cores:  python -m tests.model.soak --minutes 10

Each batch is one seed. One that fails is printed with the command that plays it again and shrinks it, and the soak goes
on.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import multiprocessing
import os
import queue
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Schedules
from tests.model.world import Bench

STEPS = 15
_BATCH = 100


@dataclass(frozen=True)
class Batch:
    """What became of the schedules of one seed."""

    seed: int
    schedules: int
    steps: int
    violation: str | None


def play(number: int, examples: int, *, steps: int = STEPS, shrink: bool = True) -> Batch:
    """The schedules of one seed: always the same ones. Needs `Schedules.bench`."""
    before = Schedules.ran.copy()
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    said, violation = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(said):
            run_state_machine_as_test(seed(number)(Schedules), settings=chosen)
    except Exception as error:  # whatever was raised, it is a violation: it is told, not swallowed
        violation = said.getvalue() + "".join(traceback.format_exception(error))
    ran = Schedules.ran - before
    return Batch(number, ran["schedules"], ran["steps"], violation)


def _work(
    first: int, stride: int, examples: int, steps: int, until: float, results: multiprocessing.Queue[Batch | None]
) -> None:
    Schedules.bench = Bench()
    gc.freeze()
    number = first
    parent = multiprocessing.parent_process()
    while time.monotonic() < until and parent is not None and parent.is_alive():
        results.put(play(number, examples, steps=steps, shrink=False))
        number += stride
    Schedules.bench.close()
    results.put(None)


def soak(minutes: float, workers: int, first: int, examples: int, steps: int) -> int:
    """Returns how many batches violated something."""
    begun = time.monotonic()
    until = begun + minutes * 60
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Batch | None] = context.Queue()
    processes = [
        context.Process(target=_work, args=(first + i, workers, examples, steps, until, results))
        for i in range(workers)
    ]
    for process in processes:
        process.start()
    total: Counter[str] = Counter()
    violated: list[int] = []
    running, newest, told = workers, first, begun
    while running:
        try:
            batch = results.get(timeout=10)
        except queue.Empty:
            if any(process.is_alive() for process in processes):
                continue
            break  # who died says so by its exit code
        if batch is None:
            running -= 1
            continue
        total.update(schedules=batch.schedules, steps=batch.steps)
        newest = max(newest, batch.seed)
        if batch.violation is not None:
            violated.append(batch.seed)
            print(
                f"{batch.violation}\nseed {batch.seed}: VIOLATION; again: {_again(batch.seed, examples, steps)}",
                flush=True,
            )
        if time.monotonic() - told > 10 or not running:
            told = time.monotonic()
            rate = total["schedules"] / (told - begun)
            print(
                f"{told - begun:6.0f} s: {total['schedules']} schedules, {total['steps']} steps, {len(violated)} "
                f"violations, {rate:.1f} schedules/s",
                flush=True,
            )
    for process in processes:
        process.join()
    print(
        f"{total['schedules']} schedules, {total['steps']} steps, {len(violated)} violations, seeds {first}..{newest} "
        f"of {examples} schedules of up to {steps} steps each, {workers} processes, "
        f"{(time.monotonic() - begun) / 60:.1f} minutes"
    )
    for number in violated:
        print(f"seed {number} violated an invariant; again: {_again(number, examples, steps)}")
    return len(violated) + sum(process.exitcode != 0 for process in processes)


def _again(number: int, examples: int, steps: int) -> str:
    command = f"{os.path.relpath(sys.executable)} -m tests.model.soak"
    return f"{command} --seed {number} --examples {examples} --steps {steps}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--examples", type=int, default=_BATCH, help="schedules of each seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a schedule, at most")
    parser.add_argument("--seed", type=int, help="play this one seed, and shrink what fails")
    chosen = parser.parse_args()
    if chosen.seed is None:
        return 1 if soak(chosen.minutes, chosen.workers, chosen.first, chosen.examples, chosen.steps) else 0
    Schedules.bench = Bench()
    batch = play(chosen.seed, chosen.examples, steps=chosen.steps)
    Schedules.bench.close()
    print(batch.violation or f"seed {batch.seed}: {batch.schedules} schedules, {batch.steps} steps, no violation")
    return 1 if batch.violation else 0


if __name__ == "__main__":
    sys.exit(main())
