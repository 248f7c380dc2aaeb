"""Revisions in the database: begun, extended, decided once, and exchanged with what stands in one transaction."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy.exc import IntegrityError

from airflow_barrier.metaservice import revision_rows, schema
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.transitions import Event
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    GatedError,
    HeadMovedError,
    IllegalTransitionError,
    NotPrecommitError,
    RevisionEndedError,
    RevisionNotStagedError,
    RevisionRefusedError,
    SourceDataError,
    UnknownRevisionError,
    VoidedAttemptError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.revisions import (
    REVISION_TRANSITIONS,
    Revision,
    RevisionMode,
    RevisionState,
    check_range,
)
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_expiring import expire
from tests.metaservice.test_leases import kill, leased, rolled_back
from tests.metaservice.test_maintenance import compact, maintain
from tests.metaservice.test_trimming import gone, trim
from tests.metaservice.world import (
    AMOUNT,
    AMOUNT_JOB,
    JOBS,
    LOAD_JOB,
    PRICE,
    SHOPPING,
    TOP,
    TOP_JOB,
    World,
)

PENDING, PROCESSED, WRITTEN = TableState.PENDING, TableState.PROCESSED, TableState.WRITTEN
COMMITTED, REPEATABLE = Level.READ_COMMITTED, Level.REPEATABLE_READ
#: What stands on the price job.
REVISED = {PRICE, TOP}


def staged(world: World, first: int = 2, *changed: str) -> Revision:
    """A revision that could be published."""
    revision = world.revise(first, *(changed or ("price",)))
    world.replay(revision)
    return revision


def decided(world: World) -> Revision:
    revision = staged(world)
    world.begin_swap(revision)
    return revision


def of_line(world: World, revision: Revision) -> dict[int, BarrierState]:
    return {each.barrier_id: each.state for each in world.meta.revisions.barriers(world.name, revision.revision)}


def rows(world: World, revision: Revision, barrier_id: int) -> dict[str, TableState]:
    found = world.meta.revisions.progress(world.name, revision.revision, barrier_id)
    return {row.table: row.state for row in found}


def at(world: World, barrier_id: int, revision: int | None = None) -> dict[str, int | None]:
    answer = world.meta.answers.resolve(world.name, REPEATABLE, at=barrier_id, revision=revision)
    return {name: table.snapshot_id for name, table in answer.tables.items()}


def only_revised(before: dict[str, int | None], after: dict[str, int | None]) -> None:
    assert {name for name in before if before[name] != after[name]} == REVISED


# --- beginning ------------------------------------------------------------------------------------------


@pytest.mark.kills("one-revision-under-way")
def test_one_at_a_time(history: World) -> None:
    revision = history.revise(2, "price")
    assert (revision.revision, revision.state, set(revision.tables)) == (1, RevisionState.STAGING, REVISED)
    assert of_line(history, revision) == {2: BarrierState.OPEN, 3: BarrierState.OPEN}
    with pytest.raises(
        RevisionRefusedError, match=r"found revision 1 of shopping \(STAGING, .*revision cancel shopping 1"
    ):
        history.revise(3, "load")
    history.meta.revisions.cancel(history.name, 1, "no", "person")
    assert history.revise(3, "load").revision == 2


@pytest.mark.kills("one-revision-under-way")
def test_the_database_itself_has_one_under_way(history: World, url: str) -> None:
    history.revise(2, "price")
    database = Database(url)
    table = schema.revision
    with pytest.raises(IntegrityError, match=r"unique|UNIQUE"):
        database.write(
            lambda c: c.execute(
                table.insert().from_select(
                    [column.name for column in table.columns],
                    table.select().with_only_columns(
                        *(column + 1 if column.name == "revision" else column for column in table.columns)
                    ),
                )
            )
        )
    database.close()


@pytest.mark.kills("revises-what-was-planned")
def test_begins_with_what_was_planned(history: World) -> None:
    version = history.meta.topologies.version(history.name)
    history.declare([*JOBS, Job("more", "dag", inlets=(PRICE,), outlets=("shop.more",))])
    with pytest.raises(RevisionRefusedError, match=r"expected it to be as it was planned with \(version 1\)"):
        history.revise(2, "price", topology_version=version)


@pytest.mark.kills("expired-is-not-revised")
def test_what_has_expired_since_the_plan_is_not_built_on(history: World) -> None:
    assert expire(history, 1) == [1]
    with pytest.raises(RevisionRefusedError, match="found that barrier 1 has expired since it was planned"):
        history.revise(2, "price")
    history.revise(2, "price", mode=RevisionMode.FULL)


def test_a_barrier_without_its_tables_is_carried(history: World) -> None:
    """A job that joined late leaves the barriers before it with nothing to compute."""
    late = Job("late", "dag", inlets=(SHOPPING,), outlets=("shop.late",))
    history.declare([*JOBS, late])
    history.committed(4)
    revision = history.revise(3, "late")
    assert of_line(history, revision) == {3: BarrierState.PRECOMMIT, 4: BarrierState.OPEN}
    before = history.snapshots(3)
    history.replay(revision)
    history.begin_swap(revision)
    assert history.swap(revision)
    assert (history.snapshots(3), history.barrier(3).computed_in) == (before, 1)


@pytest.mark.kills("replays-on-what-was-there")
def test_jobs_are_replayed_as_they_are_declared_now(history: World) -> None:
    history.declare([LOAD_JOB, AMOUNT_JOB, Job("price", "dag", inlets=(SHOPPING, AMOUNT), outlets=(PRICE,)), TOP_JOB])
    revision = history.revise(2, "price")
    assert history.start(2, "price", line=1).inputs.keys() == {SHOPPING, AMOUNT}
    history.meta.revisions.cancel(history.name, revision.revision, "no", "person")
    late = Job("late", "dag", inlets=(SHOPPING,), outlets=("shop.late",))
    price = Job("price", "dag", inlets=(SHOPPING, "shop.late"), outlets=(PRICE,))
    history.declare([LOAD_JOB, AMOUNT_JOB, late, price, TOP_JOB])
    with pytest.raises(
        RevisionRefusedError, match=r"job price reads shop.late by now, which barrier 2 .*does not have"
    ):
        history.revise(2, "price")


# --- going along with the head --------------------------------------------------------------------------


def test_barriers_that_open_meanwhile_are_added(history: World) -> None:
    revision = staged(history)
    history.open(4)
    added = history.meta.revisions.extend(history.name, 1, "person")
    assert [(each.barrier_id, each.predecessor) for each in added] == [(4, 3)]
    assert history.meta.revisions.extend(history.name, 1, "person") == [], "again"
    assert rows(history, revision, 4) == {PRICE: PENDING, TOP: PENDING}
    barrier = history.meta.barriers.get(history.name, 4, 1)
    assert (barrier.predecessor, barrier.line) == (3, 1)


def test_an_abort_takes_the_revisions_barriers_along(history: World) -> None:
    revision = history.revise(2, "price")
    history.open(4)
    history.open(5)
    history.meta.revisions.extend(history.name, 1, "person")
    history.process(4, "load")
    history.replay(revision, 2, 3)
    attempt = history.start(4, "price", line=1)
    history.abort(4)
    assert of_line(history, revision) == {2: BarrierState.PRECOMMIT, 3: BarrierState.PRECOMMIT}
    assert history.meta.attempts.get(attempt.attempt_id).state is AttemptState.VOIDED
    history.open(4)
    assert [each.predecessor for each in history.meta.revisions.extend(history.name, 1, "person")] == [3]
    history.process_all(6)
    history.replay(revision)
    history.begin_swap(revision)
    assert history.swap(revision)
    assert history.barrier(4).state is BarrierState.ABORTED
    assert history.state(6) is BarrierState.PRECOMMIT


@pytest.mark.parametrize("when", ["before", "while it is decided"])
def test_what_was_aborted_has_no_part_in_the_exchange(history: World, when: str) -> None:
    history.open(4)
    history.process(4, "load")
    if when == "before":
        history.abort(4)
        revision = decided(history)
    else:
        history.process_all(4)
        revision = decided(history)
        history.abort(4)
    attempts = [attempt.attempt_id for attempt in history.meta.attempts.of(history.name, 4)]
    assert history.swap(revision)
    assert [attempt.attempt_id for attempt in history.meta.attempts.of(history.name, 4)] == attempts
    assert set(history.tables(4).values()) == {PENDING}
    history.committed(5)


@pytest.mark.kills("revises-all-that-stands-on-it")
def test_a_job_that_comes_to_read_what_is_revised_is_not_left_out(history: World) -> None:
    history.revise(2, "price")
    history.declare([*JOBS, Job("more", "dag", inlets=(PRICE,), outlets=("shop.more",))])
    history.open(4)
    with pytest.raises(RevisionRefusedError, match=r"found at barrier 4 .*job more, which reads that"):
        history.meta.revisions.extend(history.name, 1, "person")


@pytest.mark.kills("restaging-voids-revised")
def test_restaging_what_it_was_computed_from_voids_that(history: World) -> None:
    history.open(4)
    history.process_all(4)
    revision = history.revise(2, "price")
    history.replay(revision)
    unaffected = history.meta.attempts.current(history.name, 4, "price", 1)
    assert unaffected is not None
    history.request(4, "amount", generation="g2")  # of what is revised only top stands on it
    assert rows(history, revision, 4) == {PRICE: PROCESSED, TOP: PENDING}
    assert rows(history, revision, 3) == {PRICE: PROCESSED, TOP: PROCESSED}
    assert of_line(history, revision)[4] is BarrierState.OPEN
    assert history.meta.attempts.get(unaffected.attempt_id).state is AttemptState.PROCESSED
    history.request(4, "load", generation="g2")
    assert rows(history, revision, 4) == {PRICE: PENDING, TOP: PENDING}
    voided = history.meta.attempts.get(unaffected.attempt_id)
    assert (voided.state, "was staged anew at barrier 4" in str(voided.reason)) == (AttemptState.VOIDED, True)
    assert history.meta.revisions.unstaged(history.name, 1) == [
        f"{history.meta.barriers.get(history.name, 4, 1)} lacks {PRICE} (job price), {TOP} (job top)"
    ]
    history.process_all(4, generation="g2")
    history.replay(revision)
    history.begin_swap(revision)
    assert history.swap(revision)
    assert history.state(4) is BarrierState.PRECOMMIT


def test_a_clear_in_a_revision_restages_there_alone(history: World) -> None:
    revision = staged(history)
    before = history.snapshots(3)
    history.request(2, "price", generation="g2", line=1)
    assert rows(history, revision, 2) == rows(history, revision, 3) == {PRICE: PENDING, TOP: PENDING}
    assert (history.snapshots(3), set(history.tables(3).values())) == (before, {WRITTEN})


def test_a_revision_builds_on_its_own_line(history: World) -> None:
    history.revise(2, "price")
    first = history.process(2, "price", line=1)
    assert first.bases == {PRICE: history.snapshots(1)[PRICE]}
    second = history.start(3, "price", line=1)
    assert second.bases == {PRICE: first.staged[PRICE].snapshot_id}
    assert second.inputs == {SHOPPING: history.snapshots(3)[SHOPPING]}
    top = history.start(2, "top", line=1)
    assert top.inputs == {AMOUNT: history.snapshots(2)[AMOUNT], PRICE: first.staged[PRICE].snapshot_id}


def test_a_full_one_begins_with_nothing(history: World) -> None:
    history.revise(2, "price", mode=RevisionMode.FULL)
    first = history.process(2, "price", line=1)
    assert (first.bases, first.previous) == ({PRICE: None}, {SHOPPING: None})
    assert history.start(3, "price", line=1).bases == {PRICE: first.staged[PRICE].snapshot_id}


# --- the gate -------------------------------------------------------------------------------------------


@pytest.mark.kills("gate-is-closed")
def test_while_the_gate_is_closed_nothing_opens(history: World) -> None:
    revision = history.revise(2, "price")
    history.meta.revisions.gate(history.name, 1, closed=True, actor="person")
    assert history.meta.revisions.gate(history.name, 1, closed=True, actor="person").gated, "again"
    for opens in (lambda: history.open(4), lambda: maintain(history)):
        with pytest.raises(GatedError, match=r"found revision 1 of shopping \(STAGING\), which has caught up"):
            opens()
    history.meta.revisions.gate(history.name, 1, closed=False, actor="person")
    history.open(4)
    history.abort(4)
    history.replay(revision)
    history.begin_swap(revision)
    with pytest.raises(GatedError, match="COMMITTING"):
        history.open(4)
    history.swap(revision)
    assert history.open(4).barrier_id == 5
    events = [entry.event for entry in history.meta.audit.newest(history.name) if entry.kind == "revision"]
    assert events == ["revision begun", "gate closed", "gate opened", "committing", "commit"]


# --- the decision ---------------------------------------------------------------------------------------


@pytest.mark.kills("publishes-only-what-is-staged", "only-decided-revision-is-published")
def test_only_what_is_staged_up_to_the_head_is_published(history: World) -> None:
    revision = history.revise(2, "price")
    history.replay(revision, 2)
    for missing in ("lacks shop.price", "barrier 4 .*was opened since", "lacks"):
        with pytest.raises(RevisionNotStagedError, match=missing):
            history.begin_swap(revision)
        if missing == "lacks shop.price":
            history.replay(revision, 3)
            history.open(4)
        else:
            history.meta.revisions.extend(history.name, 1, "person")
    assert history.meta.revisions.get(history.name, 1).state is RevisionState.STAGING
    with pytest.raises(RevisionEndedError, match="expected COMMITTING to publish it, found STAGING"):
        history.swap(revision)


def test_maintenance_has_to_be_over(history: World) -> None:
    revision = staged(history)
    barrier = maintain(history)
    assert barrier is not None
    with pytest.raises(RevisionNotStagedError, match="maintains tables and is OPEN"):
        history.begin_swap(revision)


@pytest.mark.kills("expected-main-of-every-table", "swaps-at-the-head-that-was-seen")
def test_the_decision_names_main_of_the_head_that_stands(history: World) -> None:
    revision = staged(history)
    mains = history.snapshots(3)
    with pytest.raises(ConfigurationError, match="expected the current snapshots of the tables of barrier 3"):
        history.meta.revisions.begin_swap(history.name, 1, 3, {PRICE: mains[PRICE]}, "person")
    history.committed(4)
    history.meta.revisions.extend(history.name, 1, "person")
    history.replay(revision)
    with pytest.raises(HeadMovedError, match="expected barrier 3 to be the newest COMMIT, found barrier 4"):
        history.meta.revisions.begin_swap(history.name, 1, 3, mains, "person")
    history.meta.revisions.begin_swap(history.name, 1, 4, history.snapshots(4), "person")


@pytest.mark.kills("revision-decided-once", "revision-published-once")
def test_it_is_decided_once_and_published_once(history: World) -> None:
    revision = staged(history)
    first = history.begin_swap(revision)
    assert (first.state, first.head, first.last) == (RevisionState.COMMITTING, 3, 3)
    assert first.expected == history.snapshots(3)
    assert history.meta.revisions.begin_swap(history.name, 1, 1, {}, "another") == first
    assert history.swap(revision)
    assert not history.swap(revision), "again"
    assert history.meta.revisions.begin_swap(history.name, 1, 1, {}, "another").state is RevisionState.COMMIT


@pytest.mark.kills("one-publisher")
def test_nothing_else_is_published_beside_it(history: World) -> None:
    history.open(4)
    history.process_all(4)
    revision = staged(history)
    history.begin_commit(4)
    with pytest.raises(RevisionNotStagedError, match=r"found barrier 4 .*COMMITTING; finish that one first"):
        history.begin_swap(revision)
    history.publish(4)
    history.open(5)
    history.process_all(5)
    history.meta.revisions.extend(history.name, 1, "person")
    history.replay(revision)
    history.begin_swap(revision)
    with pytest.raises(NotPrecommitError, match="found revision 1 of shopping, COMMITTING"):
        history.begin_commit(5)
    history.swap(revision)
    history.commit(5)


@pytest.mark.kills("commits-what-was-seen")
def test_a_commit_that_looked_before_the_swap_looks_again(history: World) -> None:
    history.open(4)
    history.process_all(4)
    history.revised(2, "price")
    found = history.snapshots(3)
    with pytest.raises(HeadMovedError, match="expected it as in revision 0, found that revision 1 was published"):
        history.meta.publishing.begin(history.name, 4, found, "committer", (), 0)
    history.meta.publishing.begin(history.name, 4, found, "committer", (), 1)


@pytest.mark.kills("compare-and-set", "lost-race-is-noticed", "illegal-revision-transition")
def test_only_what_may_follow_is_written(history: World, url: str) -> None:
    """And only by who saw it as it is. Which states may follow which is in `protocol/test_states.py`."""
    database = Database(url)
    store = history.meta.revisions

    def moved(seen: Revision, after: RevisionState) -> None:
        database.write(lambda c: revision_rows.move(c, seen, after, Event("test", "test")))

    def refused() -> Revision:
        now = store.newest(history.name, 1)[0]
        for after in set(RevisionState) - REVISION_TRANSITIONS[now.state]:
            with pytest.raises(IllegalTransitionError, match=f"is {now.state.value} and cannot become {after.value}"):
                moved(now, after)
        if now.state is not RevisionState.STAGING:
            with pytest.raises(IllegalTransitionError, match="expected it to be STAGING; another process changed it"):
                moved(staging, RevisionState.CANCELLED)
        return now

    staging = history.revise(2, "price")
    seen = [refused().state]
    history.replay(staging)
    history.begin_swap(staging)
    seen.append(refused().state)
    history.swap(staging)
    seen.append(refused().state)
    staging = history.revise(2, "price")
    store.cancel(history.name, staging.revision, "no", "person")
    seen.append(refused().state)
    assert set(seen) == set(RevisionState)
    database.close()


@pytest.mark.kills("ended-revision-takes-nothing")
def test_an_ended_revision_takes_nothing(history: World) -> None:
    revision = staged(history)
    closed = history.start(3, "price", generation="g2", line=1)
    history.meta.revisions.cancel(history.name, 1, "no", "person")
    assert history.meta.revisions.cancel(history.name, 1, "no", "again").state is RevisionState.CANCELLED
    for takes in (
        lambda: history.request(3, "price", line=1),
        lambda: history.close(closed),
        lambda: history.meta.attempts.report(closed.attempt_id, "test"),
        lambda: history.meta.revisions.extend(history.name, 1, "person"),
        lambda: history.meta.revisions.gate(history.name, 1, closed=True, actor="person"),
        lambda: history.meta.revisions.recut(history.name, 1, 3, Cut("files", None, {}), "person"),
        lambda: history.begin_swap(revision),
        lambda: history.swap(revision),
    ):
        with pytest.raises(RevisionEndedError, match="found CANCELLED"):
            takes()
    assert history.meta.attempts.get(closed.attempt_id).state is AttemptState.VOIDED


@pytest.mark.kills("decided-revision-is-not-cancelled")
def test_what_is_decided_is_not_cancelled(history: World) -> None:
    revision = staged(history)
    history.begin_swap(revision)
    for state in ("COMMITTING", "COMMIT"):
        with pytest.raises(RevisionEndedError, match=f"expected STAGING to cancel it, found {state}"):
            history.meta.revisions.cancel(history.name, 1, "no", "person")
        with pytest.raises(RevisionEndedError, match=f"found {state}"):
            history.request(3, "price", generation="g2", line=1)
        history.swap(revision)


def test_a_number_that_is_none(history: World) -> None:
    with pytest.raises(UnknownRevisionError, match="expected one that was begun, found revisions up to 0"):
        history.meta.revisions.get(history.name, 1)


@pytest.mark.kills("careless-replay")
def test_a_replay_is_no_longer_than_its_author_expects() -> None:
    check_range("it", 3, 3)
    with pytest.raises(RevisionRefusedError, match="expected to replay at most 2 barriers"):
        check_range("it", 3, 2)


# --- the exchange ---------------------------------------------------------------------------------------


def test_the_lines_are_exchanged(history: World) -> None:
    before = {number: at(history, number) for number in (1, 2, 3)}
    old = {attempt.attempt_id for attempt in history.meta.attempts.of(history.name, 3)}
    revision = staged(history)
    line = {a.attempt_id for a in history.meta.attempts.of(history.name, 3, 1)}
    assert {number: at(history, number) for number in (1, 2, 3)} == before
    history.begin_swap(revision)
    assert history.swap(revision)
    assert at(history, 1) == before[1]
    for number in (2, 3):
        only_revised(before[number], at(history, number))
        assert at(history, number, revision=0) == before[number]
        assert history.barrier(number).computed_in == 1
        assert set(history.tables(number).values()) == {WRITTEN}
        assert all(row.written_at for row in history.meta.barriers.progress(history.name, number))
        assert history.barrier(number).tags == tuple(f"barrier_shopping_b{number}_r{r}" for r in (0, 1))
    attempts = {a.job: a for a in history.meta.attempts.of(history.name, 3)}
    assert {a.attempt_id for a in attempts.values() if a.job in revision.jobs} == line
    assert {a.attempt_id for a in attempts.values() if a.job not in revision.jobs} < old
    assert (attempts["price"].computed_in, attempts["load"].computed_in) == (1, 0)
    assert of_line(history, revision) == {}
    with pytest.raises(UnknownRevisionError, match=r"found that revisions 0, 1 did"):
        at(history, 3, revision=2)
    with pytest.raises(UnknownRevisionError, match=r"found that revisions 0 did"):
        at(history, 1, revision=1)


def test_revisions_over_revisions(history: World) -> None:
    kept = [at(history, 3)]
    for changed in ("price", "amount", "load"):
        history.revised(2, changed)
        kept.append(at(history, 3))
    assert [at(history, 3, revision=number) for number in range(4)] == kept
    history.committed(4)
    assert history.snapshots(3) == kept[-1]


@pytest.mark.kills("swap-voids-attempts")
def test_open_barriers_are_pointed_to_what_was_revised(history: World) -> None:
    history.open(4)
    history.process_all(4)
    history.open(5)
    history.process(5, "load")
    history.process(5, "amount")
    running = history.start(5, "price")
    waiting = history.request(5, "top")
    before = history.snapshots(4)
    history.revised(2, "price")
    assert (history.state(4), history.state(5)) == (BarrierState.PRECOMMIT, BarrierState.PRECOMMIT)
    only_revised(before, history.snapshots(4))
    assert history.meta.answers.resolve(history.name, COMMITTED).barrier_id == 5
    assert history.meta.answers.resolve(history.name, REPEATABLE).barrier_id == 3
    for attempt in (running, waiting):
        voided = history.meta.attempts.get(attempt.attempt_id)
        assert (voided.state, voided.line) == (AttemptState.VOIDED, -1)
        assert "revision 1 of shopping has computed this barrier again" in str(voided.reason)
        for says in (lambda a=attempt: history.close(a), lambda a=attempt: history.meta.attempts.start(a.attempt_id)):
            with pytest.raises(VoidedAttemptError, match="VOIDED"):
                says()
    history.commit(4)
    history.request(5, "price", generation="g2")
    assert (history.state(5), history.tables(5)[TOP]) == (BarrierState.OPEN, PENDING)
    history.process_all(5, generation="g2")
    history.commit(5)
    assert history.barrier(5).computed_in == 1


def test_a_barrier_that_is_half_done_is_as_far_as_what_is_left_of_it(history: World) -> None:
    history.open(4)
    history.process(4, "load")
    history.process(4, "price")
    revision = history.revise(2, "price")
    history.process(2, "price", line=1)
    history.replay(revision, 2, 3)
    history.process(4, "price", line=1)
    with pytest.raises(RevisionNotStagedError, match=r"lacks shop\.top"):
        history.begin_swap(revision)
    history.process(4, "amount")
    history.process(4, "top", line=1)
    history.begin_swap(revision)
    history.request(4, "amount", generation="g2")
    history.swap(revision)
    assert history.tables(4) == {AMOUNT: PENDING, PRICE: PROCESSED, SHOPPING: PROCESSED, TOP: PENDING}
    assert history.state(4) is BarrierState.OPEN
    history.process_all(4, generation="g2")
    history.commit(4)


@pytest.mark.kills("swap-is-told-readers")
def test_readers_of_open_barriers_are_told(history: World) -> None:
    history.open(4)
    history.process_all(4)
    committed, older = leased(history, COMMITTED), leased(history, COMMITTED, at=3)
    revision = decided(history)
    assert not rolled_back(history, committed)
    history.swap(revision)
    assert rolled_back(history, committed)
    assert not rolled_back(history, older)


def test_cuts_are_exchanged_with_their_items(world: World) -> None:
    for number in (1, 2):
        world.open(number, items=[f"file {number}", f"lost {number}"])
        world.process_all(number)
        world.commit(number)
    revision = world.revise(2, "load")
    new = Cut("files", None, {"day": 2, "mended": True}, ("file 2", "found 2"))
    with pytest.raises(SourceDataError, match="found 1 that one has, such as file 1"):
        world.meta.revisions.recut("shopping", 1, 2, Cut("files", None, {}, ("file 1",)), "person")
    world.meta.revisions.recut("shopping", 1, 2, new, "person")
    assert world.meta.cuts.of("shopping", 2, 1) == {"files": new}
    assert world.meta.cuts.of("shopping", 2)["files"].items == ("file 2", "lost 2")
    world.replay(revision)
    world.begin_swap(revision)
    world.swap(revision)
    assert world.meta.cuts.of("shopping", 2) == {"files": new}
    assert world.meta.cuts.used_items("shopping", "files", ["found 2", "lost 2"]) == {"found 2"}


@pytest.fixture
def landed(world: World) -> World:
    """Barriers 1 and 2 are COMMIT, each with two files."""
    for number in (1, 2):
        world.open(number, items=[f"file {number}", f"lost {number}"])
        world.process_all(number)
        world.commit(number)
    return world


def recut(world: World, *items: str, barrier_id: int = 2) -> Revision:
    """A revision that begins with another cut of one barrier."""
    cut = Cut("files", None, {"day": barrier_id, "anew": True}, items)
    return world.revise(barrier_id, "load", recut=["files"], cuts={barrier_id: [cut]})


def used(world: World, *items: str) -> set[str]:
    return world.meta.cuts.used_items(world.name, "files", items)


@pytest.mark.kills("items-of-a-revision-are-used", "promised-to-a-revision")
def test_what_joins_by_a_new_cut_is_taken_by_nobody_else(landed: World) -> None:
    revision = recut(landed, "file 2", "found 2")
    assert revision.recut == ("files",)
    assert landed.meta.cuts.of("shopping", 2, 1)["files"].items == ("file 2", "found 2")
    assert landed.meta.cuts.of("shopping", 2)["files"].items == ("file 2", "lost 2")
    assert used(landed, "file 2", "lost 2", "found 2", "new") == {"file 2", "lost 2", "found 2"}
    with pytest.raises(HeadMovedError, match="found that revision 1 has, such as found 2: look again"):
        landed.open(3, items=["found 2", "new"])
    landed.open(3, items=["new"])
    assert landed.meta.revisions.extend("shopping", 1, "person")
    # what stands at a barrier is its own in both lines
    landed.meta.revisions.recut("shopping", 1, 3, Cut("files", None, {"anew": True}, ("new",)), "person")
    landed.meta.cuts.repin("shopping", 3, Cut("files", None, {"mended": True}, ("new",)), "person")
    landed.process_all(3)
    landed.replay(revision)
    landed.begin_swap(revision)
    landed.swap(revision)
    assert landed.meta.cuts.of("shopping", 2)["files"].items == ("file 2", "found 2")
    assert used(landed, "file 2", "lost 2", "found 2", "new") == {"file 2", "found 2", "new"}
    landed.open(4, items=["lost 2"])  # somebody put it back, after its epoch went on without it
    with pytest.raises(SourceDataError, match="found 1 that one has, such as found 2"):
        landed.open(5, items=["found 2"])


@pytest.mark.kills("joins-what-nobody-took")
def test_what_somebody_took_since_the_plan_does_not_join(landed: World) -> None:
    landed.open(3, items=["found 2"])
    with pytest.raises(RevisionRefusedError, match="found that one has found 2; plan it again"):
        recut(landed, "file 2", "found 2")
    with pytest.raises(RevisionRefusedError, match="found that one has file 1; plan it again"):
        recut(landed, "file 1", "file 2")
    assert landed.meta.revisions.newest("shopping", 1) == []
    landed.abort(3)
    assert recut(landed, "file 2", "found 2").revision == 1


def test_a_cancelled_revision_lets_go_of_what_would_have_joined(landed: World) -> None:
    recut(landed, "file 2", "found 2")
    landed.meta.revisions.cancel("shopping", 1, "no", "person")
    assert used(landed, "lost 2", "found 2") == {"lost 2"}
    landed.open(3, items=["found 2"])
    assert landed.meta.cuts.of("shopping", 2)["files"].items == ("file 2", "lost 2")


def test_a_job_that_changed_is_what_stands_from_then_on(history: World) -> None:
    changed = Job("price", "dag", inlets=(SHOPPING, AMOUNT), outlets=(PRICE,), externals=())
    history.declare([LOAD_JOB, AMOUNT_JOB, changed, TOP_JOB])
    history.revised(2, "price")
    versions = [history.barrier(number).topology_version for number in (1, 2, 3)]
    assert versions == [1, 2, 2]
    assert history.meta.topologies.get(history.name, 2).job("price").inlets == (SHOPPING, AMOUNT)


def test_maintenance_between_is_carried(history: World) -> None:
    barrier = maintain(history, (PRICE, AMOUNT))
    assert barrier is not None
    compact(history, barrier, PRICE, 98)
    compact(history, barrier, AMOUNT, 99)
    history.meta.maintenance.carry(history.name, barrier.barrier_id, "upkeep")
    history.commit(barrier.barrier_id)
    before = history.snapshots(4)
    revision = staged(history)
    assert of_line(history, revision).keys() == {2, 3}
    history.begin_swap(revision)
    history.swap(revision)
    after = {row.table: row for row in history.meta.barriers.progress(history.name, 4)}
    assert {name: after[name].snapshot_id for name in REVISED} == {name: history.snapshots(3)[name] for name in REVISED}
    assert {after[name].carried_from for name in REVISED} == {3}
    assert (after[AMOUNT].snapshot_id, {row.state for row in after.values()}) == (99, {WRITTEN})
    assert at(history, 4, revision=0) == before
    history.committed(5)


# --- readers, expiry, what is forgotten -----------------------------------------------------------------


def test_leases_go_on_across_a_swap(history: World, url: str) -> None:
    lease = leased(history, at=2)
    history.revised(2, "price")
    assert history.meta.leases.renew(lease.lease_id, 60).barrier_id == 2
    assert (expire(history, 2), expire(history, 1)) == ([], [1])
    kill(url, lease)
    assert expire(history, 2) == [2]


@pytest.mark.kills("revised-is-not-expired")
def test_what_a_revision_builds_on_does_not_expire(history: World) -> None:
    revision = history.revise(3, "price")
    assert expire(history, 1, 2, 3) == [1]
    history.replay(revision)
    history.begin_swap(revision)
    assert expire(history, 2) == []
    history.swap(revision)
    assert expire(history, 2) == [2]


def test_trimming_forgets_what_was_replaced_too(history: World, url: str) -> None:
    history.revised(2, "price")
    other = staged(history)
    history.meta.revisions.cancel(history.name, other.revision, "no", "person")
    history.committed(4)
    gone(history, 1, 2)
    assert trim(history) == [1, 2]
    database = Database(url)
    for table in (schema.table_progress, schema.attempt):
        found = Counter(
            row.line for row in database.read(lambda c, t=table: c.execute(t.select()).all()) if row.barrier_id == 2
        )
        assert not found, table.name
    database.close()


def test_every_step_is_in_the_audit(history: World) -> None:
    history.revised(2, "price")
    entries = history.meta.audit.newest(history.name, limit=1000)
    steps = [(e.event, e.before, e.after, e.revision) for e in entries if e.kind == "revision"]
    assert steps == [
        ("revision begun", None, "STAGING", 1),
        ("committing", "STAGING", "COMMITTING", 1),
        ("commit", "COMMITTING", "COMMIT", 1),
    ]
    revised = [(e.barrier_id, e.kind, e.subject) for e in entries if e.event == "revised" and e.kind == "barrier"]
    assert revised == [(2, "barrier", "2"), (3, "barrier", "3")]
    written = {(e.barrier_id, e.subject) for e in entries if e.kind == "table" and e.event == "revised"}
    assert written == {(number, name) for number in (2, 3) for name in REVISED}


def test_runs_are_bound_to_a_barrier(history: World) -> None:
    history.revise(2, "price")
    bind = history.meta.revisions.bind_run
    bind(history.name, 1, 2, "dag", "run", None)
    assert [run.arrived_at for run in history.meta.revisions.runs(history.name, 1)] == [None]
    bind(history.name, 1, 2, "dag", "run", 3)
    (run,) = history.meta.revisions.runs(history.name, 1)
    assert (run.barrier_id, run.clear_number, run.arrived_at is not None) == (2, 3, True)
    assert history.meta.revisions.run_binding(history.name, "dag", "run") == run
    assert history.meta.revisions.run_binding("another", "dag", "run") is None


def test_what_is_published_is_told_before_it_is(history: World) -> None:
    revision = staged(history)
    swap = history.meta.revisions.swap_rows(history.name, 1)
    told = [history.meta.revisions.as_revised(history.barrier(number), 1) for number in (2, 3)]
    history.begin_swap(revision)
    history.swap(revision)
    assert swap.before == {name: history.snapshots(1)[name] for name in REVISED}
    assert swap.barriers == {number: history.snapshots(number) for number in (2, 3)}
    assert [{row.table: row.snapshot_id for row in each.rows} for each in told] == list(swap.barriers.values())
