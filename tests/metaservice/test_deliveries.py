"""Sinks: who declares and delivers to them, and what is remembered of their ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from airflow_barrier.metaservice.deliveries import HOLD_SECONDS
from airflow_barrier.protocol.deliveries import (
    Counts,
    DeliveryRecord,
    Position,
    Rows,
    SinkDeclaration,
    SinkRecord,
    SinkState,
)
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    SinkClaimedError,
    SinkTakenError,
    UnknownSinkError,
    UnknownTableError,
    UnknownTopologyError,
)
from tests.metaservice.test_concurrency import at_once
from tests.metaservice.world import AMOUNT, PRICE, World
from tests.support.postgresql import with_driver

PRICES = SinkDeclaration("prices", "dag", "postgresql", {PRICE: "prices"}, {"conn_id": "reporting", "key": ["id"]})
ONE = Counts(inserted=1)
B1, B2, B3 = Position(1, 0), Position(2, 0), Position(3, 0)


def register(world: World, declaration: SinkDeclaration = PRICES, hold_seconds: int | None = None) -> SinkRecord:
    return world.meta.deliveries.register(world.name, declaration, "test", hold_seconds)


def delivered(
    world: World, position: Position, counts: Counts = ONE, name: str = "prices", reset: bool = False
) -> SinkRecord:
    return world.meta.deliveries.delivered(
        world.name, name, position, counts=counts, seconds=0.5, actor="task 1", reset=reset
    )


def age(url: str, barrier_id: int, hours: int) -> None:
    """So long ago it was committed."""
    engine = create_engine(with_driver(url))
    ago = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', commit_at, '-{hours} hours')",
        "postgresql": f"commit_at - make_interval(hours => {hours})",
    }[engine.dialect.name]
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE barrier_barrier SET commit_at = {ago} WHERE barrier_id = {barrier_id}"))
    engine.dispose()


def events(world: World) -> list[str]:
    return [entry.event for entry in world.meta.audit.newest(world.name, limit=1000) if entry.kind == "sink"]


def history(world: World) -> list[DeliveryRecord]:
    return world.meta.deliveries.history(world.name, "prices")


def test_a_sink_is_registered_once(world: World) -> None:
    before = world.meta.now()
    sink = register(world)
    assert (sink.topology, sink.name, sink.owner, sink.definition) == ("shopping", "prices", "dag", PRICES)
    assert (sink.state, sink.position, sink.deliverer) == (SinkState.ACTIVE, None, None)
    assert (sink.failures, sink.hold_seconds) == (0, HOLD_SECONDS)
    assert before <= sink.created_at <= world.meta.now()
    changes = world.meta.topologies.change_count(world.name)
    assert register(world) == sink
    assert register(world, replace(PRICES, options={"conn_id": "reporting", "key": ("id",)})) == sink, "as JSON has it"
    assert register(world, hold_seconds=60) == sink, "what a person decided since would be undone by the next run"
    assert world.meta.topologies.change_count(world.name) == changes, "nobody has to look again"
    assert events(world) == ["registered"]


def test_sinks_are_found_by_their_names(world: World) -> None:
    other = World(world.meta, "other", ())
    with pytest.raises(UnknownSinkError, match="'prices': expected one of topology shopping, found only: none; corr"):
        world.meta.deliveries.get("shopping", "prices")
    pair = register(world, replace(PRICES, name="pair", targets={PRICE: "p", AMOUNT: "a"}), hold_seconds=0)
    prices = register(world)
    assert world.meta.deliveries.of("shopping") == [pair, prices]
    assert world.meta.deliveries.get("shopping", "pair") == pair
    assert pair.hold_seconds == 0
    assert world.meta.deliveries.of(other.name) == []
    with pytest.raises(UnknownSinkError, match="found only: pair, prices; correct the name, or run the DAG that"):
        world.meta.deliveries.get("shopping", "price")
    for ask in (world.meta.deliveries.of, lambda name: world.meta.deliveries.get(name, "prices")):
        with pytest.raises(UnknownTopologyError):
            ask("unknown")
    with pytest.raises(UnknownTopologyError):
        world.meta.deliveries.register("unknown", PRICES, "test")


@pytest.mark.kills("sink-of-one-dag")
def test_a_sink_is_of_one_dag_until_it_is_released(world: World) -> None:
    register(world)
    theirs = replace(PRICES, owner="theirs")
    with pytest.raises(
        SinkClaimedError, match=r"DAG theirs declares sink prices, to which DAG dag delivers.*sink release shopping pri"
    ):
        register(world, theirs)
    delivered(world, B1)
    world.meta.deliveries.pause(world.name, "prices", "person", "the database is moved")
    world.meta.deliveries.hold(world.name, "prices", 30 * 86_400, "person")
    released = world.meta.deliveries.release(world.name, "prices", "person", "moves")
    assert (released.owner, released.position) == ("dag", B1)
    world.meta.deliveries.release(world.name, "prices", "person", "again")
    assert (world.meta.deliveries.of(world.name), world.meta.deliveries.lags(world.name)) == ([], {})
    sink = register(world, theirs)
    assert (sink.owner, sink.released_at) == ("theirs", None)
    kept = (sink.state, sink.hold_seconds, len(history(world)))
    assert kept == (SinkState.PAUSED, 30 * 86_400, 1), "what people decided counts"
    assert sink.position is None, "it is asked of the sink's ledger, wherever that is now"
    last = [entry for entry in world.meta.audit.newest(world.name) if entry.kind == "sink"][-2]
    assert (last.event, last.actor, last.before, last.after) == ("released", "person", "PAUSED", "PAUSED")
    assert last.detail == {"owner": "dag", "position": "b1.r0", "reason": "moves"}
    with pytest.raises(UnknownSinkError):
        world.meta.deliveries.release(world.name, "amounts", "person", "moves")


def test_only_tables_of_the_topology_are_delivered(world: World) -> None:
    unknown = replace(PRICES, targets={PRICE: "p", "shop.prize": "x"})
    with pytest.raises(UnknownTableError, match=r"for sink prices, found shop.prize; its tables are: shop.amount, "):
        register(world, unknown)
    assert world.meta.deliveries.of(world.name) == []


@pytest.mark.parametrize("name", ["", "a\nb", " prices"])
def test_a_name_that_no_log_can_hold_is_refused(world: World, name: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a name that every database and log can hold"):
        register(world, replace(PRICES, name=name))


CHANGES = {
    "kind": replace(PRICES, kind="files"),
    "options": replace(PRICES, options={"conn_id": "other", "key": ["id"]}),
    "rows": replace(PRICES, rows=Rows.TABLE),
    "targets": replace(PRICES, targets={PRICE: "prices", AMOUNT: "amounts"}),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_declaration_replaces_the_one_before(world: World, changed: str) -> None:
    """Whether its targets may be delivered otherwise than before the sink's own ledger says."""
    world.meta.deliveries.pause(world.name, register(world).name, "person", "not yet")
    delivered(world, B2)
    sink = register(world, CHANGES[changed])
    assert (sink.definition, sink.state, sink.position) == (CHANGES[changed], SinkState.PAUSED, B2)
    assert events(world) == ["registered", "paused", "delivered", "registered"]


