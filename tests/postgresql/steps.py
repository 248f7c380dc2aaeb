"""Every method of the MetaService that writes: what has to be there before it, and a call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.commits import Settled
from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.metaservice.rehearsals import Rehearsal
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.transaction import Group
from airflow_barrier.protocol.deliveries import Remedy
from airflow_barrier.protocol.journal import History
from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import rehearsal_name
from airflow_barrier.protocol.records import Barrier, Cut, Tries
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import Decision
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_deliveries import B1, B2, PRICES, delivered, register
from tests.metaservice.world import AMOUNT, JOBS, SHOPPING, World, staged
from tests.support.runs import run_of


@dataclass(frozen=True)
class Step:
    """``method``: of the MetaService. ``prepare`` may leave something for ``call``, which gets it."""

    method: str
    prepare: Callable[[World], Any]
    call: Callable[[World, Any], object]


def _nothing(world: World) -> None:
    """The topology is registered, no more."""


def _opened(world: World) -> None:
    world.open(1, items=["a"])


def _processed(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.open(2)
    world.process_all(2)


def _running(world: World) -> int:
    _opened(world)
    return world.start(1, "load").attempt_id


def _closed(world: World) -> int:
    """The last job of the barrier is."""
    world.open(1)
    for job in ("load", "amount", "price"):
        world.process(1, job)
    attempt = world.start(1, "top")
    world.close(attempt)
    return attempt.attempt_id


def _committing(world: World) -> None:
    _processed(world)
    world.begin_commit(1)


def _blocked(world: World) -> None:
    _committing(world)
    world.meta.publishing.block("shopping", 1, "a table moved", "test")


def _two_committed(world: World) -> None:
    world.committed(1)
    world.committed(2)


def _maintain(world: World) -> object:
    return world.meta.maintenance.open(
        Upkeep(
            "shopping",
            [AMOUNT],
            run=run_of("upkeep/tonight"),
            request_key="upkeep/tonight",
            generation="g1",
            max_open=4,
            actor="test",
        ),
    )


def _given_up_maintenance(world: World) -> None:
    _two_committed(world)
    _maintain(world)
    (attempt,) = world.meta.attempts.of("shopping", 3)
    world.meta.attempts.abort(attempt.attempt_id, "killed", "test")


def _rehearse(world: World) -> Barrier:
    """Of the third day, with the job of the last table carried."""
    meta, base = world.meta, world.meta.barriers.get("shopping", 2)
    return meta.rehearsals.begin(
        Rehearsal(
            replace(meta.topologies.get("shopping"), name=rehearsal_name("shopping", "dag", "run")),
            base,
            standing={row.table: row.snapshot_id for row in meta.barriers.progress("shopping", 2)},
            carried=[meta.topologies.get("shopping").job("top").outlets[0]],
            timestamp=base.timestamp + timedelta(days=1),
            timestamp_from="test",
            run=run_of("dag/run"),
            cuts=[Cut("files", None, {"day": 3}, ("c",))],
            starts=(),
            actor="test",
        )
    )


def _leased(world: World) -> int:
    _two_committed(world)
    return _lease(world).lease_id


def _dead_lease(world: World) -> None:
    _leased(world)
    world.meta._db.write(
        lambda c: c.execute(update(schema.lease).values(expires_at=schema.lease.c.granted_at)) and None
    )


def _lease(world: World) -> Lease:
    lease = world.meta.answers.resolve("shopping", Level.READ_UNCOMMITTED, hold=Hold("reader", 3600)).lease
    assert lease is not None
    return lease


def _expiring(world: World) -> None:
    _two_committed(world)
    assert world.meta.expiry.expire("shopping", [1], "test") == [1]


def _sink(world: World) -> None:
    _two_committed(world)
    register(world)


def _delivered(world: World) -> None:
    _sink(world)
    delivered(world, B1)


def _thinned(world: World) -> None:
    _two_committed(world)
    world.open(3)
    world.process_all(3)


def _close(world: World, attempt_id: int) -> object:
    attempt = world.meta.attempts.get(attempt_id)
    said = staged(attempt, unchanged=True)
    return world.meta.attempts.close(attempt_id, said, "test")


def _finish(world: World, attempt_id: int) -> object:
    attempt = world.meta.attempts.get(attempt_id)
    return world.meta.attempts.finish(attempt, staged(attempt, unchanged=True), "test")


def _settled(world: World) -> Settled:
    ours = world.snapshots(1)[AMOUNT]
    return Settled(AMOUNT, Decision.ADOPT_THEIRS, theirs=4711, ours=ours, reason="theirs is right", actor="test")


def _revising(world: World) -> Revision:
    """One of two committed barriers is computed again."""
    _two_committed(world)
    return world.revise(2, "price")


def _cut_and_revising(world: World) -> Revision:
    world.open(1, items=["a"])
    world.process_all(1)
    world.commit(1)
    return world.revise(1, "load")


def _opened_since(world: World) -> Revision:
    revision = _revising(world)
    world.open(3)
    return revision


def _revised(world: World) -> Revision:
    """What price and top made of barrier 2 is there; barrier 3 is open."""
    revision = _opened_since(world)
    world.meta.revisions.extend("shopping", revision.revision, "test")
    world.replay(revision, 2)
    for job in ("load", "amount"):
        world.process(3, job)
    world.replay(revision, 3)
    return revision


def _swapping(world: World) -> Revision:
    return world.begin_swap(_revised(world))


STEPS = {
    "a topology's first registration": Step(
        "topologies.register", _nothing, lambda world, _: world.meta.topologies.register("other", "dag", [], "test")
    ),
    "a registration that changes a topology": Step(
        "topologies.register", _processed, lambda world, _: world.declare(JOBS[:3])
    ),
    "a member's first job": Step(
        "topologies.join",
        _nothing,
        lambda world, _: world.meta.topologies.join(
            "shopping", "late", "mine", [Job("mine", "late", outlets=("shop.mine",))], "test"
        ),
    ),
    "a leave": Step(
        "topologies.leave",
        _nothing,
        lambda world, _: world.meta.topologies.leave("shopping", "dag", "top", "moves", "test"),
    ),
    "a readmission": Step(
        "topologies.readmit",
        lambda world: world.meta.topologies.leave("shopping", "dag", "top", "moves", "test") and None,
        lambda world, _: world.meta.topologies.readmit("shopping", "dag", "top", "test"),
    ),
    "the first barrier": Step("barriers.open", _nothing, lambda world, _: world.open(1, items=["a", "b"])),
    "the next barrier": Step("barriers.open", _opened, lambda world, _: world.open(2, items=["b"])),
    "a maintenance barrier": Step("maintenance.open", _two_committed, lambda world, _: _maintain(world)),
    "tables that are carried": Step(
        "maintenance.carry", _given_up_maintenance, lambda world, _: world.meta.maintenance.carry("shopping", 3, "test")
    ),
    "a cut": Step(
        "cuts.repin",
        _opened,
        lambda world, _: world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1}, ("mended",)), "test"),
    ),
    "a cut that was put off": Step(
        "cuts.make",
        lambda world: world.open(1, cuts=[Cut.later("files", "no answer")]),
        lambda world, _: world.meta.cuts.make("shopping", 1, Cut("files", None, {"day": 1}, ("made",)), "test"),
    ),
    "a source that begins anew": Step(
        "cuts.begin_anew",
        _opened,
        lambda world, _: world.meta.cuts.begin_anew("shopping", "files", "its slot was lost", "test"),
    ),
    "barriers given up": Step("barriers.abort", _processed, lambda world, _: world.abort(1)),
    "what a check has found": Step(
        "barriers.checked",
        _processed,
        lambda world, _: world.meta.barriers.checked("shopping", 1, 0, "ids", "1 row", "test"),
    ),
    "a rehearsal": Step("rehearsals.begin", _two_committed, lambda world, _: _rehearse(world)),
    "a rehearsal that is forgotten": Step(
        "rehearsals.drop",
        lambda world: (_two_committed(world), _rehearse(world))[1],
        lambda world, held: world.meta.rehearsals.drop(held.topology),
    ),
    "a first attempt": Step("attempts.request", _opened, lambda world, _: world.request(1, "load")),
    "an attempt in place of a running one": Step(
        "attempts.request", _running, lambda world, _: world.request(1, "load")
    ),
    "an attempt after a clear": Step(
        "attempts.request", _processed, lambda world, _: world.request(1, "amount", generation="cleared")
    ),
    "an attempt at a barrier ahead, in place of one that waits": Step(
        "attempts.lead",
        lambda world: (_opened(world), world.request(1, "amount"))[1],
        lambda world, _: world.lead(1, "amount"),
    ),
    "a start": Step(
        "attempts.start",
        lambda world: (_opened(world), world.request(1, "load").attempt_id)[1],
        lambda world, attempt_id: world.meta.attempts.start(attempt_id),
    ),
    "a wait": Step(
        "attempts.start",
        lambda world: (_opened(world), world.request(1, "amount").attempt_id)[1],
        lambda world, attempt_id: world.meta.attempts.start(attempt_id),
    ),
    "a first attempt that starts": Step("attempts.begin", _opened, lambda world, _: world.begin(1, "load")),
    "a first attempt that waits": Step("attempts.begin", _opened, lambda world, _: world.begin(1, "amount")),
    "a rebase": Step(
        "attempts.rebase", _running, lambda world, attempt_id: world.meta.attempts.rebase(attempt_id, {SHOPPING: 4711})
    ),
    "a close": Step("attempts.close", _running, _close),
    "a report": Step(
        "attempts.report", _closed, lambda world, attempt_id: world.meta.attempts.report(attempt_id, "test")
    ),
    "a close with its report": Step("attempts.finish", _running, _finish),
    "an attempt given up": Step(
        "attempts.abort", _running, lambda world, attempt_id: world.meta.attempts.abort(attempt_id, "killed", "test")
    ),
    "the try of an attempt that failed": Step(
        "attempts.tried",
        lambda world: world.meta.attempts.abort(_running(world), "killed", "test").request_key,
        lambda world, key: world.meta.attempts.tried(key, Tries(1, 3, None)),
    ),
    "the decision to commit": Step("publishing.begin", _processed, lambda world, _: world.begin_commit(1)),
    "the decision to commit, where the tag policy drops a barrier": Step(
        "publishing.begin",
        _thinned,
        lambda world, _: world.meta.publishing.begin("shopping", 3, dict.fromkeys(world.tables(3)), "test", [1]),
    ),
    "the commit": Step("publishing.swapping", _committing, lambda world, _: world.publish(1)),
    "a block": Step(
        "publishing.block",
        _committing,
        lambda world, _: world.meta.publishing.block("shopping", 1, "a table moved", "test"),
    ),
    "an unblocking": Step(
        "publishing.unblock", _blocked, lambda world, _: world.meta.publishing.unblock("shopping", 1, "mended", "test")
    ),
    "an announcement": Step(
        "publishing.announce", _opened, lambda world, _: world.meta.publishing.announce("shopping", [1], "test")
    ),
    "an answer with a lease": Step("answers.resolve", _two_committed, lambda world, _: _lease(world)),
    "a renewal": Step("leases.renew", _leased, lambda world, lease_id: world.meta.leases.renew(lease_id, 3600)),
    "a release": Step("leases.release", _leased, lambda world, lease_id: world.meta.leases.release(lease_id)),
    "the end of a reader's lease": Step(
        "leases.end", _leased, lambda world, lease_id: world.meta.leases.end("shopping", lease_id, "test")
    ),
    "a look at what readers hold": Step(
        "leases.held", _dead_lease, lambda world, _: world.meta.leases.held("shopping")
    ),
    "an expiry": Step(
        "expiry.expire", _two_committed, lambda world, _: world.meta.expiry.expire("shopping", [1, 2], "test")
    ),
    "the end of an expiry": Step(
        "expiry.expired", _expiring, lambda world, _: world.meta.expiry.expired("shopping", [1], "test")
    ),
    "a trim": Step(
        "expiry.trim",
        lambda world: (_expiring(world), world.meta.expiry.expired("shopping", [1], "test"))[0],
        lambda world, _: world.meta.expiry.trim("shopping", world.meta.now() + timedelta(days=1), "test"),
    ),
    "a sink": Step("deliveries.register", _two_committed, lambda world, _: register(world)),
    "a sink that is declared otherwise": Step(
        "deliveries.register", _sink, lambda world, _: register(world, replace(PRICES, kind="files"))
    ),
    "a claim of a sink": Step(
        "deliveries.claim",
        _sink,
        lambda world, _: world.meta.deliveries.claim("shopping", "prices", "try 1", None),
    ),
    "the end of a claim": Step(
        "deliveries.unclaim",
        lambda world: (_sink(world), world.meta.deliveries.claim("shopping", "prices", "try 1", None))[0],
        lambda world, _: world.meta.deliveries.unclaim("shopping", "prices", "try 1"),
    ),
    "a delivery": Step("deliveries.delivered", _delivered, lambda world, _: delivered(world, B2)),
    "a sink that was loaded anew": Step(
        "deliveries.delivered", _delivered, lambda world, _: delivered(world, B1, reset=True)
    ),
    "a delivery that failed": Step(
        "deliveries.failed",
        _delivered,
        lambda world, _: world.meta.deliveries.failed("shopping", "prices", "no answer", "test"),
    ),
    "an announcement of a delivery": Step(
        "deliveries.announce",
        _delivered,
        lambda world, _: world.meta.deliveries.announce("shopping", "prices", [B1], "task"),
    ),
    "a pause": Step(
        "deliveries.pause",
        _delivered,
        lambda world, _: world.meta.deliveries.pause("shopping", "prices", "test", "moves"),
    ),
    "the end of a pause": Step(
        "deliveries.resume",
        lambda world: (_delivered(world), world.meta.deliveries.pause("shopping", "prices", "test", "moves"))[0],
        lambda world, _: world.meta.deliveries.resume("shopping", "prices", "test", "again"),
    ),
    "a remedy for a sink": Step(
        "deliveries.decide",
        _delivered,
        lambda world, _: world.meta.deliveries.decide("shopping", "prices", Remedy.REDELIVER, "test", "restored"),
    ),
    "another limit of a sink": Step(
        "deliveries.hold",
        _delivered,
        lambda world, _: world.meta.deliveries.hold("shopping", "prices", 60, "test"),
    ),
    "a sink that is let go of": Step(
        "deliveries.release",
        _delivered,
        lambda world, _: world.meta.deliveries.release("shopping", "prices", "test", "moves"),
    ),
    "a recovery": Step(
        "recovery.put_back",
        _processed,
        lambda world, _: world.meta.recovery.put_back(
            History("shopping", (), {}, published=0, above_attempt=8), "test", "test"
        ),
    ),
    "a revision": Step("revisions.begin", _two_committed, lambda world, _: world.revise(2, "price")),
    "a revision with a new cut": Step(
        "revisions.begin",
        _two_committed,
        lambda world, _: world.revise(
            2, "load", recut=["files"], cuts={2: [Cut("files", None, {"day": 2}, ("found",))]}
        ),
    ),
    "a revision that reaches the head again": Step(
        "revisions.extend",
        _opened_since,
        lambda world, revision: world.meta.revisions.extend("shopping", revision.revision, "test"),
    ),
    "a cut of a revision": Step(
        "revisions.recut",
        _cut_and_revising,
        lambda world, revision: world.meta.revisions.recut(
            "shopping", revision.revision, 1, Cut("files", None, {"day": 1}, ("a", "b")), "test"
        ),
    ),
    "a run that comes": Step(
        "revisions.bind_run",
        _revising,
        lambda world, revision: world.meta.revisions.bind_run("shopping", revision.revision, 2, "dag", "run", 1),
    ),
    "a run that could not be woken": Step(
        "revisions.unbind_run",
        lambda world: (
            revision := _revising(world),
            world.meta.revisions.bind_run("shopping", revision.revision, 2, "dag", "run", None),
        )[0],
        lambda world, revision: world.meta.revisions.unbind_run("shopping", revision.revision, "dag", "run"),
    ),
    "a gate": Step(
        "revisions.gate",
        _revising,
        lambda world, revision: world.meta.revisions.gate("shopping", revision.revision, closed=True, actor="test"),
    ),
    "a revision given up": Step(
        "revisions.cancel",
        _revised,
        lambda world, revision: world.meta.revisions.cancel("shopping", revision.revision, "no", "test"),
    ),
    "the decision to publish a revision": Step(
        "revisions.begin_swap", _revised, lambda world, revision: world.begin_swap(revision)
    ),
    "the swap": Step("revisions.swapping", _swapping, lambda world, revision: world.swap(revision)),
    "a person's choice": Step(
        "publishing.settle", _blocked, lambda world, _: world.meta.publishing.settle("shopping", 1, _settled(world))
    ),
}


#: Steps that somebody may take whatever there is.
VISITORS = {
    name: Step(STEPS[name].method, _nothing, STEPS[name].call)
    for name in ("barriers given up", "a recovery", "a leave", "an answer with a lease", "an expiry")
} | {
    "an answer at the first barrier with a lease": Step(
        "answers.resolve",
        _nothing,
        lambda world, _: (
            world.meta.answers.resolve("shopping", Level.READ_UNCOMMITTED, at=1, hold=Hold("reader", 3600)).lease
        ),
    ),
}


def writing_methods() -> set[str]:
    """The methods of the MetaService that begin a write transaction."""
    groups = {name: each for name, each in vars(MetaService("sqlite:////unused")).items() if isinstance(each, Group)}
    writes = ("@changes", "@locked", "self._write(lambda c:", "self._write_locked(", "self._writing_locked(")
    return {
        f"{group}.{name}"
        for group, each in groups.items()
        for name, method in inspect.getmembers(type(each), inspect.isfunction)
        if any(text in inspect.getsource(method) for text in writes)
    }
