"""Two jobs that run already are taken in one by one while they run, and leave again: every row counts once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.adopting import AdoptionPlan, TableStep, carry_out, plan_adoption
from airflow_barrier.coordinator.joining import StaysOut, take_part
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.protocol.errors import StartFromError, StillReadError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.tables._local_files import local_path
from tests.adopting.existing import COPY, EVENTS, LOAD, MIRROR, NAME, Existing
from tests.sources.landing import day


def fragment(*jobs: Job) -> Fragment:
    return Fragment(NAME, jobs[0].owner, jobs)


def member(existing: Existing, job: Job, number: float) -> Barrier | Later | StaysOut:
    """The task of a member's job starts."""
    return take_part(existing.deployment, fragment(job), job, day(number), "test")


def ran(existing: Existing, numbers: Sequence[int], *jobs: Job) -> None:
    """Something lands, and a whole barrier follows, for each of the days."""
    for number in numbers:
        existing.land(number)
        existing.run(number, *jobs)


def step(plan: AdoptionPlan, table: str) -> TableStep:
    (found,) = (each for each in plan.steps if each.table == table)
    return found


def test_taken_in_one_by_one_while_they_run_and_given_back_as_they_are(existing: Existing) -> None:
    tables = existing.deployment.tables
    for number in (1, 2):
        existing.land(number)
        existing.load_plainly(number)
    existing.mirror_plainly()
    properties = {table: tables.load(table).properties for table in (EVENTS, MIRROR)}

    # the first table, with a plan that changes nothing and one that is carried out
    load = existing.load_job("latest")
    plan = plan_adoption(existing.deployment, [fragment(load)])
    assert plan.can_be_done
    assert (step(plan, EVENTS).rows, step(plan, EVENTS).format_version, step(plan, EVENTS).enables_wap) == (2, 2, True)
    assert tables.wap_enabled([EVENTS]) == {EVENTS: False}
    assert (step(plan, EVENTS).bounds_metadata, tables.deletes_old_metadata([EVENTS])) == (True, {EVENTS: None})
    assert carry_out(existing.deployment, plan) == (EVENTS,)
    existing.land(3)
    existing.load_plainly(3)  # the plain job goes on until its DAG is switched over
    existing.mirror_plainly()
    existing.land(4)
    existing.run(3, load)

    # the second goes on plainly beside barriers, and is taken in later
    existing.mirror_plainly()
    existing.run(4, load)
    held = tables.mains([EVENTS])[EVENTS]
    existing.mirror_plainly()
    existing.land(5)
    existing.run(5, load)
    mirror = existing.mirror_job({EVENTS: held})
    plan = plan_adoption(existing.deployment, [fragment(mirror)])
    assert (step(plan, EVENTS).start, step(plan, MIRROR).enables_wap) == ("joined", True)
    assert [job.owner for job in step(plan, EVENTS).readers] == [COPY]
    carry_out(existing.deployment, plan)
    assert isinstance(member(existing, mirror, 6), Later)
    existing.land(6)
    existing.run(6, load)
    assert existing.rows(EVENTS) == existing.rows(MIRROR) == existing.all_landed()

    # and both leave: readers first, each with its tables
    with pytest.raises(StillReadError, match=r"job mirror \(DAG mirror_dag"):
        leave(existing.deployment, NAME, LOAD, "load", reason="away", actor="me")
    assert leave(existing.deployment, NAME, COPY, None, reason="away", actor="me").tables == (MIRROR,)
    assert leave(existing.deployment, NAME, LOAD, "load", reason="away", actor="me").tables == (EVENTS,)
    for table in (EVENTS, MIRROR):
        iceberg = tables.load(table)
        assert iceberg.properties == properties[table]
        assert {ref.snapshot_ref_type.value for name, ref in iceberg.refs().items() if name != "main"} <= {"tag"}
    existing.land(7)
    existing.load_plainly(7)
    existing.mirror_plainly()
    assert existing.rows(EVENTS) == existing.rows(MIRROR) == existing.all_landed()


@pytest.mark.parametrize("deletes", ["true", "false"])
def test_what_was_said_of_a_table_before_us_stays(existing: Existing, deletes: str) -> None:
    with existing.deployment.tables.load(EVENTS).transaction() as change:
        change.set_properties({"write.wap.enabled": "true", "write.metadata.delete-after-commit.enabled": deletes})
    plan = plan_adoption(existing.deployment, [fragment(existing.load_job())])
    assert carry_out(existing.deployment, plan) == ()
    existing.land(1)
    existing.run(1, existing.load_job())
    leave(existing.deployment, NAME, LOAD, None, reason="away", actor="me")
    assert existing.deployment.tables.wap_enabled([EVENTS]) == {EVENTS: True}
    assert existing.deployment.tables.deletes_old_metadata([EVENTS]) == {EVENTS: deletes == "true"}


