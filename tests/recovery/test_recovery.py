"""A MetaService that was lost, restored from an old backup, or mistaken for another: noticed, refused, caught up.

The landing folder holds all files from the start, so whoever forgets what was read reads it again; the amounts are
powers of two, so that every table tells which files are in it, and how often.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_lead, entry_of, entry_uri, read_head, write_entry, write_head
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import close
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    BarrierError,
    JournalError,
    LeaseLostError,
    LostStateError,
    MissingTableError,
    UnknownBarrierError,
)
from airflow_barrier.protocol.journal import JournalHead
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.tags import TagPolicy
from airflow_barrier.protocol.topology import Fragment, Job
from tests.recovery.backups import Backups
from tests.recovery.dying import killed_at
from tests.recovery.landing import TABLES, LandedShop
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, COLUMNS, SHOPPING, Shop


@pytest.fixture
def old(landed: LandedShop, backups: Backups) -> LandedShop:
    """Three barriers were committed and backed up, then three more."""
    landed.committed(1, 2, 3)
    backups.back_up()
    landed.committed(4, 5, 6)
    return landed


def put_back(landed: LandedShop, backups: Backups) -> None:
    landed.close()
    backups.put_back()
    landed.reconnect()


def lose(landed: LandedShop, backups: Backups) -> None:
    landed.close()
    backups.lose()
    landed.reconnect()


def served(deployment: Deployment) -> int | None:
    return deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ).barrier_id


# --- an old backup --------------------------------------------------------------------------------


@pytest.mark.kills("lead-before-deciding", "old-backup", "journal-before-publish")
def test_a_backup_three_barriers_old_is_noticed_refused_and_caught_up(old: LandedShop, backups: Backups) -> None:
    landed = old
    put_back(landed, backups)
    with pytest.raises(LostStateError, match=r"knows barrier 6.*barriers up to 3 only.*`airflow-barrier recover shop"):
        landed.open(7)
    recovered = recover(landed.shop.deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == [4, 5, 6]
    assert served(landed.shop.deployment) == 6
    landed.check_oracle(6)
    landed.committed(7, 8)
    landed.check_oracle(8)


@pytest.mark.kills("lead-before-deciding")
def test_what_was_in_flight_at_the_backup_is_not_committed_on_top(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1)
    landed.process(landed.open(2))
    backups.back_up()
    landed.shop.commit(landed.shop.deployment.meta.barriers.get("shopping", 2))
    landed.committed(3)
    put_back(landed, backups)
    deployment = landed.shop.deployment
    assert deployment.meta.barriers.get("shopping", 2).state is BarrierState.PRECOMMIT
    with pytest.raises(LostStateError, match="recover"):
        commit_barrier(deployment, "shopping", 2, actor="test")
    recovered = recover(deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == [2, 3]
    landed.committed(4)
    landed.check_oracle(4)


@pytest.mark.kills("in-flight-is-given-up")
def test_what_was_open_is_given_up_and_joins_the_next(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1)
    second, third = landed.open(2), landed.open(3)
    landed.process(second)
    zombie, record = landed.stage(third, "load")
    backups.back_up()
    landed.shop.commit(second)
    put_back(landed, backups)
    deployment = landed.shop.deployment
    recover(deployment, "shopping", actor="test", reason="test")
    assert deployment.meta.barriers.get("shopping", 2).state is BarrierState.COMMIT
    assert deployment.meta.barriers.get("shopping", 3).state is BarrierState.ABORTED
    with pytest.raises(BarrierAbortedError, match="recovered"):
        close(deployment, zombie.attempt, record=record, actor="zombie")
    landed.committed(4)
    landed.check_oracle(4)


@pytest.mark.kills("recovered-numbers-are-new", "new-incarnation")
def test_attempts_of_the_lost_time_get_no_namesake(old: LandedShop, backups: Backups) -> None:
    landed = old
    fourth = landed.shop.deployment.meta.attempts.of("shopping", 4)
    seventh = landed.open(7)
    zombie, record = landed.stage(seventh, "load")
    put_back(landed, backups)
    with pytest.raises(BarrierError):
        close(landed.shop.deployment, zombie.attempt, record=record, actor="zombie")
    incarnation = landed.shop.deployment.meta.topologies.incarnation("shopping")
    recover(landed.shop.deployment, "shopping", actor="test", reason="test")
    again = landed.open(7)
    ready, _ = landed.stage(again, "load")
    assert ready.attempt.attempt_id > zombie.attempt.attempt_id + 500 > fourth[-1].attempt_id
    assert ready.attempt.incarnation != incarnation == zombie.attempt.incarnation
    with pytest.raises(UnknownBarrierError):
        close(landed.shop.deployment, zombie.attempt, record=record, actor="zombie")
    landed.process(again)
    landed.shop.commit(again)
    landed.check_oracle(7)


OTHER = Fragment("other", "other_dag", (Job("other", "other_dag", outlets=("shop.other",)),))


def run_other(shop: Shop, day: int) -> None:
    """A barrier of another topology in the same MetaService."""
    barrier = shop.open(day, OTHER)
    shop.process(barrier, "other", [{"amount": 2**day}])
    commit_barrier(shop.deployment, "other", barrier.barrier_id, actor="test")


@pytest.mark.parametrize("gone", [put_back, lose], ids=["old", "lost"])
def test_each_topology_is_recovered_by_itself_and_no_other_is_stopped_by_that(
    landed: LandedShop, backups: Backups, monkeypatch: pytest.MonkeyPatch, gone: Callable[[LandedShop, Backups], None]
) -> None:
    landed.committed(1)
    monkeypatch.setitem(COLUMNS, "shop.other", ("amount",))
    schema = landed.shop.deployment.tables.load(AMOUNT).schema()
    landed.shop.deployment.tables.catalog.create_table("shop.other", schema)
    run_other(landed.shop, 1)
    backups.back_up()
    landed.committed(2)
    run_other(landed.shop, 2)
    gone(landed, backups)
    recover(landed.shop.deployment, "shopping", actor="test", reason="test")
    recover(landed.shop.deployment, "other", actor="test", reason="test")
    landed.committed(3)
    run_other(landed.shop, 3)
    recover(
        landed.shop.deployment, "shopping", actor="test", reason="test"
    )  # nothing was lost: also then only its own attempts are
    run_other(landed.shop, 4)
    landed.committed(4)
    assert landed.shop.main_totals()["shop.other"] == 2 + 4 + 8 + 16
    monkeypatch.undo()
    landed.check_oracle(4)


# --- lost altogether ------------------------------------------------------------------------------


def test_a_lost_metaservice_is_noticed_and_rebuilt(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1, 2, 3)
    before = {b: landed.shop.deployment.meta.barriers.progress("shopping", b) for b in (1, 2, 3)}
    cuts = {b: landed.shop.deployment.meta.cuts.of("shopping", b) for b in (1, 2, 3)}
    lose(landed, backups)
    with pytest.raises(LostStateError, match=r"another deployment's MetaService.*`airflow-barrier recover shopping`"):
        landed.open(4)
    recovered = recover(landed.shop.deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == [1, 2, 3]
    assert set(recovered.reattached) == (set(TABLES) if landed.shop.deployment.shares_database else set())
    meta = landed.shop.deployment.meta
    for barrier_id in (1, 2, 3):
        rows = meta.barriers.progress("shopping", barrier_id)
        assert [(r.table, r.snapshot_id, r.job) for r in rows] == [
            (r.table, r.snapshot_id, r.job) for r in before[barrier_id]
        ]
        assert meta.cuts.of("shopping", barrier_id) == cuts[barrier_id]
        assert meta.barriers.get("shopping", barrier_id).run == run_of(f"shopping_dag/day-{barrier_id}")
    assert served(landed.shop.deployment) == 3
    landed.check_oracle(3)
    landed.committed(4, 5)
    landed.check_oracle(5)


def test_carried_tables_and_joining_ones_are_rebuilt(landed: LandedShop, backups: Backups) -> None:
    from airflow_barrier.protocol.records import StagedTable
    from airflow_barrier.protocol.topology import Fragment
    from airflow_barrier.spark.spec import ClosingRecord

    all_jobs = landed.fragment.jobs
    shop = landed.shop
    first = shop.open(1, Fragment("shopping", "shopping_dag", all_jobs[:2]))
    landed.process(first, "load", "amount")
    shop.commit(first)
    second = landed.open(2)
    landed.process(second, "load", "price")
    ready = shop.begin(second, "amount")
    unchanged = {table: StagedTable(table, None, unchanged=True) for table in ready.spec.bases}
    close(shop.deployment, ready.attempt, record=ClosingRecord(ready.attempt.attempt_id, unchanged), actor="t")
    shop.commit(second)
    rows = [(r.table, r.snapshot_id, r.carried_from) for r in shop.deployment.meta.barriers.progress("shopping", 2)]
    lose(landed, backups)
    shop = landed.shop
    recover(shop.deployment, "shopping", actor="test", reason="test")
    assert [
        (r.table, r.snapshot_id, r.carried_from) for r in shop.deployment.meta.barriers.progress("shopping", 2)
    ] == rows
    assert (
        len(
            shop.deployment.meta.topologies.get(
                "shopping", shop.deployment.meta.barriers.get("shopping", 1).topology_version
            ).jobs
        )
        == 2
    )
    totals = shop.main_totals()
    landed.process(third := landed.open(3))
    shop.commit(third)
    assert {t: n - totals[t] for t, n in shop.main_totals().items()} == dict.fromkeys(TABLES, 2**3)


def test_a_decision_that_was_not_published_is_rolled_forward(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1)
    landed.process(second := landed.open(2))
    meta = landed.shop.deployment.meta
    meta.publishing.begin("shopping", 2, landed.shop.deployment.tables.mains(list(TABLES)), "test")
    write_entry(landed.shop.deployment, *entry_of(landed.shop.deployment, meta.barriers.get("shopping", 2)))
    lose(landed, backups)
    recovered = recover(landed.shop.deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == [1, second.barrier_id]
    landed.check_oracle(2)
    landed.committed(3)
    landed.check_oracle(3)


# --- what else may happen to it -------------------------------------------------------------------


@pytest.mark.kills("another-metaservice-leads")
def test_two_deployments_on_one_warehouse_are_told_apart(landed: LandedShop, backups: Backups) -> None:
    """Two connections that differ in the MetaService only: of one topology's tables one can be the leader."""
    landed.committed(1, 2)
    mistaken = replace(
        landed.settings, metaservice_url=f"sqlite:///{backups.folder}/other.db", metaservice_password=None
    )
    other = LandedShop(Shop(Deployment.connect(mistaken)), landed.folder, mistaken)
    with pytest.raises(LostStateError, match="expected the MetaService that leads it"):
        other.open(1)
    other.close()
    landed.committed(3)
    landed.check_oracle(3)


