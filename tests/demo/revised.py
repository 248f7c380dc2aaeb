"""The purchases of the sample with a person who corrects history, and somebody who reads all the while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.reading.session import consistent_session
from airflow_barrier.spark.epoch import Epoch, Job
from demo.cast import barrier_time
from demo.landing import LINES
from demo.oracle import Rows, compare, recompute, rows_of
from demo.steps import process, run_barrier
from tests.demo.conftest import Shopping

TOPOLOGY, SHOPPING = "shopping", "shop.shopping"
DAYS = 4
#: Seconds within which a reader gets an answer, on a machine that does much else.
_READ_WITHIN = 120.0
#: Seconds between two answers, unless somebody waits for one.
_PAUSE = 1.0
#: The smallest price that counts, in the version of job `price` that is brought in later.
LEAST = Decimal("1.00")

_QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

Line = dict[str, Any]
#: Table (without its namespace) -> its rows.
State = dict[str, Rows]


@dataclass
class RevisedShopping:
    """``landing`` is what the jobs read, ``truth`` the same as it would be had everything been right from the start:
    what the oracle reads. ``counts_dear_ones``: the barriers that were computed by the later version of job `price`.
    """

    shopping: Shopping
    landing: Path
    truth: Path
    jobs: dict[str, Job]
    counts_dear_ones: set[int] = field(default_factory=set)

    @property
    def deployment(self) -> Deployment:
        return self.shopping.deployment

    def run_history(self) -> None:
        for day in range(1, DAYS + 1):
            run_barrier(self.deployment, self.shopping.spark_url, self.shopping.fragment, barrier_time(day), self.jobs)

    # --- a person ---------------------------------------------------------------------------------

    def lines(self, day: int) -> list[Line]:
        """What should have landed on a day."""
        return list(pq.read_table(_file(self.truth, day), partitioning=None).to_pylist())

    def correct(self, folder: Path, day: int, change: Callable[[Line], Line | None]) -> int:
        """Put another line, or none, in the place of each that landed on a day. Returns how many that touched."""
        before = list(pq.read_table(_file(folder, day), partitioning=None).to_pylist())
        after = [changed for line in before if (changed := change(dict(line))) is not None]
        pq.write_table(pa.Table.from_pylist(after, schema=LINES), _file(folder, day), compression="zstd")
        return len(before) - sum(line in after for line in before)

    def begin(self, first: int, last: int | None = None, **wanted: Any) -> Revision:
        plan = plan_revision(self.deployment, Wanted(TOPOLOGY, first, last, **wanted))
        return begin_revision(self.deployment, plan, reason="corrected", actor="person")

    def replay(self, revision: Revision, day: int) -> None:
        """What the tasks of a day's run do."""
        barrier = self.deployment.meta.barriers.get(TOPOLOGY, day, revision.revision)
        for name, job in self.jobs.items():
            if name in revision.jobs:
                process(self.deployment, self.shopping.spark_url, barrier, name, job)

    def replay_all(self, revision: Revision) -> None:
        for barrier in self.deployment.meta.revisions.barriers(TOPOLOGY, revision.revision):
            self.replay(revision, barrier.barrier_id)

    def publish(self, revision: Revision) -> Swapped | NotStaged:
        return publish_revision(self.deployment, TOPOLOGY, revision.revision, actor="publisher")

    # --- what is there, and what must be there ----------------------------------------------------

    def expected(self, day: int) -> State:
        """What a recomputation from scratch gives at the barrier of a day."""
        files = (
            [file for number in range(1, day + 1) for file in (self.truth / kind).glob(f"date=*-{number:02d}/*")]
            for kind in ("shopping", "products")
        )
        state = recompute(*files)
        return of_dear_ones(state) if day in self.counts_dear_ones else state

    def at(self, day: int, revision: int | None = None) -> State:
        """What a reader at the barrier of a day gets; ``revision``: one that was replaced since."""
        found = self.deployment.meta.answers.resolve(TOPOLOGY, Level.REPEATABLE_READ, at=day, revision=revision)
        return {_short(table): _rows(self.deployment, table, one.snapshot_id) for table, one in found.tables.items()}

    def differences(self) -> list[str]:
        """Every table at every barrier, as readers and as engines that know tags get it, against the oracle."""
        found = []
        for day in range(1, DAYS + 1):
            expected, state = self.expected(day), self.at(day)
            assert set(state) == set(expected)
            found += [f"day {day}: {wrong}" for t in expected if (wrong := compare(t, expected[t], state[t]))]
            resolved = self.deployment.meta.answers.resolve(TOPOLOGY, Level.REPEATABLE_READ, at=day).tables
            tag = self.deployment.meta.barriers.get(TOPOLOGY, day).tag
            for table, one in resolved.items():
                tagged = self.deployment.tables.load(table).snapshot_by_name(tag)
                if tagged is None or tagged.snapshot_id != one.snapshot_id:
                    found.append(f"day {day}: {table} is read at {one.snapshot_id}, and tag {tag} is at {tagged}")
        return found

    @contextmanager
    def watched(self, day: int = DAYS) -> Iterator[None]:
        """Somebody reads all tables together for as long as the block lasts: they have to see first what was there
        before, whole, then what is there after it, whole, and nothing else.
        """
        before = (self.deployment.meta.barriers.get(TOPOLOGY, day).computed_in, self.at(day))
        with _Reader(self.shopping.settings) as reader:
            reader.wait_for_an_answer()
            yield
            reader.wait_for_an_answer()
        after = (self.deployment.meta.barriers.get(TOPOLOGY, day).computed_in, self.at(day))
        assert after[0] == before[0] + 1
        assert reader.seen == [before, after], [revision for revision, _ in reader.seen]