def test_metadata_documents_of_a_table_that_was_taken_in_grow_to_a_bound(existing: Existing) -> None:
    tables = existing.deployment.tables
    carry_out(existing.deployment, plan_adoption(existing.deployment, [fragment(existing.load_job())]))
    with tables.load(EVENTS).transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "5"})
    for number in range(1, 6):
        existing.land(number)
        existing.run(number, existing.load_job())
    folder = local_path(tables.load(EVENTS).metadata_location).parent
    documents = sorted(path.name for path in folder.glob("*.metadata.json"))
    assert int(documents[-1][:5]) > 12
    # those before it was taken in, which no log lists, and five; one more until the commit after a publish
    assert len([name for name in documents if int(name[:5]) > int(documents[-1][:5]) - 12]) <= 7


def test_an_open_barrier_goes_on_with_a_job_that_leaves_and_keeps_its_tables_until_then(existing: Existing) -> None:
    existing.land(1)
    jobs = existing.load_job(), existing.mirror_job()
    barrier = existing.open(1, *jobs)
    existing.process(barrier, "load")
    left = leave(existing.deployment, NAME, LOAD, "mirror", reason="away", actor="me")
    assert ([each.barrier_id for each in left.open], left.tables) == ([1], ())
    existing.process(barrier, "mirror")
    existing.commit(barrier)
    assert existing.rows(MIRROR) == [10]
    assert leave(existing.deployment, NAME, LOAD, "mirror", reason="again", actor="me").tables == (MIRROR,)
    existing.land(2)
    second = existing.run(2, *jobs)
    assert [each.table for each in existing.deployment.meta.barriers.progress(NAME, second.barrier_id)] == [EVENTS]
    # let back, it goes on where it left off
    existing.deployment.meta.topologies.readmit(NAME, LOAD, "mirror", "me")
    existing.run(3, *jobs)
    assert existing.rows(MIRROR) == [10, 100]


# --- members --------------------------------------------------------------------------------------


def test_a_member_whose_inlet_nobody_writes_yet_waits_and_then_joins(existing: Existing) -> None:
    mirror = existing.mirror_job()
    waits = member(existing, mirror, 1)
    assert isinstance(waits, Later)
    assert f"reads {EVENTS}, which no job writes so far" in waits.reason
    assert waits.reason.startswith(f"no DAG has ever opened a barrier of topology {NAME}; there are: none; ")
    existing.land(1)
    first = existing.run(1, existing.load_job())
    late = member(existing, mirror, 1)
    assert isinstance(late, StaysOut)
    assert f"{first} was opened before job mirror joined" in late.reason
    waits = member(existing, mirror, 2)
    assert isinstance(waits, Later)
    assert waits.reason.startswith(f"no barrier of {NAME} is open")
    existing.land(2)
    existing.run(2, existing.load_job())
    found = member(existing, mirror, 2)
    assert isinstance(found, Barrier)
    assert existing.rows(MIRROR) == existing.all_landed() == existing.rows(EVENTS)