@pytest.mark.kills("journal-agrees")
def test_recovering_into_a_strangers_metaservice_is_refused(old: LandedShop, backups: Backups) -> None:
    """A MetaService that committed something else may not be mixed with this history."""
    landed = old
    deployment = landed.shop.deployment
    uri = entry_uri(deployment, "shopping", 3)
    entry = json.loads(deployment.tables.read_text(uri))
    put_back(landed, backups)
    deployment = landed.shop.deployment
    entry["tables"][SHOPPING]["snapshot_id"] = 4711
    deployment.tables.write_text(uri, json.dumps(entry))
    with pytest.raises(JournalError, match=f"found others of {SHOPPING}: this MetaService is of another deployment"):
        recover(deployment, "shopping", actor="test", reason="test")
    assert deployment.meta.barriers.newest_decided("shopping").barrier_id == 3  # type: ignore[union-attr]


@pytest.mark.kills("journal-leads-back")
def test_recovering_into_a_metaservice_that_the_journal_does_not_lead_back_to_is_refused(
    old: LandedShop, backups: Backups
) -> None:
    """The barrier that the MetaService committed last is none of this history: there it was aborted, say."""
    landed = old
    tables = landed.shop.deployment.tables
    uri = entry_uri(landed.shop.deployment, "shopping", 4)
    tables.write_text(uri, tables.read_text(uri).replace('"predecessor": 3', '"predecessor": 2'))
    put_back(landed, backups)
    with pytest.raises(JournalError, match=r"lead back to barrier 3, .* committed, found that it leads to barrier 2"):
        recover(landed.shop.deployment, "shopping", actor="test", reason="test")


