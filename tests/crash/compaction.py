"""A compaction dies again and again, each time a few operations later; whoever comes next goes on with what it left.

A process of its own, like `lane.py`: it reads a folder from its standard input, and prints what it came to as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow_barrier.coordinator.compacting import Compactor, compact, open_compaction
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from tests.crash import instrument
from tests.crash.checking import check_files, expected_rows, rows_at
from tests.crash.instrument import BEFORE, DURING, watching
from tests.crash.lane import Orders, rehearse
from tests.crash.points import READS
from tests.crash.processes import Standing, Tell, fork, run
from tests.crash.scenarios import tasks_of
from tests.crash.shopping import COLUMNS, TASKS, Shop
from tests.support.replacing import replace_files
from tests.support.runs import run_of

DAYS = 2
#: A compaction dies so many operations later than the one before it.
_STEP = 3


def compacts(deployment: Deployment, shop: Shop, run: str) -> None:
    compactor = Compactor(run_of(run), run, "g0", "upkeep")
    barrier = open_compaction(deployment, shop.name, None, compactor)
    if barrier is None:
        return  # the one before died when all was done
    assert isinstance(barrier, Barrier), barrier
    done = compact(
        deployment, barrier, lambda table, branch: replace_files(deployment.tables, table, branch), compactor
    )
    assert done.over, done


def dies(shop: Shop, run: str, after: int) -> str | None:
    """At which operation a compaction died, after so many of those that change something; None: it ended before."""

    def work(tell: Tell) -> None:
        left = after

        def observe(when: str, operation: str) -> None:
            nonlocal left
            if when == DURING or (when == BEFORE and not operation.startswith(READS)):
                left -= 1
            if left < 0:
                tell({"at": f"{when} {operation}"})
                os.kill(os.getpid(), signal.SIGKILL)

        with (
            closing(Deployment.connect(shop.settings)) as deployment,
            watching(observe, shop.folder, shop.name),
        ):
            compacts(deployment, shop, run)

    code, said = fork(work).end()
    assert code in (0, -signal.SIGKILL), said
    return None if code == 0 else str(said[-1]["at"])


def look(shop: Shop, days: int, what: str) -> bool:
    """Readers see the rows of so many days, whole and with all their files. Whether the compaction is COMMIT."""
    expected = expected_rows([True] * days)[-1]

    def work(tell: Tell) -> None:
        with closing(Deployment.connect(shop.settings)) as deployment:
            tables = {name: deployment.tables.load(shop.table(name)) for name in COLUMNS}
            cache: dict[str, Any] = {}
            for level in (Level.READ_COMMITTED, Level.REPEATABLE_READ):
                answer = deployment.meta.answers.resolve(shop.name, level)
                for name, table in tables.items():
                    found = rows_at(table, answer.tables[shop.table(name)].snapshot_id, cache)
                    assert found == expected[name], f"{name} at {level.value}, barrier {answer.barrier_id}"
            for table in tables.values():
                check_files(table, cache)
            newest = deployment.meta.answers.readable(shop.name)[-1]
            tell({"compacted": newest.barrier_id > DAYS})
            if newest.barrier_id > DAYS:
                assert deployment.meta.barriers.get(shop.name, DAYS + 1).state is BarrierState.COMMIT
                left = {
                    name: [ref for ref in table.metadata.refs if parse_branch(ref)] for name, table in tables.items()
                }
                assert not any(left.values()), left

    return bool(run(work, what)[-1]["compacted"])


def main() -> None:
    instrument.install()
    orders = Orders(json.loads(sys.stdin.read())["folder"])
    rehearse(orders)
    shop = orders.shop(Path(orders.folder) / "compaction")
    run(lambda _: (shop.create(), [shop.land(day, True) for day in range(1, DAYS + 2)]), "creating tables")
    standing = Standing()
    for day in range(1, DAYS + 1):
        tasks_of(standing, shop, day, TASKS, "before the compaction")
    deaths: list[str] = []
    # as a retry of the same run, and as the next run
    while died := dies(shop, f"upkeep/{len(deaths) // 2}", _STEP * len(deaths)):
        deaths.append(died)
        look(shop, DAYS, f"after {died}")
    assert look(shop, DAYS, "in the end")
    tasks_of(standing, shop, DAYS + 1, TASKS, "after the compaction")
    standing.end()
    look(shop, DAYS + 1, "a day later")
    print(json.dumps({"deaths": deaths}), flush=True)


if __name__ == "__main__":
    main()
