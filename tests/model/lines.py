"""What must hold of revisions: of what they stage, of what they replaced, and of the moment in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from airflow_barrier.metaservice import resolving
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.tables._metadata import refs_of, snapshots_of
from tests.model.holding import Holding
from tests.model.memory import COUNTING_BESIDE, STAGED, Revision
from tests.model.topology import JOBS, NAME, WRITER
from tests.model.world import World
from tests.support.memory_tables import Rows

_MAY_FOLLOW = {
    "STAGING": {"STAGING", "COMMITTING", "COMMIT", "CANCELLED"},
    "COMMITTING": {"COMMITTING", "COMMIT"},
    "COMMIT": {"COMMIT"},
    "CANCELLED": {"CANCELLED"},
}


class Lines(Holding):
    """The part of the oracle that looks after revisions."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: committed barrier -> number of each revision that it stood in -> table -> snapshot, and rows
        self.committed: dict[int, dict[int, dict[str, tuple[int | None, Rows]]]] = {}
        #: tables whose rows somebody else changed since our last publish
        self.touched: set[str] = set()
        #: snapshots that `main` of a table has been at
        self.mains: dict[str, set[int]] = {}

    def newest_attempts(self) -> dict[tuple[int, int, str], int]:
        """Line, barrier and job -> the newest attempt."""
        return {(a.line, a.barrier_id, a.job): a.attempt_id for a in self.attempts.values()}

    def swapped_since(self, earlier: Mapping[int, Revision]) -> Revision | None:
        """The revision that was published since, if one was."""
        swapped = [
            revision
            for number, revision in self.revisions.items()
            if revision.state == "COMMIT" and (number not in earlier or earlier[number].state != "COMMIT")
        ]
        assert len(swapped) <= 1, "one after the other"
        return swapped[0] if swapped else None

    # --- states -----------------------------------------------------------------------------------

    def check_revisions(self, earlier: Mapping[int, Revision]) -> None:
        """Decide once, one publisher; what was cancelled leaves nothing."""
        under_way = [r for r in self.revisions.values() if r.state in ("STAGING", "COMMITTING")]
        assert len(under_way) <= 1, "one revision is under way"
        deciding = [barrier for barrier in self.chain if barrier.state in ("COMMITTING", "BLOCKED")]
        deciding += [r for r in under_way if r.state == "COMMITTING"]  # type: ignore[misc]
        assert len(deciding) <= 1, f"one publisher, found {deciding}"
        for number, was in earlier.items():
            now = self.revisions[number]
            assert now.state in _MAY_FOLLOW[was.state], f"revision {number} went from {was.state} to {now.state}"
            assert was.head is None or (was.head, was.last) == (now.head, now.last), f"{was} became {now}"
        beside = self.raw.execute(COUNTING_BESIDE).fetchone()[0]
        assert beside == len(self.line_states), f"{beside} barriers are beside what stands, for {under_way}"
        if (swapped := self.swapped_since(earlier)) is not None:
            self._tell_readers(swapped)

    def _tell_readers(self, revision: Revision) -> None:
        """Who reads what is committed is told nothing: what he has stays. Others lose what was staged."""
        for reader in self.readers:
            barriers = [barrier for barrier, *_ in reader.stood.values()]
            if not barriers or max(barriers) < revision.first:
                continue
            newest = self.barriers[reader.answer.barrier_id or max(barriers)]
            if newest.state == "COMMIT":
                if not reader.rolled_back:
                    reader.stood = self._stands(reader.answer)
            else:
                reader.rolled_back = True

    # --- what is staged beside ----------------------------------------------------------------------

    def check_line(self) -> None:
        """What the revision under way has staged is what a computation from the beginning gives, and no reader's."""
        revision = self.under_way
        if revision is None:
            return
        newest = self.newest_attempts()
        for number, state in self.line_states.items():
            opened, rows = self.opened[number], self.line.get(number, {})
            assert number >= revision.first, f"barrier {number} is before {revision}"
            assert self.barriers[number].state != "ABORTED", f"barrier {number} was given up, not so in {revision}"
            assert set(rows) == self.tables_of(number, revision.number), f"barrier {number} of {revision}: {set(rows)}"
            staged = [row for row in rows.values() if row.state in STAGED]
            deciding = revision.state == "COMMITTING" and state == "COMMITTING"
            assert deciding or (len(staged) == len(rows)) == (state != "OPEN"), f"barrier {number} is {state}: {staged}"
            for row in staged:
                where = f"{row.table} at barrier {number} of revision {revision.number}"
                assert row.attempt_id is not None
                attempt, job = self.attempts[row.attempt_id], JOBS[WRITER[row.table]]
                key = (revision.number, number, job.name)
                assert attempt.state == "PROCESSED", f"{where} is of an attempt that is {attempt.state}"
                assert (attempt.line, attempt.barrier_id, attempt.job) == key, where
                assert newest[key] == attempt.attempt_id, f"{where} is of an old attempt"
                inputs = {}
                for name in job.inlets:
                    inlet = self.row(number, name, revision.number)
                    assert inlet is not None
                    inputs[name] = inlet.snapshot_id
                assert json.loads(attempt.inputs) == inputs, f"{where} was made of what does not count"
                found = self.world.tables.rows(row.snapshot_id)
                expected = self.expected(opened, row.table, revision.number)
                assert found == expected, f"{where}: too much {found - expected}, too little {expected - found}"

    # --- what was replaced --------------------------------------------------------------------------

    def remember_committed(self) -> None:
        """What each barrier consists of in the revision in which it stands."""
        rows = self.world.tables.rows
        for barrier in self.chain:
            if barrier.state == "COMMIT" and not self.trimmed(barrier.barrier_id):
                consists = self.committed.setdefault(barrier.barrier_id, {})
                if barrier.revision not in consists:
                    consists[barrier.revision] = {
                        row.table: (row.snapshot_id, rows(row.snapshot_id))
                        for row in self.progress[barrier.barrier_id].values()
                    }

    def shrunk(self) -> Counter[str]:
        """How often readers of what is committed saw less of a table than before, for who counts it."""
        ran: Counter[str] = Counter()
        for before, after in pairwise(self.chain):
            was, now = (self.committed.get(each.barrier_id, {}).get(after.revision, {}) for each in (before, after))
            ran["shrank"] += sum(now[table][1].total() < was[table][1].total() for table in now.keys() & was.keys())
        return ran

    def check_old_revisions(self) -> None:
        """Each barrier can be read, by its number, as it was in every revision in which it stood."""
        tables = self.world.tables
        for barrier in self.readable:
            for number, consists in self.committed.get(barrier.barrier_id, {}).items():
                if len(self.committed[barrier.barrier_id]) == 1:
                    continue
                where = f"barrier {barrier.barrier_id} in revision {number}"
                asked = resolving.Asked(NAME, Level.REPEATABLE_READ, None, barrier.barrier_id, number)
                answer = self.world.meta._db.read(lambda c, asked=asked: resolving.resolve(c, asked, None))
                found = {table.table: table.snapshot_id for table in answer.tables.values()}
                assert found == {name: snapshot for name, (snapshot, _) in consists.items()}, where
                seen = {(table.barrier_id, table.revision) for table in answer.tables.values()}
                assert seen == {(barrier.barrier_id, number)}, f"{where}: torn"
                for table, (snapshot, rows) in consists.items():
                    assert tables.readable(table, snapshot), f"{where}: {table} is gone"
                    assert tables.rows(snapshot) == rows, f"{where}: {table} has other rows"
                    tagged = self.is_tagged(table, barrier.barrier_id, number)
                    assert tagged or snapshot is None, f"{where}: {table} has no tag"

    # --- the moment in between ------------------------------------------------------------------------

    def swapped_to(self, table: str, after: int | None, *, copied: bool) -> Revision | None:
        """The revision that brought `main` of a table to a snapshot, or to a copy of it."""
        # an older one may have published the same snapshot once
        for revision in reversed(self.revisions.values()):
            if revision.head is None or table not in revision.tables:
                continue
            there, row = self._swap_row(revision, table)
            if not there or after is None:
                continue
            if (
                row is None
                and copied
                and not self.world.tables.steps(table, after)[1:]
                and not self.world.tables.rows(after)
            ):
                return revision  # it left no rows, which an empty snapshot says
            if row is not None and after in (row, self._copied(table, after, row) if copied else row):
                return revision
        return None

    def _swap_row(self, revision: Revision, table: str) -> tuple[bool, int | None]:
        """Whether a revision has a table at its head, and as what."""
        assert revision.head is not None
        if revision.state == "COMMIT":
            consists = self.committed.get(revision.head, {}).get(revision.number, {})
            return table in consists, consists[table][0] if table in consists else None
        head = revision.head
        while self.barriers[head].is_maintenance:
            head = self.barriers[head].predecessor or 0
        row = self.line.get(head, {}).get(table)
        return row is not None, None if row is None else row.snapshot_id

    @staticmethod
    def joins(revision: Revision, table: str) -> bool:
        """Whether no barrier has the table before the revision is published."""
        return revision.mode == "history" and table in revision.tables

    def _copied(self, table: str, after: int | None, row: int) -> int | None:
        """`main` never returns to a snapshot: another one says the same again."""
        if after is None:
            return None
        snapshot = snapshots_of(self.world.tables.document(table)).get(after)
        if snapshot is None or snapshot["summary"]["operation"] != "replace":
            return None
        return after if snapshot.get("parent-snapshot-id") == row else None

    def check_swap(self, revision: Revision, table: str, before: int | None, after: int | None) -> None:
        rows = self.world.tables.rows
        assert revision.head is not None
        old = [number for number in self.committed[revision.head] if number < revision.number]
        consisted = self.committed[revision.head][max(old)]
        expected = Counter() if self.joins(revision, table) else consisted[table][1]
        assert rows(before) == expected, f"{table}: the swap overwrote {rows(before) - expected}"
        assert after not in self.mains.get(table, ()), f"{table}: main returned to {after}"
        self.touched.discard(table)

    def check_swapped_whole(self, revision: Revision) -> None:
        """All tables are at the old line, or all at the new one."""
        assert revision.head is not None
        tables, opened = self.world.tables, self.opened[revision.head]
        clean = (opened.tables | self.tables_of(revision.head, revision.number)) - self.touched

        def are(line: int) -> bool:
            return all(
                tables.rows(tables.main(table))
                == (Counter() if not line and self.joins(revision, table) else self.expected(opened, table, line))
                for table in clean
            )

        assert are(0) or are(revision.number), f"{revision} was published in part"

    # --- the audit ------------------------------------------------------------------------------------

    def revise_audit(self, states: dict[tuple[str, Any, str], str | None], revision: Revision, barrier_id: int) -> None:
        """At a barrier, what was staged in a revision's line stands from here on."""
        if self.trimmed(barrier_id):
            return
        for table in revision.tables:
            if table in self.progress[barrier_id]:
                staged = states.get((f"table {revision.number}", barrier_id, table))
                committed = states["barrier", barrier_id, str(barrier_id)] == "COMMIT"
                states["table", barrier_id, table] = "WRITTEN" if committed else staged or "PENDING"

    def branches_of_cancelled(self) -> set[str]:
        """Attempt branches of revisions that were given up."""
        cancelled = {revision.number for revision in self.revisions.values() if revision.state == "CANCELLED"}
        return {
            f"{table}: {name}"
            for table in self.world.tables.pointers.at
            for name in refs_of(self.world.tables.document(table))
            if (branch := parse_branch(name)) is not None and branch.revision in cancelled
        }