# --- delivering -------------------------------------------------------------------------------------------


@pytest.mark.kills("one-claims-a-sink", "lost-claim-is-told")
def test_a_sink_is_claimed_from_whom_one_has_seen(world: World) -> None:
    register(world)
    claim = world.meta.deliveries.claim
    assert claim(world.name, "prices", "try 1", None).deliverer == "try 1"
    for expected in ("try 1", None):
        assert claim(world.name, "prices", "try 1", expected).deliverer == "try 1", "again"
    with pytest.raises(SinkTakenError, match="expected that no task delivers to it, found try 1, which came first"):
        claim(world.name, "prices", "try 2", None)
    with pytest.raises(SinkTakenError, match="expected that try 0 delivers to it, found try 1"):
        claim(world.name, "prices", "try 2", "try 0")
    assert world.meta.deliveries.get(world.name, "prices").deliverer == "try 1"
    assert claim(world.name, "prices", "try 2", "try 1").deliverer == "try 2"
    assert events(world) == ["registered", "claimed", "claimed"]
    with pytest.raises(UnknownSinkError):
        claim(world.name, "amounts", "try 1", None)


@pytest.mark.kills("ends-its-own-claim")
def test_a_delivery_that_has_ended_leaves_the_sink_to_others(world: World) -> None:
    register(world)
    deliveries = world.meta.deliveries
    deliveries.claim(world.name, "prices", "try 1", None)
    changes = world.meta.topologies.change_count(world.name)
    deliveries.unclaim(world.name, "prices", "try 1")
    assert world.meta.topologies.change_count(world.name) > changes, "who waits for it looks again"
    assert deliveries.get(world.name, "prices").deliverer is None
    deliveries.claim(world.name, "prices", "try 2", None)
    deliveries.unclaim(world.name, "prices", "try 1")
    assert deliveries.get(world.name, "prices").deliverer == "try 2", "whom it was overtaken by"


