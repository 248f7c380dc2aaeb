"""Correcting history: what a revision costs against computing everything again, who is disturbed, and the swap."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.revisions import RevisionMode
from benchmarks.polling import reading_beside
from benchmarks.report import Measured
from benchmarks.shop import TOPOLOGY, Shop
from benchmarks.swaps import measure_swaps
from demo.local_spark import CATALOG, LocalConnectServer, catalog_conf
from demo.places import Places

#: Barriers of the long history and of the short one, and how many of the long one's newest are revised.
_LONG, _SHORT, _REPLAYED = 120, 30, (1, 7, 30)
#: ... of the short one's.
_OF_SHORT = 7
#: Lines that land on a day, and how many of them are corrected.
_A_DAY, _CORRECTED = 500, 10
#: Barriers that are revised before anything is measured, since a Spark server is slow at first.
_WARM = 3
_OTHER = "short"


@dataclass(frozen=True)
class Revised:
    """One revision: how many barriers it replayed, seconds until all was staged and until it was published after that,
    rows that it wrote, and rows that are others at the head.
    """

    replayed: int
    staging: float
    publish: float
    written: int
    changed: int

    @property
    def seconds(self) -> float:
        return self.staging + self.publish


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    if quick:
        return [*_replaying(folder, 3, 2, (1,), 1, a_day=20, warm=1), *measure_swaps(folder, quick=quick)]
    return [
        *_replaying(folder, _LONG, _SHORT, _REPLAYED, _OF_SHORT, a_day=_A_DAY, warm=_WARM),
        *measure_swaps(folder, quick=quick),
    ]


def _replaying(
    folder: Path, long: int, short: int, replayed: Sequence[int], of_short: int, *, a_day: int, warm: int
) -> list[Measured]:
    places = {CATALOG: folder / "long", _OTHER: folder / "short"}
    settings = {}
    for name, place in places.items():
        place.mkdir()
        # all of it can be revised: what a policy drops is out of reach
        settings[name] = Settings.embedded(
            str(place / "lake"), catalog_name=name, spark_catalog=name, tag_policy="every=1"
        )
        (place / "lake").mkdir()
    with ExitStack() as stack:
        shop, other = (
            stack.enter_context(Shop.connected(settings[name], place / "landing", a_day))
            for name, place in places.items()
        )
        began = time.perf_counter()
        shop.grow(long)
        other.grow(short)
        growing = time.perf_counter() - began
        server = stack.enter_context(_spark(folder, places))
        _revise(other, server.url, warm)
        of_other = _revise(other, server.url, of_short)
        with reading_beside(settings[CATALOG]) as reads:
            found = [_revise(shop, server.url, count) for count in replayed]
            full = _revise(shop, server.url, None)
    rows = [
        _row(f"last {of_short} of {short}", of_other, full),
        *(_row(f"last {one.replayed} of {long}", one, full) for one in found),
        _row(f"full: {full.replayed} of {long}", full, full),
    ]
    each = [one.staging / one.replayed for one in (*found, full)]
    return [
        Measured(
            "Correcting history by a revision",
            "One root table, to which what has landed is appended, and two that get sums of each epoch's changes by "
            f"user and item (format version 2); {a_day} purchases a barrier; the demo's Spark Connect server. "
            f"The history of {long} "
            f"barriers, and another one of {short}, was written without Spark ({growing:.0f} s, not counted). "
            f"{_CORRECTED} lines of the first barrier that is replayed are corrected where they had landed; then the "
            "barriers are replayed from it to the head, one after the other, each job in a Spark session of its own, "
            "and the revision is published. *Full* is a revision of mode full: the tables computed from the first "
            "barrier on. Every time the tables were then equal to a computation from scratch. Airflow is not in it. "
            f"*Rows written* are those of the data files that the revision added in all tables, *changed* those that "
            f"are others at the head than before. One after the other in one run, after {warm} barriers that warm up.",
            [
                "replayed",
                "seconds",
                "of full",
                "a barrier, seconds",
                "publish, seconds",
                "rows written",
                "rows changed",
                "written per row changed",
            ],
            rows,
            [
                f"a barrier of the long history was replayed in {min(each):.2f} to {max(each):.2f} s, whatever their "
                f"number; {of_short} barriers after {short - of_short} others in "
                f"{of_other.staging / of_other.replayed:.2f} s each",
                f"goal: no read fails, and none that begins after the swap is stale; found {reads.counted()}",
            ],
        )
    ]


def _spark(folder: Path, places: dict[str, Path]) -> LocalConnectServer:
    """One server with a catalog for each history."""
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
    }
    for name, place in places.items():
        for key, value in catalog_conf(place / "lake", place / "lake" / "barrier.db").items():
            conf[key.replace(f".catalog.{CATALOG}", f".catalog.{name}")] = value
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    lake = places[CATALOG] / "lake"
    return LocalConnectServer(lake, lake / "barrier.db", ivy, conf=conf)


def _revise(shop: Shop, url: str, newest: int | None) -> Revised:
    """Correct lines of the first of the ``newest`` barriers, or of all by mode full, and revise from there."""
    before = shop.mains()
    days = len(shop.lines)
    first = days - newest + 1 if newest is not None else 1
    shop.correct(first, min(_CORRECTED, shop.a_day))
    began = time.perf_counter()
    full = newest is None
    wanted = Wanted(
        TOPOLOGY,
        None if full else first,
        mode=RevisionMode.FULL if full else RevisionMode.INCREMENTAL,
        max_replay_barriers=days,
    )
    meta = shop.deployment.meta
    plan = plan_revision(shop.deployment, wanted)
    revision = begin_revision(shop.deployment, plan, reason="wrong lines", actor="benchmark")
    for barrier in meta.revisions.barriers(TOPOLOGY, revision.revision):
        shop.replay(barrier, url)
    staged = time.perf_counter()
    swapped = publish_revision(shop.deployment, TOPOLOGY, revision.revision, actor="benchmark")
    done = time.perf_counter()
    assert isinstance(swapped, Swapped), swapped
    after = shop.mains()
    assert after == shop.recomputed()
    return Revised(
        replayed=days - first + 1,
        staging=staged - began,
        publish=done - staged,
        written=shop.rows_written(revision.revision),
        changed=sum((after[table] - before[table]).total() for table in after),
    )


def _row(what: str, one: Revised, full: Revised) -> list[str]:
    return [
        what,
        f"{one.seconds:.1f}",
        f"{one.seconds / full.seconds:.3f}",
        f"{one.staging / one.replayed:.2f}",
        f"{one.publish:.2f}",
        f"{one.written:,}",
        f"{one.changed:,}",
        f"{one.written / one.changed:,.0f}",
    ]
