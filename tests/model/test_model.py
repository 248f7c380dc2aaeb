"""A fixed number of schedules in every run; as many as one has time for by `make soak`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from airflow_barrier.coordinator import delay, joining, waiting
from airflow_barrier.metaservice import attempts, barriers
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.tables import _checks
from airflow_barrier.tables._metadata import snapshots_of
from tests.model import work
from tests.model.batches import MEANWHILE
from tests.model.beside import STEPS
from tests.model.machine import Schedules
from tests.model.soak import play
from tests.model.tasks import stepping
from tests.model.world import Bench
from tests.support.drawing import drawn, is_whole
from tests.support.reporting import report


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    Schedules.bench = bench = Bench()
    yield bench
    bench.close()


def test_short_schedules(bench: Bench) -> None:
    """Quick: what the mutation suite asks."""
    batch = play(1, 60, shrink=False)
    assert batch.violation is None, batch.violation
    assert batch.schedules >= 60
    report(f"model: {batch.schedules} schedules, {batch.steps} steps, 0 violations (seed 1)")


#: Each of these has to come about.
_KINDS = frozenset(
    {
        *("arrive", "open", "process", "clear", "process all", "resume", "wake", "commit", "abort", "finish"),
        *("lie", "jump the queue", "contend", "join or leave", "compact", "write", "roll back", "scribble"),
        *("haunt, scribbled", "haunt, retry", "haunt, clear", "haunt, lost", "haunt, killed"),
        *("contend, PRECOMMIT", "contend, COMMITTING", "contend, COMMIT"),
        *("keep-ours", "adopt-theirs", "COMMIT", "ABORTED"),
        *("read", "refused", "refresh", "fell back", "reader leaves", "reader dies", "time passes", "lease lost"),
        *("read on", "expire", "expire, stopped", "compaction", "compaction goes on"),
        *("correct", "revise", "process revised", "haunt revised", "replay", "gate", "publish", "cancel", "swapped"),
        *("waits", "waits no longer", "leaves", "is back", "bootstrap", "bootstrap, begun", "joined"),
        *("wait", "take part", "settle", "settled at the end", "settled, sensor", "settled, take", "settled, open"),
        *(f"beside, {what}" for what in STEPS),
        *("batch", "batch, went on", *(f"batch beside {what}" for what in MEANWHILE)),
        *("catch up", "caught up", "take part, and process", "take part, of another schedule", "no run of its own"),
        *("changed", "deleted", "delete", "shrank"),
        *("joined, at barriers of the past", "joined, later than the first", "joined, and an epoch since"),
    }
)


@pytest.mark.timeout(900)
def test_schedules(bench: Bench) -> None:
    """Barriers get to their ends, nothing is violated, and of all seeds together all kinds of steps come about.

    What a seed plays does not depend on the tests before: the constants that Hypothesis reads in the modules that are
    loaded are of 100 or more, and no rule draws such numbers.
    """
    before = Schedules.ran.copy()
    seeds = drawn(range(2, 16))
    for seed in seeds:
        batch = play(seed, 70)
        assert batch.violation is None, batch.violation
    ran = Schedules.ran - before
    missing = sorted(kind for kind in _KINDS if not ran[kind])
    report(
        f"model: {ran['schedules']} schedules, {ran['steps']} steps, 0 violations (seeds {seeds}); "
        f"kinds that did not come about: {', '.join(missing) or 'none'}"
    )
    assert ran["schedules"] >= 70 * len(seeds)
    assert not (is_whole() and missing), f"never seen in {ran['schedules']} schedules: {missing}"


@pytest.mark.drawn("what the model tells")
def test_the_same_seed_is_the_same_run(bench: Bench) -> None:
    """Every statement with its parameters, every operation, and what stands in the database at the end."""

    def traced() -> list[str]:
        trace: list[str] = []

        def remember(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            trace.append(f"{statement} {parameters}")

        stepping.trace = trace
        delay._known.clear()  # what was worked out once is not asked for again
        event.listen(bench.engine, "before_cursor_execute", remember)
        try:
            assert play(4, 12).violation is None
        finally:
            event.remove(bench.engine, "before_cursor_execute", remember)
            stepping.trace = None
        # nonces are drawn by the system, so that nobody can guess them
        return [re.sub(r"\b[0-9a-f]{32}\b", "nonce", line) for line in (*trace, *bench.raw.iterdump())]

    first, second = traced(), traced()
    assert len(first) > 1000
    assert first == second


@pytest.mark.drawn("what the model tells")
def test_a_violation_is_told_with_the_schedule_that_shows_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose `main` is taken for what was expected, whatever it is: foreign writes are overwritten."""
    monkeypatch.setattr(_checks, "keeps_rows_of", lambda document, expected: True)
    batch = play(1, 60, shrink=False)
    assert batch.violation is not None
    assert "state.begin(" in batch.violation, "the schedule that shows it"
    assert "test_model" not in batch.violation.rpartition("AssertionError")[2]


