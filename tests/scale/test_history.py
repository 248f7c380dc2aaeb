"""What a barrier costs does not grow with how many there were: counted after 100 barriers and after 100,000."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.window import replay_of
from airflow_barrier.coordinator.status import status
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import BarrierState, TableState
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import LOAD_JOB, PRICE_JOB, SHOPPING, World, day
from tests.scale.history import multiply
from tests.scale.meters import Cost, Meter, metering
from tests.support.postgresql import USER, PostgreSQL, with_driver
from tests.support.reporting import report
from tests.support.runs import run_of

FEW, MANY = 100, 100_000


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[tuple[str, str]]:
    """Two empty databases."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/few.db", f"sqlite:///{tmp_path}/many.db"
        return
    with postgresql.database() as few, postgresql.database() as many:
        for url in (few, many):
            postgresql.run(f"GRANT SET ON PARAMETER session_replication_role TO {USER}", database=url)
        yield few, many


def costs(world: World, meter: Meter, number: int) -> dict[str, Cost]:
    """Of each step of barrier ``number``, the next one, and of the questions asked meanwhile."""
    meta, name = world.meta, world.name
    last, gone, hold = number - 1, number - 2, Hold("reader", 60)
    steps: dict[str, Callable[[], object]] = {
        "register": lambda: world.declare([LOAD_JOB, PRICE_JOB]),
        "head": lambda: meta.barriers.head(name),
        "newest decided": lambda: meta.barriers.newest_decided(name),
        "unannounced": lambda: meta.publishing.unannounced(name, number),
        "unjoined": lambda: meta.barriers.unjoined(name),
        "used items": lambda: meta.cuts.used_items(name, "files", [f"file {last}", "new"]),
        "open": lambda: world.open(number, items=[f"file {number}"]),
        "open barriers": lambda: meta.barriers.uncommitted(name),
        "by time": lambda: meta.barriers.at(name, day(last)),
        "by run": lambda: meta.barriers.of_run(name, run_of(f"scheduled__{last}")),
        "cuts": lambda: meta.cuts.of(name, last),
        "replay of the last one": lambda: replay_of(meta, Wanted(name, last)),
        "replay of a day": lambda: replay_of(meta, Wanted(name, day(gone).date(), mode=RevisionMode.FULL)),
        "refused replay of a day": lambda: refused(lambda: replay_of(meta, Wanted(name, day(number + 9)))),
        "a history to join with": lambda: meta.barriers.newest_epochs(name, limit=3),
        "waiting": lambda: meta.attempts.start(world.request(number, "price").attempt_id),
        "load": lambda: world.process(number, "load"),
        "unchanged": lambda: world.process(number, "price", unchanged=True),
        "restage": lambda: world.request(number, "load", generation="g2"),
        "stage again": lambda: world.process_all(number, generation="g2"),
        "sensor's poll, tables": lambda: meta.barriers.stands(name, number).reached([SHOPPING], TableState.PROCESSED),
        "sensor's poll, barrier": lambda: meta.barriers.stands(name, number).reached(None, BarrierState.COMMIT),
        "status": lambda: status(meta, name),
        "read uncommitted": lambda: meta.answers.resolve(name, Level.READ_UNCOMMITTED),
        "read committed": lambda: meta.answers.resolve(name, Level.READ_COMMITTED),
        "repeatable read": lambda: meta.answers.resolve(name, Level.REPEATABLE_READ),
        "read by time and hold": lambda: meta.answers.resolve(name, Level.REPEATABLE_READ, at=day(last), hold=hold),
        "renew": lambda: meta.leases.renew(meta.leases.of(name, last)[0].lease_id, 60),
        "what is held": lambda: meta.leases.held(name),
        "decide, and thin": lambda: meta.publishing.begin(
            name, number, dict.fromkeys(world.tables(number)), "test", [gone]
        ),
        "publish": lambda: world.publish(number),
        "what is being expired": lambda: meta.expiry.pending(name),
        "end of expiry": lambda: meta.expiry.expired(name, [gone], "test"),
        "trim": lambda: meta.expiry.trim(name, meta.now() + timedelta(days=1), "test"),
        "audit": lambda: meta.audit.newest(name, number),
        "newest audit": lambda: meta.audit.newest(name, limit=5),
        "abort of the next": lambda: (world.open(number + 1, items=["a"]), world.abort(number + 1)),
    }
    return {what: meter.of(step) for what, step in steps.items()}


def refused(work: Callable[[], object]) -> None:
    with pytest.raises(RevisionRefusedError):
        work()


def after(url: str, length: int, meter: Meter) -> dict[str, Cost]:
    """What the barrier after a history of ``length`` costs."""
    meta = MetaService(url)
    world = World(meta, jobs=[LOAD_JOB, PRICE_JOB])
    for number in (1, 2):
        world.open(number, items=[f"file {number}"])
        world.process(number, "load")
        world.process(number, "price", unchanged=True)
        world.commit(number)
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        rows = multiply(connection, template=2, last=length)
    # A database that lives so long has been looked at: PostgreSQL does that by itself.
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
    engine.dispose()
    assert meta.barriers.head(world.name) == world.barrier(length)
    assert world.barrier(length).state is BarrierState.COMMIT
    world.committed(length + 1)  # what is read for the first time is not counted
    found = costs(world, meter, length + 2)
    assert world.barrier(length).expired_at is not None
    assert world.tables(length) == {}, "it was trimmed"
    meta.close()
    if length == FEW:
        check_audit(url)  # the copies are as real barriers
    report(f"scale: {length} barriers, {rows} rows, on {engine.dialect.name}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.drawn("large ones")
def test_a_barrier_costs_the_same_after_a_hundred_thousand(urls: tuple[str, str]) -> None:
    with metering() as meter:
        few, many = after(urls[0], FEW, meter), after(urls[1], MANY, meter)
    what = "rows touched" if urls[0].startswith("postgresql") else "instructions"
    report(f"scale: statements and {what} of each step at {FEW} and at {MANY} barriers")
    for step, cost in many.items():
        report(f"  {step:24} {few[step].statements:4} {cost.statements:4}   {few[step].touched:6} {cost.touched:6}")
    totals = [sum(getattr(cost, of) for cost in at.values()) for of in ("statements", "touched") for at in (few, many)]
    report(f"  {'all of them':24} {totals[0]:4} {totals[1]:4}   {totals[2]:6} {totals[3]:6}")
    assert all(cost.statements and cost.touched for cost in many.values()), "counted"
    more = {step: cost for step, cost in many.items() if cost.statements > few[step].statements}
    assert not more, "statements"
    grown = {step: (few[step], cost) for step, cost in many.items() if cost.touched > few[step].touched * 1.3 + 100}
    assert not grown, what
    if urls[0].startswith("postgresql"):
        # Small tables are scanned whole, so that few barriers may cost more: here the history is to stay unread.
        assert max(cost.touched for cost in many.values()) < MANY / 50, what