# Not where the catalog went back with the MetaService: there no table tells of what came later, only the head does.
@pytest.mark.kills("own-write-is-no-foreign-one")
@pytest.mark.parametrize("settings", ["sqlite apart"], indirect=True)
def test_a_head_that_lags_does_not_hide_what_was_published(old: LandedShop, backups: Backups) -> None:
    """A committer that was suspended before it wrote the head may write it last: tables say what was published."""
    landed = old
    head = read_head(landed.shop.deployment, "shopping")
    assert head is not None
    write_head(landed.shop.deployment, "shopping", JournalHead(head.incarnation, 3))
    put_back(landed, backups)
    deployment = landed.shop.deployment
    check_lead(deployment, "shopping")
    fourth = landed.open(4)
    with pytest.raises(LostStateError, match=r"is at barrier 6.*recover"):
        landed.process(fourth)
    recovered = recover(deployment, "shopping", actor="test", reason="test")
    assert [entry.barrier_id for entry in recovered.entries] == [4, 5, 6]
    landed.committed(7)
    landed.check_oracle(7)


@pytest.mark.kills("origin-before-leading", "origin-is-known", "recovers-by-a-journal")
def test_without_a_journal_the_tables_still_say_that_something_is_lost(landed: LandedShop, backups: Backups) -> None:
    landed.committed(1, 2)
    for file in Path(backups.settings.warehouse, "_barrier", "shopping", "journal").iterdir():
        file.unlink()
    # a catalog that is lost along has no tables any more
    expected: type[BarrierError] = MissingTableError if landed.shop.deployment.shares_database else LostStateError
    lose(landed, backups)
    deployment = landed.shop.deployment
    with pytest.raises(expected):
        landed.open(3)
    with pytest.raises(JournalError, match="expected a journal beside its tables, found none"):
        recover(deployment, "shopping", actor="test", reason="test")


