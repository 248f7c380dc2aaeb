"""The journal of trimmed barriers is a file a hundred (here: three), and tells a lost MetaService what it needs."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from airflow_barrier.coordinator import trimmed_journal
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.trimmed_journal import JournalReader, fold
from airflow_barrier.protocol.errors import ExpiredBarrierError, JournalError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.retention import Retention
from tests.expiry.taking import Takes
from tests.recovery.backups import Backups
from tests.recovery.dying import killed_folding_at
from tests.recovery.landing import LandedShop
from tests.support.reporting import report

SPAN = 3
FOLDED = ["trimmed-0", "trimmed-1"]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimmed_journal, "SPAN", SPAN)


def expired(landed: LandedShop) -> None:
    """Only the newest barrier is kept: the first time the older ones expire, the second time they are trimmed."""
    for _ in range(2):
        expire(landed.shop.deployment, "shopping", Retention(1), Takes(landed.shop), actor="test")


def journal(landed: LandedShop) -> list[str]:
    folder = Path(landed.settings.warehouse.removeprefix("file://"), "_barrier", "shopping", "journal")
    names = (path.stem for path in folder.iterdir() if not path.stem.startswith("topology"))
    return sorted(names)


def known(deployment: Deployment, last: int) -> list[tuple[object, ...]]:
    """Of each barrier what is kept of it: where it is, its time, its run, its cuts, its rows."""
    meta = deployment.meta
    numbers = range(1, last + 1)
    barriers = [meta.barriers.get("shopping", number) for number in numbers]
    return [
        *((each.state, each.timestamp, each.run, each.predecessor, each.line) for each in barriers),
        *((meta.cuts.of("shopping", number), meta.barriers.progress("shopping", number)) for number in numbers),
        *((row.table, row.snapshot_id) for row in meta.barriers.progress("shopping", 0)),
        [each.barrier_id for each in meta.answers.readable("shopping")],
    ]


def test_a_lost_metaservice_comes_back_from_a_folded_journal(landed: LandedShop, backups: Backups) -> None:
    landed.committed(*range(1, 9))
    expired(landed)
    assert journal(landed) == ["b6", "b7", "b8", "head", *FOLDED]
    before = known(landed.shop.deployment, 8)
    landed.close()
    backups.lose()
    landed.reconnect()
    deployment = landed.shop.deployment
    recovered = recover(deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == list(range(1, 9))
    assert [entry.trimmed for entry in recovered.entries] == [True] * 5 + [False] * 3
    after = known(deployment, 8)
    assert after[:8] == before[:8]
    # 6 and 7 have rows again, since no file without them is written before 8 is trimmed
    assert after[8:13] == before[8:13]
    assert after[16:] == before[16:]
    with pytest.raises(ExpiredBarrierError):
        deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=2)
    landed.committed(9, 10)
    landed.check_oracle(10)
    expired(landed)
    assert journal(landed) == ["b10", "b9", "head", *FOLDED, "trimmed-2"]


@pytest.mark.parametrize("settings", ["sqlite apart"], indirect=True)
def test_folding_dies_at_every_step_and_the_next_expiry_goes_on(landed: LandedShop, backups: Backups) -> None:
    landed.committed(*range(1, 7))
    expired(landed)
    trimmed = [1, 2, 3, 4, 5]
    for point in count():
        unfold(landed)
        died = killed_folding_at(point, landed.settings, "shopping", SPAN, trimmed)
        reader = JournalReader(landed.shop.deployment, "shopping")
        assert [reader.entry(number).barrier_id for number in range(6, 0, -1)] == [6, 5, 4, 3, 2, 1]
        fold(landed.shop.deployment, "shopping", [5])
        assert journal(landed) == ["b6", "head", *FOLDED]
        if not died:
            break
    report(f"folding of a journal: {point} deaths, no entry lost")
    assert point == 2 * (2 + 5), "before and after each of two files written and five deleted"


def unfold(landed: LandedShop) -> None:
    """As the journal was before it was folded."""
    reader = JournalReader(landed.shop.deployment, "shopping")
    folder = landed.shop.deployment.tables.location("_barrier", "shopping", "journal", "")
    for number in range(1, 6):
        landed.shop.deployment.tables.write_text(f"{folder}b{number}.json", reader.entry(number).dumps())
    landed.shop.deployment.tables.delete(f"{folder}{name}.json" for name in FOLDED)


@pytest.mark.parametrize("settings", ["sqlite apart"], indirect=True)
def test_who_folds_beside_another_loses_nothing(landed: LandedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two entries that it reads, another one folds the same barriers, and deletes them."""
    landed.committed(*range(1, 7))
    expired(landed)
    unfold(landed)
    deployment = landed.shop.deployment
    read, beside = trimmed_journal.read_entry, iter([True])

    def reading(*arguments: object) -> object:
        found = read(*arguments)  # type: ignore[arg-type]
        if next(beside, False):
            fold(deployment, "shopping", [1, 2])
        return found

    monkeypatch.setattr(trimmed_journal, "read_entry", reading)
    fold(deployment, "shopping", [1, 2, 5])
    assert journal(landed) == ["b6", "head", *FOLDED]
    reader = JournalReader(deployment, "shopping")
    assert [reader.entry(number).barrier_id for number in (3, 2, 1)] == [3, 2, 1]