def test_of_tasks_that_claim_at_once_one_gets_it(world: World) -> None:
    register(world)
    claim = world.meta.deliveries.claim
    results = at_once(lambda number: claim(world.name, "prices", f"try {number}", None))
    (won,) = (each for each in results if isinstance(each, SinkRecord))
    assert {type(each) for each in results if each is not won} == {SinkTakenError}
    assert world.meta.deliveries.get(world.name, "prices").deliverer == won.deliverer


def test_what_was_delivered_is_remembered(world: World) -> None:
    register(world)
    before, changes = world.meta.now(), world.meta.topologies.change_count(world.name)
    sink = delivered(world, B1, Counts(3, 2, 1))
    assert world.meta.topologies.change_count(world.name) > changes, "who waits for it looks again"
    assert sink.position == B1
    assert sink.delivered_at is not None
    assert before <= sink.delivered_at <= world.meta.now()
    (record,) = history(world)
    assert before <= record.delivered_at <= world.meta.now()
    assert record == DeliveryRecord(
        "shopping", "prices", 1, 0, 1, 3, 2, 1, seconds=0.5, actor="task 1", delivered_at=record.delivered_at
    )
    assert delivered(world, B1, Counts(3, 2, 1)) == sink, "again"
    assert history(world) == [record]
    assert events(world) == ["registered", "delivered"]
    several = world.meta.deliveries.delivered(
        "shopping", "prices", B3, counts=Counts(), seconds=2, actor="task 2", first_barrier=2
    )
    assert several.position == B3
    assert [(each.first_barrier, each.barrier_id, each.actor) for each in history(world)] == [
        (2, 3, "task 2"),
        (1, 1, "task 1"),
    ]
    assert world.meta.deliveries.history("shopping", "prices", limit=1) == history(world)[:1]
    delivered(world, Position(3, 1))
    assert world.meta.deliveries.get("shopping", "prices").position == Position(3, 1), (
        "a correction of the same barrier"
    )
    entry = world.meta.audit.newest("shopping", 3)[-1]
    assert (entry.kind, entry.subject, entry.barrier_id) == ("sink", "prices", 3)


@pytest.mark.kills("deliveries-go-forward")
def test_a_late_report_takes_nothing_back(world: World) -> None:
    register(world)
    at_two = delivered(world, B2)
    world.meta.deliveries.failed(world.name, "prices", "no answer", "test")
    failed = world.meta.deliveries.get(world.name, "prices")
    assert delivered(world, B1) == failed
    assert {(each.barrier_id, each.revision) for each in history(world)} == {(1, 0), (2, 0)}
    assert delivered(world, B2) == at_two


