"""Expiry: history goes that nobody reads, holds or needs. Visibility goes before data.

First the MetaService says of a barrier that nobody begins to read at it any more, which it refuses while somebody
holds a lease, or a sink lacks it; then its tags go; then the snapshots that nothing names any more, and their files
with them. Whatever dies in between, the next expiry goes on from there: what it finds is decided anew from what is
still there. Of barriers that expired before this one began, the MetaService forgets the details along.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.rehearsing import forget_left_rehearsals
from airflow_barrier.coordinator.staging import barrier_folder
from airflow_barrier.coordinator.trimmed_journal import fold
from airflow_barrier.protocol.errors import ConfigurationError, ExpiryError, MissingTableError, UnknownBarrierError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.retention import BarrierVerdict, Retention, barrier_verdicts, window_start
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import Kept
from airflow_barrier.tables.port import Look, SnapshotVerdict

log = logging.getLogger(__name__)

#: Takes snapshots out of a table, with the files that only they have, and says in words what went.
TakeOut = Callable[[str, Sequence[int]], object]
#: What is said of a table that was dropped, or is no table (any more) whose refs we can edit.
_NOT_A_TABLE = (MissingTableError, ConfigurationError)


@dataclass(frozen=True)
class ExpiryPlan:
    """A plan of an expiry, with reasons: a verdict on each readable barrier and on each snapshot of each table."""

    topology: str
    retention: Retention
    barriers: tuple[BarrierVerdict, ...]
    tables: Mapping[str, tuple[SnapshotVerdict, ...]]
    #: In words: the connection's tag policy lets barriers go that the retention would keep. None: it does not.
    cut_short: str | None = None
    #: In words: the tables that cannot be looked at, and why.
    failed: tuple[str, ...] = ()

    @property
    def expiring(self) -> tuple[int, ...]:
        return tuple(verdict.barrier.barrier_id for verdict in self.barriers if not verdict.keep)

    @property
    def snapshots(self) -> int:
        """The number of snapshots of all tables that would go."""
        return sum(not verdict.keep for verdicts in self.tables.values() for verdict in verdicts)


@dataclass(frozen=True)
class Expired:
    """The result of an expiry: the barriers that are no longer readable, and table -> the snapshots that went."""

    barriers: tuple[int, ...]
    snapshots: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        count = sum(map(len, self.snapshots.values()))
        return f"{len(self.barriers)} barriers and {count} snapshots of {len(self.snapshots)} tables expired"


def plan_expiry(deployment: Deployment, topology: str, retention: Retention) -> ExpiryPlan:
    """Return the plan of :func:`expire` as of now; changes nothing."""
    verdicts = _barrier_verdicts(deployment, topology, retention)
    going = [verdict.barrier for verdict in verdicts if not verdict.keep]
    tags = [tag for barrier in (*going, *deployment.meta.expiry.pending(topology)) for tag in barrier.tags]
    verdicts_on = _table_verdicts(deployment, topology, verdicts, tags)
    members = deployment.meta.topologies.get(topology).tables
    look: Look = deployment.tables
    with suppress(*_NOT_A_TABLE):  # the look at that table alone says so
        look = deployment.tables.seen(members)
    tables, failed = {}, []
    for table in members:
        try:
            tables[table] = tuple(verdicts_on(table, look))
        except _NOT_A_TABLE as error:
            failed.append(str(error))
    cut_short = _cut_short(deployment, topology, retention, verdicts)
    return ExpiryPlan(topology, retention, tuple(verdicts), tables, cut_short, tuple(failed))


def expire(deployment: Deployment, topology: str, retention: Retention, take_out: TakeOut, *, actor: str) -> Expired:
    """Let go of the barriers beyond ``retention`` that nobody holds, and of all snapshots that nothing needs.

    Raises ExpiryError, once all other tables are done, if ``take_out`` did, or a table cannot be looked at.

    >>> expire(deployment, "shopping", Retention(31), spark_takes_out, actor="me")  # doctest: +SKIP
    """
    began = deployment.meta.now()
    forget_left_rehearsals(deployment, topology)
    verdicts = _barrier_verdicts(deployment, topology, retention)
    if cut_short := _cut_short(deployment, topology, retention, verdicts):
        log.warning("topology %s: %s", topology, cut_short)
    deployment.meta.expiry.expire(
        topology, [verdict.barrier.barrier_id for verdict in verdicts if not verdict.keep], actor
    )
    expired, failed = _drop_tags(deployment, topology, actor)
    verdicts_on = _table_verdicts(deployment, topology, verdicts)
    snapshots = {}
    for table in deployment.meta.topologies.get(topology).tables:
        try:
            going = [verdict.snapshot_id for verdict in verdicts_on(table, deployment.tables) if not verdict.keep]
            if not going:
                continue
            said = take_out(table, going)
        except (ExpiryError, *_NOT_A_TABLE) as error:
            log.warning("%s", error)
            failed[table] = str(error)
        else:
            log.info("table %s: %d snapshots expired: %s", table, len(going), said)
            snapshots[table] = tuple(going)
    trimmed: list[int] = []
    while some := deployment.meta.expiry.trim(topology, began, actor):
        for barrier_id in some:  # a commit may have died before it tidied up, and an abort leaves files
            deployment.tables.clear(barrier_folder(deployment, topology, barrier_id))
        trimmed += some
    fold(deployment, topology, trimmed)
    _let_go_of_sources(deployment, topology, verdicts)
    done = Expired(tuple(barrier.barrier_id for barrier in expired), snapshots)
    log.info("topology %s: %s", topology, done)
    if failed:
        raise ExpiryError(
            f"topology {topology}: expected to take snapshots out of all its tables, found that {len(failed)} failed: "
            f"{'; '.join(failed.values())}. All else is done, and the next expiry takes what is left"
        )
    return done


def _let_go_of_sources(deployment: Deployment, topology: str, verdicts: Sequence[BarrierVerdict]) -> None:
    """Have sources whose records lie beside the warehouse keep those of the barriers that stay, and of later ones."""
    oldest = min((verdict.barrier.barrier_id for verdict in verdicts if verdict.keep), default=0)
    cuts = deployment.meta.cuts.of(topology, oldest, items_of=()) if oldest else {}
    for source in map(source_of, deployment.meta.topologies.get(topology).externals):
        cut = cuts.get(source.name)
        if isinstance(source, Kept) and cut is not None and cut.put_off is None:
            source.let_go(cut, deployment.tables)


def _drop_tags(deployment: Deployment, topology: str, actor: str) -> tuple[list[Barrier], dict[str, str]]:
    """Drop the tags of barriers being expired, also by an expiry that died over it. One commit for all tables.

    Returns the barriers that have expired by that, and table -> why its tags could not be dropped: its barriers have
    not.
    """
    members, barriers = deployment.meta.topologies.get(topology).tables, deployment.meta.expiry.pending(topology)
    tagged: defaultdict[str, list[Barrier]] = defaultdict(list)
    for barrier in barriers:
        for progress in deployment.meta.barriers.progress(topology, barrier.barrier_id):
            tagged[progress.table].append(barrier)
    failed: dict[str, str] = {}
    tags = [tag for barrier in barriers for tag in barrier.tags]
    for table in _dropped_together(deployment, list(tagged), tags):
        try:
            deployment.tables.drop_tags([table], tags)
        except _NOT_A_TABLE as error:
            if table in members and not isinstance(error, MissingTableError):
                failed[table] = str(error)
            else:
                log.info("%s; its tags have gone with what it was", error)
    undone = {barrier.barrier_id for table in failed for barrier in tagged[table]}
    expired = [barrier for barrier in barriers if barrier.barrier_id not in undone]
    deployment.meta.expiry.expired(topology, [barrier.barrier_id for barrier in expired], actor)
    return expired, failed


def _dropped_together(deployment: Deployment, tables: Sequence[str], tags: Sequence[str]) -> Sequence[str]:
    """Drop the tags of all tables, by one commit where the catalog can. Returns those that have to go one by one, since
    there is something with one of them.
    """
    try:
        deployment.tables.drop_tags(tables, tags)
    except _NOT_A_TABLE:
        return tables
    return ()


def _barrier_verdicts(deployment: Deployment, topology: str, retention: Retention) -> list[BarrierVerdict]:
    meta = deployment.meta
    held: defaultdict[int, set[str]] = defaultdict(set)
    for lease in meta.leases.of(topology):
        for barrier_id in range(lease.barrier_id, lease.through_id + 1):
            held[barrier_id].add(lease.holder)
    in_use = {
        barrier.predecessor: f"{barrier} stands on it"
        for barrier in meta.barriers.uncommitted(topology)
        if barrier.predecessor
    }
    sinks = meta.deliveries.holding(topology)
    return barrier_verdicts(meta.answers.readable(topology), retention, meta.now(), held, in_use, sinks)


def _cut_short(
    deployment: Deployment, topology: str, retention: Retention, verdicts: Sequence[BarrierVerdict]
) -> str | None:
    """Return in words that each commit drops, by the tag policy, what ``retention`` would keep; None: it does not."""
    unbroken = deployment.tag_policy.unbroken
    if unbroken is None:
        return None
    newest = verdicts[-1].barrier.barrier_id if verdicts else 0
    if retention.barriers <= unbroken and not _is_young(deployment, topology, newest - unbroken, retention):
        return None
    return (
        f"expected to keep {retention}, found that the connection's tag policy ({deployment.tag_policy}) lets some of "
        "these go when newer ones are committed; set tag_policy to every=1, so that expiry alone decides, or keep less"
    )


def _is_young(deployment: Deployment, topology: str, barrier_id: int, retention: Retention) -> bool:
    """Return True if a barrier was committed within the retention's age, readable or not."""
    try:
        commit_at = deployment.meta.barriers.get(topology, barrier_id).commit_at
    except UnknownBarrierError:
        return False
    return commit_at is not None and deployment.meta.now() - commit_at < retention.age


