"""What of its inlets is in a job's tables already is in no epoch of it, and everything else in exactly one."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, StartFromError
from airflow_barrier.protocol.starting import declared_start
from airflow_barrier.protocol.topology import Job
from tests.adopting.existing import EVENTS, MIRROR, NAME, Existing
from tests.sources.landing import day


def adopted(existing: Existing, number: float, *jobs: Job) -> None:
    """One barrier with both jobs, and the next: every row is in both tables once."""
    existing.run(number, *jobs)
    existing.land(9)
    existing.run(9, *jobs)
    assert existing.rows(EVENTS) == existing.all_landed()
    assert existing.rows(MIRROR) == existing.all_landed()


@pytest.mark.parametrize("attribute_by", ["mtime", "path"])
@pytest.mark.parametrize(
    ("in_it", "start_from"),
    [
        ((1, 2, 3), "latest"),
        ((1, 2), day(2)),
        ((1, 2), {"landing": day(2)}),
        ((1, 3), {"landing": {"files": ["date=2017-01-01/1.parquet", "date=2017-01-03/3.parquet"]}}),
    ],
)
def test_files_that_are_in_the_table_are_not_read_again(
    existing: Existing, attribute_by: str, in_it: tuple[int, ...], start_from: Any
) -> None:
    existing.options = {"attribute_by": attribute_by}
    for number in (1, 2, 3):
        existing.land(number)
    existing.load_plainly(*in_it)
    adopted(existing, 3, existing.load_job(start_from), existing.mirror_job())


@pytest.mark.kills("start-is-known")
def test_tables_that_hold_rows_do_not_join_without_a_word_and_nothing_is_opened(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    told = (
        rf"job load \(DAG load_dag\) joins with tables that hold rows: {EVENTS} at snapshot {existing.main(EVENTS)} "
        r"\(1 rows\).*'earliest'.*'latest'.*a datetime.*\{inlet: position\}"
    )
    with pytest.raises(StartFromError, match=told):
        existing.try_to_open(1, existing.load_job())
    assert existing.deployment.meta.barriers.head(NAME) is None
    assert set(existing.deployment.tables.load(EVENTS).refs()) == {"main"}


@pytest.mark.kills("joins-where-it-said")
def test_an_empty_table_begins_with_everything_also_where_its_source_is_not_empty(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    adopted(existing, 1, existing.load_job("latest"), existing.mirror_job())


def test_a_table_without_rows_is_empty_although_it_has_snapshots(existing: Existing) -> None:
    existing.load_plainly(1)
    existing.deployment.tables.load(EVENTS).delete()
    existing.land(1)
    existing.run(1, existing.load_job())
    assert existing.rows(EVENTS) == [10]


@pytest.mark.parametrize("how", ["earliest", "latest", "timestamp", "cut"])
def test_what_a_table_holds_of_another_table(existing: Existing, how: str) -> None:
    existing.land(1)
    existing.load_plainly(1)
    if how != "earliest":
        existing.mirror_plainly()
    iceberg = existing.deployment.tables.load(EVENTS)
    snapshot = existing.main(EVENTS)
    moment = day(0) + timedelta(milliseconds=iceberg.history()[-1].timestamp_ms - day(0).timestamp() * 1000)
    existing.land(2)
    if how in ("timestamp", "cut"):
        existing.load_plainly(2)  # mirror has not run since
    start_from = {"timestamp": moment, "cut": {EVENTS: snapshot}}.get(how, how)
    adopted(existing, 2, existing.load_job(day(2) if how in ("timestamp", "cut") else day(1)),
            existing.mirror_job(start_from))  # fmt: skip


@pytest.mark.kills("log-reaches-back")
def test_a_table_whose_log_does_not_reach_back_is_not_guessed_at(existing: Existing) -> None:
    existing.load_plainly(1)
    existing.load_plainly(2)
    existing.mirror_plainly()
    tables = existing.deployment.tables
    oldest = tables.load(EVENTS).snapshots()[0].snapshot_id
    tables.load(EVENTS).maintenance.expire_snapshots().by_id(oldest).commit()
    jobs = existing.load_job("latest"), existing.mirror_job(day(0))
    with pytest.raises(SourceDataError, match=r"expected its log to tell where main was.*found that it begins later"):
        existing.try_to_open(1, *jobs)


def test_a_moment_before_a_tables_first_barrier_is_before_all_of_it(existing: Existing) -> None:
    """Its branches began at an empty snapshot, which `main` was never at."""
    existing.land(1)
    existing.run(1, existing.load_job())
    adopted(existing, 2, existing.load_job(), existing.mirror_job(day(0)))


@pytest.mark.kills("used-up-by-the-baseline")
def test_an_aborted_first_barrier_is_joined_again_at_the_same_place(existing: Existing) -> None:
    """`latest` was said of the tables as they are: what lands after the first try is not in them."""
    existing.land(1)
    existing.load_plainly(1)
    jobs = existing.load_job("latest"), existing.mirror_job()
    first = existing.open(1, *jobs)
    abort_barrier(existing.deployment, NAME, first.barrier_id, reason="bad day", actor="test")
    existing.land(2)
    existing.land(3)
    adopted(existing, 3, *jobs)
    joined = [entry.detail for entry in existing.deployment.meta.audit.newest(NAME) if entry.event == "job joined"]
    assert [(each["job"], each["externals"]) for each in joined if each["job"] == "load"] == [
        ("load", {"landing": {"time": day(1).isoformat()}})
    ] * 2


def test_plain_writes_after_an_aborted_first_barrier_count_as_well(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    jobs = existing.load_job("latest"), existing.mirror_job()
    first = existing.open(1, *jobs)
    abort_barrier(existing.deployment, NAME, first.barrier_id, reason="too early", actor="test")
    existing.land(2)
    existing.load_plainly(2)
    adopted(existing, 2, *jobs)


@pytest.mark.kills("source-of-its-own")
def test_a_job_that_joins_later_does_not_take_part_in_cuts_that_others_have_made(existing: Existing) -> None:
    existing.land(1)
    existing.run(1, existing.load_job())
    second = Job("again", "load_dag", outlets=(MIRROR,), externals=existing.load_job().externals)
    with pytest.raises(StartFromError, match=r"job again .*source landing has been cut.*name='landing_again'"):
        existing.try_to_open(2, existing.load_job(), second)


@pytest.mark.kills("source-of-its-own")
def test_a_job_that_comes_back_to_a_source_that_others_went_on_reading_is_told_so(existing: Existing) -> None:
    load = existing.load_job()
    other = Job("other", "load_dag", outlets=(MIRROR,), externals=load.externals)
    existing.land(1)
    existing.run(1, load, other)
    existing.deployment.meta.topologies.leave(NAME, "load_dag", "other", "away", "test")
    existing.land(2)
    existing.run(2, load)
    existing.deployment.meta.topologies.readmit(NAME, "load_dag", "other", "test")
    with pytest.raises(StartFromError, match=r"job other .*source landing has been cut.*name='landing_other'"):
        existing.try_to_open(3, load, other)


def test_a_job_without_inlets_is_not_asked_what_its_tables_hold(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    existing.open(1, Job("whole", "load_dag", outlets=(EVENTS,)))


@pytest.mark.kills("source-of-its-own")
def test_jobs_that_join_with_one_source_begin_at_one_place_of_it(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    second = Job("again", "load_dag", outlets=(MIRROR,), externals=existing.load_job().externals)
    with pytest.raises(
        StartFromError, match=r"share source landing begin at the same place.*again at earliest, load at"
    ):
        existing.try_to_open(1, existing.load_job("latest"), second)


@pytest.mark.kills("resumes-on-own-rows")
def test_a_job_that_comes_back_goes_on_where_it_left_off(existing: Existing) -> None:
    meta = existing.deployment.meta
    existing.land(1)
    both = existing.load_job(), existing.mirror_job()
    existing.run(1, *both)
    existing.land(2)
    existing.run(2, both[0])
    existing.land(3)
    existing.run(3, *both)
    assert existing.rows(MIRROR) == existing.all_landed() == existing.rows(EVENTS)
    existing.run(4, existing.mirror_job("earliest"), existing.load_job())
    existing.run(5, existing.load_job())
    existing._append(MIRROR, [7])
    with pytest.raises(StartFromError, match=f"{MIRROR} at snapshot"):
        existing.try_to_open(6, *both)
    existing.run(6, both[0], existing.mirror_job("latest"))
    assert existing.rows(MIRROR) == sorted([*existing.all_landed(), 7])
    assert meta.starts.last(NAME, "load") is not None


def test_a_start_after_the_barrier_or_of_unknown_things_is_refused(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    for start_from, told in (
        (day(5), "not after the barrier"),
        ({"landing": {"files": ["nope.parquet"]}}, "nope.parquet"),
        ({"landing": 4711}, "expected start_from {'files'"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            existing.try_to_open(1, existing.load_job(start_from))
    existing._append(MIRROR, [1])
    with pytest.raises(ConfigurationError, match=r"a snapshot of old\.events by its id, found 4711"):
        existing.try_to_open(1, existing.load_job("latest"), existing.mirror_job({EVENTS: 4711}))


@pytest.mark.parametrize(
    ("start_from", "told"),
    [
        ("newest", "expected start_from='earliest'"),
        (day(1).replace(tzinfo=None), "with a time zone"),
        ({"a": "latest"}, "name each of its inlets, a, b, found a"),
    ],
)
def test_declarations_that_mean_nothing_fail_while_the_dag_is_parsed(start_from: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        declared_start("job", start_from, ["a", "b"])


@pytest.mark.parametrize("seed", range(12))
def test_whatever_lands_when_and_whatever_is_aborted_each_file_is_in_one_place(existing: Existing, seed: int) -> None:
    """Barriers are opened and given up at random, over a table that is filled up to some day."""
    dice = random.Random(seed)
    existing.options = {"attribute_by": dice.choice(["mtime", "path"])}
    held, meta = dice.randrange(6), existing.deployment.meta
    for number in range(1, 7):
        existing.land(number)
    in_it = [number for number in range(1, 7) if number <= held]
    if in_it:
        existing.load_plainly(*in_it)
    # said in advance only where the table holds something; `latest` means the first barrier's day
    start_from: Any = dice.choice([day(held), "latest"]) if in_it else None
    first = max(held, 1) if start_from == "latest" else dice.randint(max(held, 1), 6)
    counted: Counter[int] = Counter(in_it)
    now = first
    while now <= 6:
        barrier = existing.open(now, existing.load_job(start_from))
        if dice.random() < 0.4:
            abort_barrier(existing.deployment, NAME, barrier.barrier_id, reason="dice", actor="test")
        else:
            cut = meta.cuts.of(NAME, barrier.barrier_id)["landing"]
            counted.update(int(entry["path"].split("/")[-1].split(".")[0]) for entry in cut.end["files"])
            existing.process(barrier, "load")
            existing.commit(barrier)
        now += 1
    last = existing.run(7, existing.load_job(start_from))
    cut = meta.cuts.of(NAME, last.barrier_id)["landing"]
    counted.update(int(entry["path"].split("/")[-1].split(".")[0]) for entry in cut.end["files"])
    assert counted == Counter(range(1, 7))
    assert existing.rows(EVENTS) == existing.all_landed()
