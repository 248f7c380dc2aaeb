"""The cut of every source at a barrier, and the items (files) that cuts use up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.revision_rows import check_staging, under_way
from airflow_barrier.metaservice.rows import (
    STANDING,
    attempts_of,
    barrier_key,
    chunks,
    load_barrier,
    load_topology,
    of_barrier,
    of_topology,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transaction import Group, locked, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import (
    HeadMovedError,
    IllegalTransitionError,
    RevisionRefusedError,
    SourceDataError,
)
from airflow_barrier.protocol.records import Barrier, Cut
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import STAGING_BARRIERS, BarrierState


class Cuts(Group):
    """The cut of each source at each barrier, and the items that cuts use up."""

    @reads
    def of(
        self,
        connection: Connection,
        topology: str,
        barrier_id: int,
        line: int = 0,
        *,
        items_of: Collection[str] | None = None,
    ) -> dict[str, Cut]:
        """The cut of every source, by name; ``line``: as a revision has them, too.

        ``items_of``: the sources whose items are wanted (None: all), of which there may be many. An aborted barrier's
        have none any more.
        """
        return cuts(connection, topology, barrier_id, line, items_of)

    @reads
    def last(
        self, connection: Connection, topology: str, source: str, before: int | None = None, *, made: bool = False
    ) -> tuple[Barrier, Cut] | None:
        """The newest cut of a source among barriers that are not aborted, and its barrier; None: it was never cut.
        ``before``: among barriers of lower numbers; ``made``: among cuts that are not put off.
        """
        return _last(connection, topology, source, before, made)

    @reads
    def up_to(self, connection: Connection, topology: str, source: str, barrier_id: int) -> list[Cut]:
        """The cuts of a source at all barriers that are not aborted, oldest first; without items."""
        cut, barrier = schema.cut, schema.barrier
        rows = connection.execute(
            select(cut)
            .join(barrier, and_(of_topology(barrier, topology), barrier.c.barrier_id == cut.c.barrier_id))
            .where(
                of_topology(cut, topology),
                cut.c.source == source,
                cut.c.barrier_id <= barrier_id,
                barrier.c.state != BarrierState.ABORTED.value,
            )
            .order_by(cut.c.barrier_id)
        )
        return [Cut(row.source, row.start_position, row.end_position) for row in rows]

    @reads
    def used_items(
        self, connection: Connection, topology: str, source: str, items: Sequence[str], through: int | None = None
    ) -> set[str]:
        """Return those of ``items`` that are in the cut of a barrier that is not aborted, or that the revision under
        way made anew; ``through``: of a barrier of that number at most.
        """
        uses = _uses(connection, topology, source, items)
        return {row.item for row in uses if through is None or row.barrier_id <= through}

    @locked
    def repin(self, connection: Connection, topology: str, barrier_id: int, cut: Cut, actor: str) -> None:
        """Replace the cut of a source after a person mended what could not be read.

        Raises IllegalTransitionError once an attempt has closed over the old one.
        """
        barrier = load_barrier(connection, topology, barrier_id)
        _check_unread(connection, barrier, cut.source)
        _check_not_built_on(connection, barrier, cut)
        _replace(connection, barrier, cut, Event("repinned", actor, {"end": dict(cut.end)}))

    @locked
    def make(self, connection: Connection, topology: str, barrier_id: int, cut: Cut, actor: str) -> Cut:
        """Store a cut that was put off when its barrier opened, and return it, or the one that another job has made.

        Raises IllegalTransitionError if the barrier is not staged any more, SourceDataError for an item that was read.
        """
        barrier = load_barrier(connection, topology, barrier_id)
        there = cuts(connection, topology, barrier_id, items_of=[cut.source])[cut.source]
        if there.put_off is None:  # safety: put-off-is-made-once
            return there
        _check_unread(connection, barrier, cut.source)
        event = Event("made", actor, {"end": dict(cut.end), "put_off": there.put_off})
        _replace(connection, barrier, cut, event)
        return cut

    @locked
    def begin_anew(self, connection: Connection, topology: str, source: str, reason: str, actor: str) -> Barrier:
        """Have a source begin anew with its next cut. Returns the barrier after which it does.

        Raises SourceDataError for a source that was never cut.
        """
        found = _last(connection, topology, source, None, made=True)
        if found is None:
            raise SourceDataError(  # safety: begins-anew-after-a-cut
                f"topology {topology}: expected source {source} to have been cut, found no barrier with a cut of it; "
                "its first barrier begins with all of it"
            )
        barrier, last = found
        connection.execute(
            update(schema.cut)
            .where(of_barrier(schema.cut, topology, barrier.barrier_id), schema.cut.c.source == source)
            .values(end_position=dict(last.then_anew(reason).end))
        )
        event = Event("begins anew", actor, {"reason": reason})
        record(connection, event, topology, barrier.barrier_id, "cut", [source])
        return barrier


def _last(
    connection: Connection, topology: str, source: str, before: int | None, made: bool
) -> tuple[Barrier, Cut] | None:
    cut, barrier = schema.cut, schema.barrier
    among = [cut.c.barrier_id < before] if before is not None else []
    if made:
        among.append(cut.c.made_at.is_not(None))
    barrier_id = connection.execute(
        select(cut.c.barrier_id)
        .join(barrier, and_(of_topology(barrier, topology), barrier.c.barrier_id == cut.c.barrier_id))
        .where(
            of_topology(cut, topology),
            cut.c.source == source,
            barrier.c.state != BarrierState.ABORTED.value,
            *among,
        )
        .order_by(cut.c.barrier_id.desc())
        .limit(1)
    ).scalar_one_or_none()
    if barrier_id is None:
        return None
    return load_barrier(connection, topology, barrier_id), cuts(connection, topology, barrier_id, items_of=())[source]


def cuts(
    connection: Connection,
    topology: str,
    barrier_id: int,
    line: int = STANDING,
    items_of: Collection[str] | None = None,
) -> dict[str, Cut]:
    """The cut of every source at a barrier, with the items of the sources in ``items_of`` alone (None: of all).

    An aborted barrier's have lost their items to later barriers. A revision's barrier has those that stand, and instead
    of them what was cut anew for it.
    """
    if line != STANDING:
        stand = cuts(connection, topology, barrier_id, items_of=items_of)
        return {**stand, **_cuts(connection, topology, barrier_id, line, items_of)}
    load_barrier(connection, topology, barrier_id)
    return _cuts(connection, topology, barrier_id, line, items_of)


def _cuts(
    connection: Connection, topology: str, barrier_id: int, line: int, items_of: Collection[str] | None
) -> dict[str, Cut]:
    cut = schema.cut
    return {
        row.source: Cut(
            row.source,
            row.start_position,
            row.end_position,
            _items(connection, topology, barrier_id, line, row.source)
            if items_of is None or row.source in items_of
            else (),
        )
        for row in connection.execute(
            select(cut).where(of_barrier(cut, topology, barrier_id, line)).order_by(cut.c.source)
        ).all()
    }


def _items(connection: Connection, topology: str, barrier_id: int, line: int, source: str) -> tuple[str, ...]:
    table = schema.cut_item
    here = of_barrier(table, topology, barrier_id, line)
    # Sorted here: asked for order, SQLite would walk the key, which holds the items of all history.
    return tuple(sorted(connection.execute(select(table.c.item).where(here, table.c.source == source)).scalars()))


def _uses(connection: Connection, topology: str, source: str, items: Sequence[str]) -> list[Row[Any]]:
    """Return the rows of cuts that use ``items``."""
    cut_item, revision = schema.cut_item, under_way(connection, topology)
    lines = [
        STANDING,
        *(() if revision is None else (revision.revision,)),  # safety: items-of-a-revision-are-used
    ]
    return [
        row
        for names in chunks(items)
        for row in connection.execute(
            select(cut_item).where(
                cut_item.c.topology == topology,
                cut_item.c.line.in_(lines),
                cut_item.c.source == source,
                cut_item.c.item.in_(names),
            )
        )
    ]


def insert_cut(connection: Connection, barrier: Barrier, cut: Cut) -> None:
    """Store a cut and use up its items. In a revision it may use up again what the one that stands has.

    Raises SourceDataError if another barrier that counts has one of them, HeadMovedError if only a revision has.
    """
    _check_free(connection, barrier, cut)
    key = barrier_key(barrier.topology, barrier.barrier_id, barrier.line)
    connection.execute(
        insert(schema.cut).values(
            **key,
            source=cut.source,
            start_position=dict(cut.start) if cut.start is not None else None,
            end_position=dict(cut.end),
            made_at=None if cut.put_off is not None else DatabaseNow(),
        )
    )
    if cut.items:
        connection.execute(insert(schema.cut_item), [{**key, "source": cut.source, "item": item} for item in cut.items])


def _check_free(connection: Connection, barrier: Barrier, cut: Cut) -> None:
    where = f"topology {barrier.topology}: source {cut.source}"
    used = _used_elsewhere(connection, barrier, cut)
    promised = sorted(item for item, line in used.items() if line != STANDING)
    if promised and barrier.line == STANDING:
        raise HeadMovedError(  # safety: promised-to-a-revision
            f"{where}: expected items that nobody has taken since the look, found that revision {used[promised[0]]} "
            f"has, such as {promised[0]}: look again"
        )
    if used:
        raise SourceDataError(  # safety: item-in-one-cut
            f"{where}: expected items that no barrier has read, found {len(used)} that one has, such as {min(used)}; "
            "an item is read once: its adapter must leave out what is used"
        )


def _used_elsewhere(connection: Connection, barrier: Barrier, cut: Cut) -> dict[str, int]:
    """The items of a cut that other barriers use up, and the line of one of them."""
    rows = _uses(connection, barrier.topology, cut.source, cut.items)
    return {row.item: row.line for row in rows if row.barrier_id != barrier.barrier_id}


def _replace(connection: Connection, barrier: Barrier, cut: Cut, event: Event) -> None:
    """Another cut of that source at a barrier of which nobody has read the one that stands."""
    for table in (schema.cut_item, schema.cut):
        here = of_barrier(table, barrier.topology, barrier.barrier_id)
        connection.execute(delete(table).where(here, table.c.source == cut.source))
    insert_cut(connection, barrier, cut)
    record(connection, event, barrier.topology, barrier.barrier_id, "cut", [cut.source])


def recut(connection: Connection, topology: str, number: int, barrier_id: int, cut: Cut, actor: str) -> None:
    """Another cut for a barrier that revision ``number`` computes again, in which nothing has read it yet."""
    check_staging(connection, topology, number)
    barrier = load_barrier(connection, topology, barrier_id, number)
    _check_unread(connection, barrier, cut.source)
    for table in (schema.cut_item, schema.cut):
        here = of_barrier(table, topology, barrier_id, number)
        connection.execute(delete(table).where(here, table.c.source == cut.source))
    insert_cut(connection, barrier, cut)
    event = Event("recut", actor, {"end": dict(cut.end)})
    record(connection, event, topology, barrier_id, "cut", [cut.source], revision=number)


def begin_recut(connection: Connection, revision: Revision, anew: Mapping[int, Sequence[Cut]], actor: str) -> None:
    """The cuts that a revision begins with, by barrier. Raises RevisionRefusedError if an item was taken since they
    were made.
    """
    topology, number = revision.topology, revision.revision
    for barrier_id, cut in ((barrier_id, cut) for barrier_id, those in anew.items() for cut in those):
        used = _used_elsewhere(connection, load_barrier(connection, topology, barrier_id, number), cut)
        if used:
            raise RevisionRefusedError(  # safety: joins-what-nobody-took
                f"revision of {topology} with another cut of source {cut.source} at barrier {barrier_id}: expected "
                f"items that no other barrier has taken since it was planned, found that one has {min(used)}; plan it "
                "again"
            )
        recut(connection, topology, number, barrier_id, cut, actor)


def check_begins(connection: Connection, predecessor: Barrier, following: Sequence[Cut]) -> None:
    """Raise HeadMovedError if a cut of the epoch before was repinned since ``following`` were made to begin at it."""
    if predecessor.barrier_id == 0:
        return
    before = cuts(connection, predecessor.topology, predecessor.barrier_id, items_of=())
    for cut in following:
        moved = _moved(cut, before[cut.source]) if cut.source in before else []
        if moved:
            raise HeadMovedError(  # safety: cut-begins-where-the-last-ended
                f"topology {predecessor.topology}: expected the cut of source {cut.source} to begin where that of "
                f"barrier {predecessor.barrier_id} ends, found that its {', '.join(moved)} changed meanwhile: look "
                "again"
            )


def _moved(following: Cut, before: Cut) -> list[str]:
    """Return the keys that ``following`` begins at (its start repeats them) and ``before`` no longer ends at."""
    begins = following.start or {}
    return sorted(key for key in begins.keys() & before.end.keys() if begins[key] != before.end[key])


def _check_not_built_on(connection: Connection, barrier: Barrier, cut: Cut) -> None:
    later = uncommitted(connection, barrier.topology, barrier.barrier_id + 1)
    successor = next((each for each in later if not each.is_maintenance), None)
    following = cuts(connection, barrier.topology, successor.barrier_id, items_of=()) if successor else {}
    moved = _moved(following[cut.source], cut) if cut.source in following else []
    if moved:
        raise IllegalTransitionError(  # safety: cut-that-was-built-on
            f"{barrier}: expected the cut of source {cut.source} to end where that of {successor} begins, found "
            f"that mended files change its {', '.join(moved)}: abort the barrier to have the source cut anew"
        )


def _check_unread(connection: Connection, barrier: Barrier, source: str) -> None:
    jobs = load_topology(connection, barrier.topology, barrier.topology_version).jobs
    readers = {job.name for job in jobs if any(external.name == source for external in job.externals)}
    attempts = attempts_of(connection, barrier.topology, barrier.barrier_id, barrier.line)
    closed = [a for a in attempts if a.job in readers and a.closed_at is not None]
    if closed or barrier.state not in STAGING_BARRIERS:
        found = f"{closed[0]} closed over it" if closed else f"the barrier is {barrier.state.value}"
        raise IllegalTransitionError(  # safety: cut-that-was-read
            f"{barrier}: expected that nothing was computed from the cut of source {source} yet, found that {found}; "
            "its content stays what it was: abort the barrier to have the source cut anew"
        )