def of_dear_ones(state: State) -> State:
    """What the oracle says if only purchases from :data:`LEAST` on count as money that was paid."""
    prices: dict[tuple[int, int], Decimal] = {}
    counted: Rows = Rows()
    for (user, item, _, _, price, _), times in state["shopping"].items():
        if price >= LEAST:
            prices[user, item] = prices.get((user, item), Decimal(0)) + price * times
            counted[user, item] += times
    amounts = {(user, item): amount for user, item, amount, _ in state["user_item_amount"]}
    average = {
        pair: (price / amounts[pair]).quantize(Decimal("0.00001"), ROUND_HALF_UP) if amounts[pair] else None
        for pair, price in prices.items()
    }
    return {
        **state,
        "user_item_price": Rows((*pair, price, counted[pair]) for pair, price in prices.items()),
        "user_item_avg_price": Rows((*pair, average[pair]) for pair in prices),
    }


def quick(job: Job) -> Job:
    """The job with Spark set to small data: compiling each query costs more than running it."""

    def run(epoch: Epoch) -> None:
        for key, value in _QUICK.items():
            epoch.spark.conf.set(key, value)
        job(epoch)

    return run


class _Reader:
    """Reads at repeatable read in a thread of its own, with a connection of its own; ``seen``: the answers in order,
    each different from the one before it.
    """

    def __init__(self, settings: Settings) -> None:
        self.seen: list[tuple[int | None, State]] = []
        self._settings = settings
        self._answers = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._hurry = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reader")

    def wait_for_an_answer(self) -> None:
        """Until one has come that was asked for after this call."""
        self._hurry.set()
        with self._changed:
            enough = self._answers + 2  # the next one may have been under way already
            came = self._changed.wait_for(lambda: self._failed or self._answers >= enough, _READ_WITHIN)
        self._hurry.clear()
        if self._failed is not None:
            raise self._failed
        assert came, f"no answer within {_READ_WITHIN} s"

    def _run(self) -> None:
        try:
            deployment = Deployment.connect(self._settings)
            while not self._stopped:
                self._hurry.wait(_PAUSE)
                with consistent_session(deployment, TOPOLOGY, level=Level.REPEATABLE_READ.value) as session:
                    revision, snapshots = session.resolution.revision, session.snapshots
                    answer = (revision, {_short(t): _rows(deployment, t, one) for t, one in snapshots.items()})
                with self._changed:
                    if not self.seen or self.seen[-1] != answer:
                        self.seen.append(answer)
                    self._answers += 1
                    self._changed.notify_all()
            deployment.close()
        except BaseException as error:  # whoever waits raises it
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._hurry.set()
        self._thread.join()


def _rows(deployment: Deployment, table: str, snapshot_id: int | None) -> Rows:
    assert snapshot_id is not None, table
    return rows_of(deployment.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow())


def _short(table: str) -> str:
    return table.rpartition(".")[2]


def _file(folder: Path, day: int) -> Path:
    return folder / "shopping" / f"date=2017-01-{day:02d}" / "lines.parquet"