@pytest.mark.parametrize("settings", ["sqlite apart"], indirect=True)
def test_what_is_missing_or_long_stays_as_it_is(
    landed: LandedShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    landed.committed(*range(1, 7))
    expired(landed)
    unfold(landed)
    deployment = landed.shop.deployment
    first = deployment.tables.location("_barrier", "shopping", "journal", "b1.json")
    text = deployment.tables.read_text(first)
    deployment.tables.delete([first])
    fold(deployment, "shopping", [2])
    assert "the journal of barriers 0 to 2 stays as it is" in caplog.text
    assert first in caplog.text
    assert journal(landed) == ["b2", "b3", "b4", "b5", "b6", "head"]
    deployment.tables.write_text(first, text)
    monkeypatch.setattr(trimmed_journal, "_LONGEST", 10)
    fold(deployment, "shopping", [2])
    assert journal(landed) == ["b1", "b2", "b3", "b4", "b5", "b6", "head", "trimmed-0"]
    assert JournalReader(deployment, "shopping").entry(2).barrier_id == 2


def test_a_backup_whose_newest_barrier_is_trimmed_by_now(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1, 2)
    backups.back_up()
    landed.committed(*range(3, 9))
    expired(landed)
    landed.close()
    backups.put_back()
    landed.reconnect()
    deployment = landed.shop.deployment
    recover(deployment, "shopping", actor="test", reason="test")
    assert [barrier.barrier_id for barrier in deployment.meta.answers.readable("shopping")] == [8]
    landed.committed(9)
    landed.check_oracle(9)


@pytest.mark.parametrize("settings", ["sqlite apart"], indirect=True)
def test_a_strangers_backup_is_refused_by_time_where_the_snapshots_are_forgotten(
    landed: LandedShop, backups: Backups
) -> None:
    landed.committed(1, 2)
    backups.back_up()
    landed.committed(*range(3, 9))
    expired(landed)
    uri = landed.shop.deployment.tables.location("_barrier", "shopping", "journal", "trimmed-0.json")
    text = landed.shop.deployment.tables.read_text(uri)
    run_id = landed.shop.deployment.meta.barriers.get("shopping", 2).run.run_id
    landed.close()
    backups.put_back()
    landed.reconnect()
    landed.shop.deployment.tables.write_text(uri, text.replace(run_id, "scheduled__by another"))
    with pytest.raises(JournalError, match="found others of run: this MetaService is of another deployment"):
        recover(landed.shop.deployment, "shopping", actor="test", reason="test")
