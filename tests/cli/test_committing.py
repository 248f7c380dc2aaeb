"""A barrier whose commit task will never run is committed by a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator import committing
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.states import BarrierState
from tests.cli.deployed import Deployed, deploy, run
from tests.support.shop import AMOUNT

COMMIT = ("barrier", "commit", "shopping")
BECAUSE = ("--reason", "its DAG was deleted", "--yes")


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """Barriers 3 and 4 are OPEN."""
    found = deploy(Settings.embedded(str(tmp_path)))
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", next(iter(found.environment.values())))
    yield found
    found.shop.deployment.close()


def states(deployed: Deployed) -> list[BarrierState]:
    return [deployed.meta.barriers.get("shopping", number).state for number in (3, 4)]


def complete(deployed: Deployed) -> None:
    third, fourth = (deployed.meta.barriers.get("shopping", number) for number in (3, 4))
    for job in ("amount", "price"):
        deployed.shop.process(third, job, [{"amount": 3, "price": 2}])
    deployed.shop.process_all(fourth, [{"amount": 4, "price": 2}])
    assert states(deployed) == [BarrierState.PRECOMMIT] * 2


def test_up_to_a_barrier(deployed: Deployed) -> None:
    complete(deployed)
    said = run(*COMMIT, "4", *BECAUSE)
    assert said.code == 0
    third, fourth = (deployed.meta.barriers.get("shopping", number) for number in (3, 4))
    assert said.out == f"committed {third}\ncommitted {fourth}\n"
    assert states(deployed) == [BarrierState.COMMIT] * 2
    tables = deployed.shop.deployment.tables
    (row,) = [each for each in deployed.meta.barriers.progress("shopping", 4) if each.table == AMOUNT]
    assert tables.mains([AMOUNT]) == {AMOUNT: row.snapshot_id}
    decided = [entry for entry in deployed.meta.audit.newest("shopping", 4) if entry.after in ("COMMITTING", "COMMIT")]
    assert len(decided) == 2
    assert all("its DAG was deleted" in entry.actor for entry in decided)
    again = run(*COMMIT, "4", *BECAUSE)
    assert (again.code, again.out) == (0, f"{fourth} was committed before; nothing to do\n")
    assert run(*COMMIT, "4", *BECAUSE, "--json").json == {
        "changed": False,
        "summary": "Barrier 4 was committed before.",
        "states": {"barrier 4": "COMMIT"},
    }


def test_one_that_a_crash_left_committing(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(deployed)

    class Killed(BaseException):
        """The worker is lost."""

    def die(*_: object) -> None:
        raise Killed

    third = deployed.meta.barriers.get("shopping", 3)
    with monkeypatch.context() as crash:
        crash.setattr(committing, "_publish", die)
        with pytest.raises(Killed):
            deployed.shop.commit(third)
    assert states(deployed) == [BarrierState.COMMITTING, BarrierState.PRECOMMIT]
    assert run(*COMMIT, "3", *BECAUSE, "--json").json == {
        "changed": True,
        "summary": "Committed barrier 3: readers have it.",
        "states": {"barrier 3": "COMMIT"},
    }
    assert states(deployed) == [BarrierState.COMMIT, BarrierState.PRECOMMIT]


@pytest.mark.kills("open-is-told")
def test_what_is_not_complete_stays_open(deployed: Deployed) -> None:
    said = run(*COMMIT, "3", *BECAUSE)
    assert (said.code, said.out) == (75, "")
    assert f"is OPEN; not PROCESSED: {AMOUNT} (job amount)" in said.err
    assert run(*COMMIT, "5", *BECAUSE).code == 1  # aborted
    assert states(deployed) == [BarrierState.OPEN] * 2


def test_a_person_is_asked(deployed: Deployed) -> None:
    complete(deployed)
    said = run(*COMMIT, "3", *BECAUSE[:-1])
    assert (said.code, said.out) == (2, "")
    assert "expected --yes, found no terminal to ask on" in said.err
    assert states(deployed) == [BarrierState.PRECOMMIT] * 2