def _table_verdicts(
    deployment: Deployment, topology: str, verdicts: Sequence[BarrierVerdict], dropped: Sequence[str] = ()
) -> Callable[[str, Look], Sequence[SnapshotVerdict]]:
    """Return a function that gives a table's verdicts on its snapshots, by a look at it, as of when it is called."""
    baselines = {row.table: row.snapshot_id for row in deployment.meta.barriers.progress(topology, 0)}

    def on(table: str, look: Look) -> Sequence[SnapshotVerdict]:
        window, since = _window_tag(deployment, topology, verdicts), _read_since(deployment, topology, table)
        on_each = look.snapshot_verdicts(table, window, dropped, since)
        baseline = baselines.get(table)
        goes = any(verdict.snapshot_id == baseline and not verdict.keep for verdict in on_each)
        # Leases are asked for last. A reader who came before this look is seen here; for one who comes later the table
        # was still at its baseline when we decided.
        if goes and _is_baseline_held(deployment, topology, table):  # safety: held-baseline-stays
            held = "a reader holds the table as it was when it joined"
            return [replace(v, keep=True, reason=held) if v.snapshot_id == baseline else v for v in on_each]
        return on_each

    return on


def _is_baseline_held(deployment: Deployment, topology: str, table: str) -> bool:
    """Return True if a reader may still hold the table's baseline, which has no tag: a reader who was answered before
    the table was in a COMMIT barrier.
    """
    firsts = {lease.barrier_id for lease in deployment.meta.leases.of(topology)}
    return 0 in firsts or any(
        all(row.table != table for row in deployment.meta.barriers.progress(topology, first)) for first in firsts
    )


def _read_since(deployment: Deployment, topology: str, table: str) -> Collection[int]:
    """Return the snapshots from which jobs that joined, or came back, read a table step by step: at open barriers, or
    once more.
    """
    revision = deployment.meta.revisions.under_way(topology)
    starts = deployment.meta.starts.to_read(topology, revised_from=None if revision is None else revision.first_barrier)
    previous = [start.previous.get(table) for start in starts]
    return {snapshot_id for snapshot_id in previous if snapshot_id is not None}


def _window_tag(deployment: Deployment, topology: str, verdicts: Sequence[BarrierVerdict]) -> str | None:
    start = window_start(verdicts)
    revision = deployment.meta.revisions.under_way(topology)
    earlier = revision is not None and (start is None or revision.predecessor < start.barrier_id)
    if revision is not None and earlier:  # safety: revised-steps-stay
        # it builds on what is before its first barrier, and reads every step since
        start = deployment.meta.barriers.get(topology, revision.predecessor)
    return None if start is None else start.tag