def test_a_member_that_does_not_say_what_its_table_holds_fails_itself_and_nobody_else(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    existing.mirror_plainly()
    load = existing.load_job("latest")
    existing.run(1, load)
    with pytest.raises(StartFromError, match=f"job mirror .*{MIRROR} at snapshot"):
        member(existing, existing.mirror_job(), 2)
    second = existing.run(2, load)
    assert existing.deployment.meta.barriers.get(NAME, second.barrier_id).state is BarrierState.COMMIT


def test_a_member_that_has_left_says_so_and_does_not_come_back(existing: Existing) -> None:
    load, mirror = existing.load_job(), existing.mirror_job()
    existing.land(1)
    existing.deployment.meta.topologies.register(NAME, LOAD, [load], "test")
    assert isinstance(member(existing, mirror, 1), Later)
    existing.run(1, load)
    leave(existing.deployment, NAME, COPY, None, reason="moves to another team", actor="me")
    stays = member(existing, mirror, 2)
    assert isinstance(stays, StaysOut)
    for text in ("DAG mirror_dag has left", "moves to another team", f"topology join {NAME} --dag {COPY}"):
        assert text in stays.reason
    existing.run(2, load)
    assert isinstance(member(existing, mirror, 1), Barrier), "a barrier of before has it"


def test_a_member_whose_run_is_far_ahead_joins_when_the_barriers_are_near_and_holds_nobody_up(
    existing: Existing,
) -> None:
    load, mirror = existing.load_job(), existing.mirror_job()
    ran(existing, (1,), load)
    # tells nothing of how far apart barriers are: the next one has its timestamp
    given_up = existing.open(2, load)
    abort_barrier(existing.deployment, NAME, given_up.barrier_id, reason="bad day", actor="test")
    ran(existing, (2,), load)
    ahead = member(existing, mirror, 8)
    assert isinstance(ahead, Later)
    assert "not near" in ahead.reason
    existing.land(3)
    third = existing.run(3, load)
    assert [row.table for row in existing.deployment.meta.barriers.progress(NAME, third.barrier_id)] == [EVENTS]
    assert isinstance(member(existing, mirror, 4), Later), "registered now: the next one has it"
    existing.run(4, load)
    assert isinstance(member(existing, mirror, 4), Barrier)
    assert existing.rows(MIRROR) == existing.rows(EVENTS) == existing.all_landed()


def test_a_member_stays_out_of_a_barrier_that_will_not_open_any_more(existing: Existing) -> None:
    load, mirror = existing.load_job(), existing.mirror_job()
    ran(existing, (1, 3), load)
    stays = member(existing, mirror, 2)
    assert isinstance(stays, StaysOut)
    assert f"no barrier of {NAME} opens at {day(2).isoformat()} any more" in stays.reason
    assert "give the DAG the schedule of the one that opens" in stays.reason
    fourth = existing.open(4, load)
    abort_barrier(existing.deployment, NAME, fourth.barrier_id, reason="bad day", actor="test")
    assert not isinstance(member(existing, mirror, 4), StaysOut), "it may open again"
    existing.run(5, load)
    assert isinstance(member(existing, mirror, 4), StaysOut)


def test_what_left_gives_back_no_table_that_another_dag_has_taken_over(existing: Existing) -> None:
    load, mirror = existing.load_job(), existing.mirror_job()
    carry_out(existing.deployment, plan_adoption(existing.deployment, [fragment(load), fragment(mirror)]))
    existing.land(1)
    barrier = existing.open(1, load)
    existing.deployment.meta.topologies.register(NAME, COPY, [mirror], "test")
    second = existing.open(2, load)
    assert leave(existing.deployment, NAME, COPY, "mirror", reason="moves", actor="me").tables == ()
    other = Job("copy", "new_dag", inlets=(EVENTS,), outlets=(MIRROR,))
    existing.deployment.meta.topologies.register(NAME, "new_dag", [other], "test")
    for each in (barrier, second):
        existing.process(each, "load")
    existing.process(second, "mirror")
    existing.commit(second)
    left = leave(existing.deployment, NAME, COPY, "mirror", reason="again", actor="me")
    assert (left.open, left.tables) == ((), ())
    assert existing.deployment.tables.wap_enabled([MIRROR]) == {MIRROR: True}


def test_a_dag_that_leaves_after_one_of_its_jobs_gives_back_all_tables(existing: Existing) -> None:
    existing.land(1)
    load, mirror = existing.load_job(), existing.mirror_job()
    barrier = existing.open(1, load, mirror)
    assert leave(existing.deployment, NAME, LOAD, "mirror", reason="first", actor="me").tables == ()
    assert leave(existing.deployment, NAME, LOAD, None, reason="then all", actor="me").tables == ()
    existing.process(barrier, "load")
    existing.process(barrier, "mirror")
    existing.commit(barrier)
    assert set(leave(existing.deployment, NAME, LOAD, None, reason="again", actor="me").tables) == {EVENTS, MIRROR}


def test_what_is_no_table_of_ours_any_more_is_told_and_the_others_are_given_back(
    existing: Existing, caplog: pytest.LogCaptureFixture
) -> None:
    existing.land(1)
    existing.run(1, existing.load_job(), existing.mirror_job())
    catalog = existing.deployment.tables.catalog
    schema = catalog.load_table(MIRROR).schema()
    catalog.drop_table(MIRROR)
    catalog.create_table(MIRROR, schema, properties={"format-version": "1"})
    assert leave(existing.deployment, NAME, LOAD, None, reason="away", actor="me").tables == (EVENTS,)
    assert f"nothing to give back: table {MIRROR}: expected Iceberg format version 2 or 3, found 1" in caplog.text


# --- what is refused before anything is changed -----------------------------------------------------


def test_a_plan_tells_all_that_is_wrong(existing: Existing) -> None:
    existing.land(1)
    existing.load_plainly(1)
    existing.deployment.meta.topologies.register("other", "dag", [Job("x", "dag", outlets=(MIRROR,))], "test")
    second = Job("second", "third_dag", outlets=(EVENTS,))
    away = Job("away", "third_dag", inlets=("old.nowhere",), outlets=("old.gone",))
    further = Job("further", "third_dag", inlets=("old.gone",), outlets=("old.gone_too",))
    waiting = fragment(second, away, further)
    jobs: list[Any] = [fragment(existing.load_job()), fragment(existing.mirror_job()), waiting]
    plan = plan_adoption(existing.deployment, jobs)
    assert not plan.can_be_done
    assert "holds rows" in (step(plan, EVENTS).problem or "")
    assert "belongs to topology other" in (step(plan, MIRROR).problem or "")
    assert not step(plan, "old.gone").exists
    assert any("is written by job" in problem and "third_dag" in problem for problem in plan.problems)
    assert plan.notes == (
        "job away (DAG third_dag) waits until a DAG with a job that writes old.nowhere has run",
        "job further (DAG third_dag) waits until a DAG with a job that writes old.gone has run",
    )
    assert not any("which no job writes" in problem for problem in plan.problems)
