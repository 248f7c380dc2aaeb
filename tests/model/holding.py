"""What must hold for readers, and of what is in use: told from what sessions were told, and the stored state."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_barrier.api.iceberg import Catalog
from airflow_barrier.protocol.errors import LeaseLostError
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import parse_branch, tag_name
from airflow_barrier.reading.catalog_pins import IDLE_SECONDS, Pin, Warehouse, pin, resolved
from airflow_barrier.reading.session import FellBack
from airflow_barrier.tables._metadata import MAIN, refs_of
from tests.api.asking import Rights, User
from tests.model.contents import Contents
from tests.model.memory import ENDED, STAGED, End
from tests.model.readers import Reader, Refreshed, Standing
from tests.model.topology import NAME
from tests.model.world import World, time_of

#: Table -> barrier and snapshot.
Answer = dict[str, tuple[int, int | None]]


class Holding(Contents):
    """The part of the oracle that looks after readers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: all that hold something, those that died over it among them
        self.readers: list[Reader] = []
        #: what readers of each level got after each step that changed it, and what that was made of
        self.answers: dict[Level, list[tuple[Answer, Standing]]] = {level: [] for level in Level}

    def remember_answers(self, answers: Mapping[Level, Resolution]) -> None:
        for level, resolution in answers.items():
            answer = (_answer(resolution), self._stands(resolution))
            if self.answers[level][-1:] != [answer]:
                self.answers[level].append(answer)

    def lives(self, reader: Reader) -> bool:
        """Whether what the session was told to hold is held still."""
        return time_of(self.world.bench.ticks.clock) < reader.lease.expires_at

    # --- after each step --------------------------------------------------------------------------

    def check_held(self) -> None:
        """What is held can be read, and what can be read is there."""
        tables = self.world.tables
        for reader in self.readers:
            if not self.lives(reader):
                continue
            for table in reader.answer.tables.values():
                assert tables.readable(table.table, table.snapshot_id), f"reader {reader.number} lost {table}"
            reader.rolled_back = reader.rolled_back or self._stands(reader.answer) != reader.stood
        newest = self.readable[-1:]
        for barrier in self.readable:
            for row in self.progress[barrier.barrier_id].values():
                assert tables.readable(row.table, row.snapshot_id), f"{row} can be asked for, and is gone"
                tagged = self.is_tagged(row.table, barrier.barrier_id, barrier.revision)
                assert tagged or row.snapshot_id is None, f"{row} can be asked for, and has no tag"
        assert newest or not any(barrier.state == "COMMIT" for barrier in self.chain), "nothing can be read"
        self._check_bases()
        self._check_catalogs()

    def _check_catalogs(self) -> None:
        """An engine's catalog that was given what a session reads, and holds it by the same lease, reads that too, or
        is at its end. Its questions leave the lease as it was.
        """
        meta = self.world.meta
        leases = {lease.lease_id: lease for lease in meta.leases.of(NAME)}
        for reader in self.readers:
            given = reader.catalog
            lease = leases.get(given.lease_id)
            lost = lease is None or given.barrier_id == 0
            assert reader.busy or (lease is None) != self.lives(reader), f"{reader}: {lease}"
            at_risk = given.level is Level.READ_COMMITTED
            found: Resolution | LeaseLostError
            try:
                found = resolved(self.world.deployment, given, f"reader {reader.number}")
            except LeaseLostError as error:
                found = error
            if isinstance(found, LeaseLostError):
                undone = at_risk and lease is not None and lease.rolled_back
                assert lost or undone, f"reader {reader.number}: {found}"
            else:
                assert lease is not None, f"catalog {given} reads what is held no longer"
                assert not (at_risk and reader.rolled_back), f"catalog {given} reads what was rolled back"
                self._check_read(given, reader.catalog_read, found)
            if lease is not None:
                left = lease.expires_at - time_of(self.world.bench.ticks.clock)
                meta.leases.renew(lease.lease_id, left.total_seconds())

    def _check_read(self, given: Pin, first: Answer, found: Resolution) -> None:
        """It reads what it read first; at read uncommitted what is newest."""
        now = _answer(found)
        if found.lease is not None:
            self.world.meta.leases.release(found.lease.lease_id)
            first = self.answers[given.level][-1][0]
        if given.barrier_id == 0:  # before the first barrier tables come and go
            now, first = ({table: each[table] for table in now.keys() & first.keys()} for each in (now, first))
        assert now == first, f"catalog {given} reads something else"

    def is_tagged(self, table: str, barrier_id: int, number: int) -> bool:
        """Whether it has the barrier's tag of a revision; one that had left by the revision's head has an older tag."""
        head = self.revisions[number].head if number else None
        left = head is not None and table not in self.opened[head].tables
        names = {tag_name(NAME, barrier_id, each) for each in range(0 if left else number, number + 1)}
        return bool(names & set(refs_of(self.world.tables.document(table))))

    def check_ends(self, earlier: Mapping[int, End]) -> None:
        """Visibility goes first, for ever, and not from under a reader."""
        held = [reader.lease for reader in self.readers if self.lives(reader)]
        for number, end in self.ends.items():
            was = earlier.get(number)
            if was is None:
                continue
            assert was[1:] == end[1:] or was[2] is None or was[2] == end[2], f"{was} became {end}"
            assert end.expired_at is None or end.expiring_at is not None, f"{end}: nobody was told that it goes"
            if was.expiring_at is None and end.expiring_at is not None:
                holders = [lease for lease in held if lease.barrier_id <= number <= lease.through_id]
                assert not holders, f"barrier {number} expires, which is held: {holders}"
                newest = max(b.barrier_id for b in self.chain if b.state == "COMMIT")
                assert number < newest, f"barrier {number} expires, which is the newest"

    def _check_bases(self) -> None:
        """What an open attempt reads and stands on is there."""
        tables = self.world.tables
        for table in tables.pointers.at:
            document = tables.document(table)
            there = {snapshot["snapshot-id"] for snapshot in document["snapshots"]}
            for name, ref in refs_of(document).items():
                assert ref["snapshot-id"] in there, f"{table}: {name} names what is gone"
            # after a computation from the beginning `main` does not lead to the barriers before it any more
            kept = {ref["snapshot-id"] for ref in refs_of(document).values() if ref["type"] == "tag"}
            kept.update(tables.steps(table, tables.main(table)))
            for name, ref in refs_of(document).items():
                branch = parse_branch(name)
                attempt = None if branch is None else self.attempts.get(branch.attempt_id)
                # whose branch nobody needs: it has ended, or a revision has replaced it, or its barrier is committed
                if name == MAIN or attempt is None or attempt.state in ENDED or attempt.line < 0:
                    continue
                if not attempt.line and self.barriers[attempt.barrier_id].state == "COMMIT":
                    continue
                steps = tables.steps(table, ref["snapshot-id"])
                last = next(s for s in document["snapshots"] if s["snapshot-id"] == steps[-1])
                whole = kept & set(steps) or last.get("parent-snapshot-id") is None
                assert whole, f"{table}: branch {name} has lost what it stands on"

    # --- a reader's steps -------------------------------------------------------------------------

    def opened_session(self, reader: Reader) -> None:
        """A session has been opened just now."""
        found = _answer(reader.answer)
        if reader.at is None:
            assert found == self.answers[reader.level][-1][0], f"reader {reader.number} got another answer"
        else:
            rows = self.progress[reader.at].values()
            assert found == {row.table: (reader.at, row.snapshot_id) for row in rows}, "another barrier"
        access = User(Rights({"model": self.world.meta}, lambda _: self.world.deployment), "admin")
        holder = f"Iceberg catalog of {access.actor}"
        given = pin(self.world.deployment, Warehouse(NAME, reader.level, reader.at), holder)
        catalog = resolved(self.world.deployment, given, holder)
        assert _answer(catalog) == found, f"catalog {given} reads what session {reader.number} does not"
        _check_shown(Catalog(access, "model", given), catalog)
        for lease in (given.lease_id, *([] if catalog.lease is None else [catalog.lease.lease_id])):
            self.world.meta.leases.release(lease)
        self._connect(reader)
        reader.stood = self._stands(reader.answer)
        self.readers.append(reader)

    def refreshed(self, done: Refreshed) -> FellBack | None:
        """Somebody got a newer answer, or is told that it is less than before."""
        reader, before, after = done.reader, done.before, done.reader.answer
        told = reader.session.fell_back
        if reader.at is not None:
            assert after is before
            self._connect(reader)
            return None
        possible = [stood for found, stood in self.answers[reader.level][done.since :] if found == _answer(after)]
        assert possible, f"reader {reader.number} got {after}, which nobody could get"
        if reader.level is Level.READ_COMMITTED:
            assert before.barrier_id is not None
            assert after.barrier_id is not None
            fell = after.barrier_id < before.barrier_id
            # the baseline is nobody's work: tables may join anew after the first barrier was given up
            stayed = after.barrier_id == before.barrier_id != 0 and _answer(after) != _answer(before)
            if fell or (stayed and done.rolled_back and not done.unsure):
                assert told is not None, f"reader {reader.number} was not told that it fell back"
            if told is not None:
                assert fell or stayed, f"reader {reader.number} was told that it fell back, and reads what it read"
                assert reader.rolled_back or done.unsure, (
                    f"reader {reader.number} was told that it fell back, and nothing was undone"
                )
                assert (told.start, told.end) == (before.barrier_id, after.barrier_id)
        else:
            assert told is None, f"reader {reader.number}: {told}"
        if reader.level is Level.REPEATABLE_READ:
            assert (after.barrier_id or 0) >= (before.barrier_id or 0), "repeatable read went back"
        reader.stood, reader.unsure = possible[-1], any(each != possible[-1] for each in possible)
        reader.rolled_back = self._stands(after) != reader.stood
        self._connect(reader)
        return told

    def _connect(self, reader: Reader) -> None:
        """Give an engine's catalog what the session reads now."""
        answer = reader.answer
        lease = reader.lease.lease_id
        reader.catalog = Pin(NAME, reader.level, answer.barrier_id, answer.revision, IDLE_SECONDS, lease)
        reader.catalog_read = _answer(answer)

    def _stands(self, answer: Resolution) -> Standing:
        """What is stored by now of the tables of an answer, at their barriers."""
        stands = {}
        for table in answer.tables.values():
            row = self.progress[table.barrier_id].get(table.table)
            if row is not None and (row.state in STAGED or row.barrier_id == 0):
                stands[table.table] = (table.barrier_id, row.attempt_id, row.snapshot_id)
        return stands

    # --- expiry -----------------------------------------------------------------------------------

    def must_stay(self, keep: int) -> set[int]:
        """Which barriers an expiry that keeps so many leaves readable."""
        readable = [barrier.barrier_id for barrier in self.readable]
        held = [reader.lease for reader in self.readers if self.lives(reader)]
        based = {barrier.predecessor for barrier in self.in_flight}
        leased = {n for n in readable for lease in held if lease.barrier_id <= n <= lease.through_id}
        if self.under_way is not None:
            based |= set(range(self.under_way.predecessor, max(readable, default=0) + 1))
        return set(readable[-keep:]) | leased | (based & set(readable))

    def check_taken(self) -> None:
        """After an expiry, nothing is left in a table that no ref leads to."""
        tables = self.world.tables
        for table in self.world.meta.topologies.get(NAME).tables:
            document = tables.document(table)
            reached = {step for ref in refs_of(document).values() for step in tables.steps(table, ref["snapshot-id"])}
            left = {snapshot["snapshot-id"] for snapshot in document["snapshots"]} - reached
            assert not left, f"{table}: an expiry left {left}"


def _answer(resolution: Resolution) -> Answer:
    return {table.table: (table.barrier_id, table.snapshot_id) for table in resolution.tables.values()}


def _check_shown(catalog: Catalog, found: Resolution) -> None:
    """An engine is shown these tables, each with its snapshot."""
    if any(table.barrier_id for table in found.tables.values()):  # else tables come and go
        assert catalog.tables == sorted(found.tables)
    for table in catalog.tables:
        assert catalog.load(table)["metadata"].get("current-snapshot-id") == found.snapshots[table], table