def test_a_sink_that_was_loaded_anew_may_be_further_back(world: World) -> None:
    register(world)
    for position in (B1, B2, B3):
        delivered(world, position)
    world.meta.deliveries.announce(world.name, "prices", [B1, B2, B3], "task")
    assert delivered(world, B2, Counts(100), reset=True).position == B2
    assert [(each.barrier_id, each.inserted) for each in history(world)] == [(2, 100), (3, 1), (1, 1)]
    assert [each.barrier_id for each in world.meta.deliveries.unannounced(world.name, "prices", "other")] == [2]


def test_failures_are_counted_until_one_succeeds(world: World) -> None:
    register(world)
    before = world.meta.now()
    first = world.meta.deliveries.failed(world.name, "prices", "no answer", "task 1")
    assert (first.error, first.failures) == ("no answer", 1)
    second = world.meta.deliveries.failed(world.name, "prices", "a row\nof key 7", "task 2")
    assert (second.error, second.failures) == ("a row\\nof key 7", 2)
    assert second.failed_at is not None
    assert before <= second.failed_at <= world.meta.now()
    sink = delivered(world, B1)
    assert (sink.error, sink.failed_at, sink.failures) == (None, None, 0)
    assert events(world) == ["registered", "failed", "failed", "delivered"]


@pytest.mark.kills("told-until-it-is-heard")
def test_what_airflow_was_not_told_is_known(world: World) -> None:
    register(world)
    register(world, replace(PRICES, name="other"))
    for position in (B2, B1, Position(2, 1)):
        delivered(world, position)
    delivered(world, B1, name="other")

    def left(by: str = "task") -> list[Position]:
        found = world.meta.deliveries.unannounced(world.name, "prices", by)
        return [Position(each.barrier_id, each.revision) for each in found]

    assert left() == [B1, B2, Position(2, 1)]
    world.meta.deliveries.announce(world.name, "prices", [], "one")
    world.meta.deliveries.announce(world.name, "prices", [B1, Position(2, 1), B3], "one")
    assert left() == [B2]
    assert left("one") == [B1, B2, Position(2, 1)], "its worker may have died before Airflow heard it"
    world.meta.deliveries.announce(world.name, "prices", [B1, B2], "other")
    assert (left(), left("one"), left("other")) == ([], [B1, Position(2, 1)], [B2])
    assert len(world.meta.deliveries.unannounced(world.name, "other", "task")) == 1


# --- what a person decides --------------------------------------------------------------------------------


def test_a_person_pauses_and_resumes(world: World) -> None:
    register(world)
    paused = world.meta.deliveries.pause(world.name, "prices", "person", "migration")
    assert paused.state is SinkState.PAUSED
    assert world.meta.deliveries.pause(world.name, "prices", "person", "migration") == paused, "again"
    resumed = world.meta.deliveries.resume(world.name, "prices", "person", "again")
    assert resumed.state is SinkState.ACTIVE
    assert world.meta.deliveries.resume(world.name, "prices", "person", "again") == resumed, "again"
    assert events(world) == ["registered", "paused", "resumed"]
    entry = next(each for each in world.meta.audit.newest(world.name) if each.event == "paused")
    assert (entry.before, entry.after, entry.actor, entry.detail) == (
        "ACTIVE", "PAUSED", "person", {"reason": "migration"}
    )  # fmt: skip


def test_a_person_says_how_long_is_held(world: World) -> None:
    register(world)
    assert world.meta.deliveries.hold(world.name, "prices", 3600, "person").hold_seconds == 3600
    assert world.meta.deliveries.hold(world.name, "prices", 3600, "person").hold_seconds == 3600, "again"
    assert events(world) == ["registered", "hold"]
    for wrong in (-1, 10**9):
        with pytest.raises(ConfigurationError, match=f"expected to hold what it lacks for 0 to .* found {wrong}"):
            world.meta.deliveries.hold(world.name, "prices", wrong, "person")
        with pytest.raises(ConfigurationError, match=f"expected to hold what it lacks for 0 to .* found {wrong}"):
            register(world, replace(PRICES, name="other"), hold_seconds=wrong)
    assert world.meta.deliveries.get(world.name, "prices").hold_seconds == 3600