@pytest.mark.drawn("what the model tells")
def test_a_sensor_that_waits_without_an_end_is_told(passed_by: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_by.wait(how="time", at=-1, state=None, table=None)
    monkeypatch.setattr(waiting, "_why_it_never_opens", lambda *_: None)
    with pytest.raises(AssertionError, match=r"waits for ever: \['barrier at "):
        passed_by.settle(wake=True)


@pytest.mark.drawn("what the model tells")
def test_a_member_that_waits_without_an_end_is_told(passed_by: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_out_of_reach", lambda *_: None)
    passed_by.take_part(job="top", at=-1, steps=None)
    with pytest.raises(AssertionError, match=r"is sent to wait again: .*no barrier of model is open at"):
        passed_by.settle(wake=True)


@pytest.fixture
def passed_by(bench: Bench) -> Iterator[Schedules]:
    """The first barrier was aborted, and there is one of the next day."""
    state = Schedules()
    starts = dict.fromkeys(("sums", "top", "returns"), "latest")
    state.begin(shared=False, extra=set(), foreign=False, settles=False, starts=starts)
    state.abort(which=0, steps=None)
    state.open(again=False, arrived=None, steps=None)
    yield state
    state.world.close()


@pytest.mark.drawn("what the model tells")
def test_a_start_that_is_lost_is_told(counted: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever joins would miss what its inlets held, and nothing else would say so."""
    found = barriers.insert_starts

    def lose(connection: Any, topology: str, barrier_id: int, starts: Any, actor: str) -> None:
        kept = [replace(start, previous={}) for start in starts]
        found(connection, topology, barrier_id, kept, actor)

    monkeypatch.setattr(barriers, "insert_starts", lose)
    counted.join_or_leave(job="top", how="once")
    with pytest.raises(AssertionError, match="joins with barrier"):
        counted.open(arrived=None, steps=None, again=False)


@pytest.mark.drawn("what the model tells")
def test_a_retraction_that_a_job_loses_is_told(counted: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drivers read what came into an inlet, as an incremental append scan does, and not what went."""
    monkeypatch.setattr(work, "difference", lambda after, before: after - before)
    _delete_a_record(counted)


@pytest.mark.drawn("what the model tells")
def test_a_deletion_that_is_taken_for_no_change_is_told(counted: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose epoch adds nothing would count as it was before."""
    found = attempts._reporting

    def report(connection: Any, attempt_id: int) -> Any:
        attempt, barrier = found(connection, attempt_id)
        assert counted.bench.tables is not None
        for table, said in attempt.staged.items():
            there = snapshots_of(counted.bench.tables.document(table))
            if said.snapshot_id in there and there[said.snapshot_id]["summary"]["operation"] == "delete":
                attempt = replace(attempt, staged={**attempt.staged, table: StagedTable(table, None, unchanged=True)})
        return attempt, barrier

    monkeypatch.setattr(attempts, "_reporting", report)
    _delete_a_record(counted)


@pytest.fixture
def counted(bench: Bench) -> Iterator[Schedules]:
    """The tables of the first barrier count; a job that joins next begins with all that they hold."""
    state = Schedules()
    state.begin(shared=False, extra=set(), foreign=False, starts={"top": "earliest"})
    state.finish()
    yield state
    state.world.close()


def _delete_a_record(state: Schedules) -> None:
    """The source takes back a record that counts: where its row stays in a table, the oracle says so."""
    state.open(arrived="clicks", what="deleted", steps=None, again=False)
    with pytest.raises(AssertionError, match=r"too much Counter\({\("):
        state.finish()