@pytest.mark.kills("journal-is-there")
def test_a_missing_entry_is_named(old: LandedShop, backups: Backups) -> None:
    landed = old
    deployment = landed.shop.deployment
    uri = entry_uri(deployment, "shopping", 5)
    deployment.tables.delete([uri])
    put_back(landed, backups)
    deployment = landed.shop.deployment
    with pytest.raises(JournalError, match=f"expected a file at {uri}"):
        recover(deployment, "shopping", actor="test", reason="test")


def test_recovering_again_changes_nothing_that_anyone_reads(old: LandedShop, backups: Backups) -> None:
    landed = old
    put_back(landed, backups)
    deployment = landed.shop.deployment
    recover(deployment, "shopping", actor="test", reason="test")
    rows = deployment.meta.barriers.progress("shopping", 6)
    again = recover(deployment, "shopping", actor="test", reason="test")
    assert again.entries == ()
    assert deployment.meta.barriers.progress("shopping", 6) == rows
    landed.committed(7)
    landed.check_oracle(7)


@pytest.mark.kills("recovered-without-tags-is-expired", "recovered-leases-are-new")
def test_readers_of_before_the_loss_are_told_and_find_no_barrier_that_is_gone(
    landed: LandedShop, backups: Backups
) -> None:
    def thinned() -> Deployment:
        landed.shop.deployment = replace(landed.shop.deployment, tag_policy=TagPolicy(newest=2))
        return landed.shop.deployment

    def lease(deployment: Deployment) -> int:
        answer = deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ, hold=Hold("reader", 3600))
        assert answer.lease is not None
        return answer.lease.lease_id

    landed.kept = None  # which has more tags
    thinned()
    landed.committed(1, 2, 3)
    backups.back_up()
    landed.committed(4)
    lost = lease(landed.shop.deployment)
    put_back(landed, backups)
    recover(thinned(), "shopping", actor="test", reason="test")
    meta = landed.shop.deployment.meta
    assert [barrier.barrier_id for barrier in meta.answers.readable("shopping")] == [3, 4]
    assert lease(landed.shop.deployment) != lost
    with pytest.raises(LeaseLostError):
        meta.leases.renew(lost, 60)
    landed.committed(5)
    assert [barrier.barrier_id for barrier in meta.answers.readable("shopping")] == [4, 5]


def test_the_command_line_says_what_it_did(
    old: LandedShop,
    backups: Backups,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    landed = old
    put_back(landed, backups)
    extra = {
        "metaservice_url": settings.metaservice_url,
        "catalog_uri": settings.catalog_uri,
        "catalog_password": settings.catalog_password,
        "warehouse": settings.warehouse,
    }
    connection = {"conn_type": "barrier", "password": settings.metaservice_password, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_RECOVERY", json.dumps(connection))
    command = ["recover", "--conn-id", "barrier_recovery", "--reason", "restored"]
    assert main([*command, "shopping"]) == 2, "nobody is there to be asked"
    assert "expected --yes" in capsys.readouterr().err
    command.append("--yes")
    assert main([*command, "shopping"]) == 0
    said = capsys.readouterr().out
    assert "barrier 5 of shopping (2026-01-10 00:00:00+0000) is COMMIT again" in said
    assert "3 barriers put back, the newest is barrier 6 of shopping" in said
    assert main([*command, "shopping", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["topology"], told["entries"], told["newest"]["barrier_id"]) == ("shopping", [], 6)
    assert told["incarnation"] == landed.shop.deployment.meta.topologies.incarnation("shopping")
    assert main([*command, "nothing"]) == 1
    assert "expected a journal" in capsys.readouterr().err
    audit = landed.shop.deployment.meta.audit.newest("shopping", limit=500)
    assert {entry.event for entry in audit if entry.actor.endswith("(airflow-barrier)")} == {"recovered"}


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ["sqlite", "sqlite apart"], indirect=True)
def test_recovery_killed_at_any_step_is_finished_by_running_it_again(old: LandedShop, backups: Backups) -> None:
    landed, killed = old, 0
    for point in count():
        put_back(landed, backups)
        landed.close()
        if not killed_at(point, backups.settings, "shopping"):
            break
        killed += 1
        landed.reconnect()
        recover(landed.shop.deployment, "shopping", actor="again", reason="test")
        assert served(landed.shop.deployment) == 6
        landed.check_oracle(6)
    landed.committed(7)
    landed.check_oracle(7)
    assert killed >= 8, "the steps have to be met at all"
    report(f"recovery: killed at {killed} points ({backups.settings.catalog_uri.partition(':')[0]})")
