"""What must hold after every step, told from the inputs and the stored state alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_barrier.coordinator import lateness
from airflow_barrier.coordinator.delay import barrier_delay, delay
from airflow_barrier.metaservice import resolving
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.protocol.journal import JournalEntry, RevisionEntry
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.tables._metadata import snapshots_of
from tests.model.histories import Histories
from tests.model.memory import ADOPT, DECIDED, ENDED, KEEP, STAGED, Barrier, Opened, Progress, Revision
from tests.model.topology import NAME, WRITER
from tests.model.world import World
from tests.support.memory_tables import WAREHOUSE, Rows

_MAY_FOLLOW = {
    "OPEN": {"OPEN", "PRECOMMIT", "COMMITTING", "BLOCKED", "COMMIT", "ABORTED"},
    "PRECOMMIT": {"OPEN", "PRECOMMIT", "COMMITTING", "BLOCKED", "COMMIT", "ABORTED"},
    "COMMITTING": {"COMMITTING", "BLOCKED", "COMMIT"},
    "BLOCKED": {"COMMITTING", "BLOCKED", "COMMIT"},
    "COMMIT": {"COMMIT"},
    "ABORTED": {"ABORTED"},
}


class Oracle(Histories):
    """Checks that raise AssertionError."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.served: dict[Level, int] = {}
        self._seen: tuple[int, int] = (-1, -1)
        #: committed barriers that were checked, with their tables: these stay as they are
        self._verified: dict[int, dict[str, Progress]] = {}
        self._outlook: lateness._Outlook | None = None

    def check(self) -> None:
        """After a step: everything that must hold."""
        now = (self.raw.total_changes, self.world.tables.pointers.moves)
        if now == self._seen:
            return
        before, self._seen = self._seen, now
        if before[0] != now[0]:
            self._check_stored()
        self._check_main()
        self.check_held()

    def _check_stored(self) -> None:
        barriers, progress, ends = self.barriers, self.progress, self.ends
        revisions, line, line_states = self.revisions, self.line, self.line_states
        if not self.look():
            return
        self.world.meta.overviews.together(self._check_outlook)
        self._check_states(barriers)
        self.check_versions(barriers, revisions)
        self.check_waiting()
        self.check_revisions(revisions)
        self.check_ends(ends)
        if (barriers, progress) != (self.barriers, self.progress):  # else only attempts moved, which nobody reads
            self._check_kept(progress, {} if revisions == self.revisions else revisions)
            self._check_tables()
            self._check_reading()
            self._check_journal()
            self.remember_committed()
        if (barriers, progress, revisions, line, line_states) != (
            *(self.barriers, self.progress, self.revisions, self.line, self.line_states),
        ):
            self.check_line()
        if (barriers, revisions, ends) != (self.barriers, self.revisions, self.ends):
            self.check_old_revisions()

    def _check_outlook(self, rows: Overviews) -> None:
        """While a topology has one stamp, a look at it finds the same: whoever has looked goes by that."""
        stamps = rows.stamps([NAME])
        if not stamps:
            return
        found = lateness._look(rows, stamps)[NAME]
        assert self._outlook is None or self._outlook.stamp != found.stamp or self._outlook == found, "changed unseen"
        self._outlook = found

    def _check_states(self, earlier: dict[int, Barrier]) -> None:
        """Decide once, barrier order, frozen membership."""
        for number, was in earlier.items():
            now = self.barriers[number]
            assert now.state in _MAY_FOLLOW[was.state], f"barrier {number} went from {was.state} to {now.state}"
            assert now._replace(version=was.version)[2:-1] == was[2:-1], f"barrier {number} changed"
            assert now.revision >= was.revision, f"barrier {number} went back to revision {now.revision}"
        states = [barrier.state for barrier in self.chain]
        committed = states.count("COMMIT")
        assert states[:committed] == ["COMMIT"] * committed, f"barriers are committed in order: {states}"
        assert sum(state in ("COMMITTING", "BLOCKED") for state in states) <= 1, "one publisher"
        assert not set(states[committed + 1 :]) & {"COMMITTING", "BLOCKED"}, "and it is the next one"
        for barrier in self.chain:
            assert set(self.progress[barrier.barrier_id]) == self.opened[barrier.barrier_id].tables, "frozen membership"
            before = self.barriers[barrier.predecessor or 0]
            assert before.state != "ABORTED", f"barrier {barrier.barrier_id} builds on one that was given up"

    def _check_kept(self, earlier: dict[int, dict[str, Progress]], revisions: dict[int, Revision]) -> None:
        """Failure stays local: what was staged stays, unless it was staged anew or what it stands on changed."""
        swapped = self.swapped_since(revisions) if revisions else None
        changed = {
            (number, table)
            for number, rows in earlier.items()
            for table, row in rows.items()
            if row.state in STAGED and self.progress[number][table][3:5] != row[3:5]
            if swapped is None or number < swapped.first or table not in swapped.tables
        }
        newest = self.newest_attempts()
        for number, table in changed:
            if not number or self.barriers[number].state == "ABORTED" or self.progress[number][table].decision:
                continue
            job, before = self.job_of(number, table), self.barriers[number].predecessor or 0
            stands_on = {(number, inlet) for inlet in job.inlets}
            stands_on |= {(before, name) for name in (*job.inlets, *job.outlets)}
            anew = newest[0, number, job.name] != earlier[number][table].attempt_id
            assert anew or stands_on & changed, f"{table} at barrier {number} was given up without need"

    def _check_tables(self) -> None:
        """Every staged table holds exactly what it must, made by the attempt that counts from what counts."""
        tables = self.world.tables
        newest = self.newest_attempts()
        for barrier in self.barriers.values():
            if not barrier.barrier_id:
                continue
            opened, rows = self.opened[barrier.barrier_id], self.progress[barrier.barrier_id]
            staged = [row for row in rows.values() if row.state in STAGED]
            if barrier.state == "ABORTED":
                assert not staged, f"barrier {barrier.barrier_id} was given up with tables"
                ended = {a.state for a in self.attempts.values() if a.barrier_id == barrier.barrier_id and not a.line}
                assert ended <= ENDED, f"barrier {barrier.barrier_id} was given up, its attempts are {ended}"
                continue
            if barrier.state == "COMMIT":
                if self._verified.get(barrier.barrier_id) == rows:
                    continue
                self._verified[barrier.barrier_id] = rows
            full = len(staged) == len(rows)
            assert full == (barrier.state != "OPEN"), f"barrier {barrier.barrier_id} is {barrier.state}: {staged}"
            assert (barrier.state == "COMMIT") == all(row.state == "WRITTEN" for row in rows.values())
            for row in staged:
                if row.decision == ADOPT:
                    assert row.snapshot_id is None or row.snapshot_id in self.mains[row.table], "adopted from nowhere"
                    continue
                attempt_id, snapshot_id = self.made[row.barrier_id, row.table]
                assert row.decision is not None or row.attempt_id == attempt_id
                assert row.carried_from is not None or row.snapshot_id == snapshot_id
                attempt = self.attempts[attempt_id]
                where = f"{row.table} at barrier {row.barrier_id}"
                assert attempt.state == "PROCESSED", f"{where} is of an attempt that is {attempt.state}"
                job = self.job_of(row.barrier_id, row.table)
                if barrier.is_maintenance and attempt.barrier_id != row.barrier_id:
                    # its own files went with what a revision replaced
                    carried = self.progress[barrier.predecessor or 0][row.table]
                    assert (carried.attempt_id, carried.snapshot_id) == (attempt_id, snapshot_id), where
                    assert barrier.revision >= attempt.computed_in > 0, where
                else:
                    key = (0, row.barrier_id, job.name)
                    assert (attempt.line, attempt.barrier_id, attempt.job) == key, where
                    assert newest[key] == attempt.attempt_id, f"{where} is of an old attempt"
                    for name, read in json.loads(attempt.inputs).items():
                        counted = {self.made[row.barrier_id, name][1]}
                        if attempt.computed_in and rows[name].decision == ADOPT:  # which may have been decided before
                            counted.add(rows[name].snapshot_id)
                        assert read in counted, f"{where} was made of what does not count"
                    assert set(json.loads(attempt.inputs)) == set(job.inlets), where
                found, expected = tables.rows(row.snapshot_id), self.expected(opened, row.table)
                assert found == expected, f"{where}: too much {found - expected}, too little {expected - found}"
                if row.carried_from is not None:
                    assert not self.epoch(opened, row.table), f"{where} is carried, but something happened"

    def _check_reading(self) -> None:
        """No torn read, never back."""
        if not self.opened:
            return
        answers: dict[Level, Resolution] = self.world.meta._db.read(
            lambda c: {level: resolving.resolve(c, resolving.Asked(NAME, level, None, None), None) for level in Level}
        )
        for answer in answers.values():
            for table in answer.tables.values():
                assert self.world.tables.readable(table.table, table.snapshot_id), f"{table}: the snapshot is gone"
        for level, states in ((Level.REPEATABLE_READ, ("COMMIT",)), (Level.READ_COMMITTED, (*DECIDED, "PRECOMMIT"))):
            answer = answers[level]
            newest = max((b.barrier_id for b in self.barriers.values() if b.state in states), default=0)
            assert answer.barrier_id == newest, f"{level} serves {answer.barrier_id}, not {newest}"
            rows = {row.table: row.snapshot_id for row in self.progress[newest].values()}
            assert {t.table: t.snapshot_id for t in answer.tables.values()} == rows, f"{level}: torn"
            assert {t.barrier_id for t in answer.tables.values()} <= {newest}, f"{level}: torn"
            number = self.barriers[newest].revision if newest else 0
            assert {answer.revision, *(t.revision for t in answer.tables.values())} == {number}, f"{level}: torn"
            if newest < self.served.get(level, 0):
                fallen = self.barriers[self.served[level]].state
                assert level is Level.READ_COMMITTED, "repeatable read went back"
                assert fallen in ("OPEN", "ABORTED"), "read committed went back without work that was rolled back"
            self.served[level] = newest
        self._check_uncommitted(answers[Level.READ_UNCOMMITTED])
        self.remember_answers(answers)

    def _check_uncommitted(self, answer: Resolution) -> None:
        """The newest staged snapshot of each table of the newest barrier."""
        chain = self.chain
        if not chain:
            return
        assert set(answer.tables) == self.opened[chain[-1].barrier_id].tables
        for table, found in answer.tables.items():
            for barrier in reversed(chain):
                row = self.progress[barrier.barrier_id].get(table)
                if row is None:  # it came back: what it was before it left does not count
                    break
                if row.state in STAGED:
                    assert (found.barrier_id, found.snapshot_id) == (barrier.barrier_id, row.snapshot_id)
                    break

    def _check_journal(self) -> None:
        """What readers can see stands in the journal, so that the MetaService can be lost."""
        tables, newest = self.world.tables, self.served.get(Level.REPEATABLE_READ, 0)
        if not newest:
            return
        head = json.loads(tables.documents.files[f"{WAREHOUSE}/_barrier/{NAME}/journal/head.json"])
        assert head["barrier_id"] >= newest, f"the journal's head is at {head['barrier_id']}, readers at {newest}"
        entry = JournalEntry.loads(
            tables.documents.files[f"{WAREHOUSE}/_barrier/{NAME}/journal/b{newest}.json"].decode()
        )
        for revision in self.revisions.values():
            if revision.state == "COMMIT" and revision.number > entry.computed_in:
                decided = RevisionEntry.loads(
                    tables.documents.files[f"{WAREHOUSE}/_barrier/{NAME}/journal/r{revision.number}.json"].decode()
                )
                entry = next((each for each in decided.entries if each.barrier_id == newest), entry)
        assert head["revision"] >= self.barriers[newest].revision == entry.computed_in, "the journal lacks a revision"
        written = {name: table.snapshot_id for name, table in entry.tables.items()}
        assert written == {row.table: row.snapshot_id for row in self.progress[newest].values()}, "another journal"

    def _check_main(self) -> None:
        """What was published went from exactly what was expected to exactly what it must be; the others stay."""
        tables = self.world.tables
        moved, self.world.moved = self.world.moved, []
        for table, before, after in moved:
            if table not in WRITER:
                continue  # the other topology's
            self._check_move(table, *(self._main_of(location) for location in (before, after)))
        for table in tables.pointers.at:
            main = tables.main(table)
            if main is not None:
                self.mains.setdefault(table, set()).add(main)
        committed = next((b for b in reversed(self.chain) if b.state == "COMMIT"), None)
        deciding = next((b for b in self.chain if b.state in ("COMMITTING", "BLOCKED")), None)
        revision = self.under_way
        if revision is not None and revision.state == "COMMITTING" and not self.world.shared:
            self.check_swapped_whole(revision)
        elif deciding is not None and not self.world.shared:
            opened = self.opened[deciding.barrier_id]
            assert self._mains_are(opened, self.before) or self._mains_are(opened, self.expected), (
                f"{deciding} was published in part"
            )
        elif committed is not None:
            assert self._mains_are(self.opened[committed.barrier_id], self.expected), f"main is not at {committed}"

    def _copy_of(self, row: Progress) -> int | None:
        """Where a person kept ours that `main` had left already, a new snapshot says the same again."""
        tables = self.world.tables
        main = tables.main(row.table)
        if row.decision != KEEP or main is None:
            return None
        snapshot = snapshots_of(tables.document(row.table))[main]
        copied = snapshot["summary"]["operation"] == "replace" and snapshot["parent-snapshot-id"] == row.snapshot_id
        return main if copied else None

    def _is_kept(self, row: Progress, before: int | None, after: int | None) -> bool:
        return row.expected == before and self._copy_of(row) == after

    def _mains_are(self, opened: Opened, rows: Callable[[Opened, str], Rows]) -> bool:
        tables = self.world.tables
        return all(tables.rows(tables.main(table)) == rows(opened, table) for table in opened.tables - self.touched)

    def _main_of(self, location: str) -> int | None:
        ref = self.world.tables.documents.read(location)["refs"].get("main")
        return None if ref is None else int(ref["snapshot-id"])

    def _check_move(self, table: str, before: int | None, after: int | None) -> None:
        if before == after:
            return
        rows = self.world.tables.rows
        of_table = [self.progress[barrier.barrier_id].get(table) for barrier in self.chain if barrier.state in DECIDED]
        decided = [row for row in of_table if row is not None]
        # a compaction of what a person kept, or of a revision's, looks like a copy of it, but is a barrier's snapshot;
        # so does what a person kept of a revision's that a barrier carries
        is_barriers = any(row.snapshot_id == after or self._is_kept(row, before, after) for row in decided)
        if (revision := self.swapped_to(table, after, copied=not is_barriers)) is not None:
            self.check_swap(revision, table, before, after)
            return
        published = (
            [row for row in decided if row.snapshot_id == after]
            or [row for row in decided if self._is_kept(row, before, after)]
            or [row for row in decided if self._copy_of(row) == after]
        )
        assert published, f"{table}: main went to {after}, which no barrier decided"
        row = published[0]
        opened = self.opened[row.barrier_id]
        if row.decision == KEEP:
            assert before == row.expected, f"{table}: overwrote {before}, which the person did not see"
        else:
            found, expected = rows(before), self.before(opened, table)
            assert found == expected, f"{table}: overwrote {found - expected}, or lost {expected - found}"
        assert after not in self.mains.get(table, ()), f"{table}: main returned to {after}"
        self.touched.discard(table)

    # --- the end ----------------------------------------------------------------------------------

    def check_delay(self) -> None:
        """Each moment from a barrier's timestamp until it is readable is somebody's, and nobody's twice; of each table,
        too.
        """
        meta = self.world.meta
        for number in [
            each.barrier_id for each in self.barriers.values() if each.barrier_id and each.state != "ABORTED"
        ]:
            found = barrier_delay(meta, NAME, number)
            path = found.critical_path
            ends = [found.since, *(each.end for each in path)]
            assert [each.begin for each in path] == ends[:-1], f"barrier {number}: gaps, or overlaps, in {path}"
            assert ends[-1] == (found.barrier.commit_at or ends[-1]), f"barrier {number}: {path} ends too early"
            for table in found.tables:
                assert abs(table.seconds - found.seconds) < 1e-3, f"barrier {number}, {table}: not {found.seconds} s"
        shares = [share.share for share in delay(meta, NAME, timedelta(days=36_500)).blame]
        assert not shares or abs(sum(shares) - 1) < 1e-6, f"the blame of {shares} is not all of it"

    def check_audit(self) -> None:
        """Replay the audit of what stands: each entry starts where the last one of the same thing ended, and all ends
        as stored.
        """
        self._check_stored()
        states: dict[tuple[str, Any, str], str | None] = {}
        decided: Counter[tuple[int, str]] = Counter()
        first = {"barrier": None, "attempt": None, "table": "PENDING"}
        query = (
            "SELECT kind, barrier_id, subject, event, state_before, state_after, revision, detail FROM barrier_audit "
            "WHERE topology = ? ORDER BY audit_id"
        )
        for kind, barrier_id, subject, name, before, after, line, detail in self.raw.execute(query, (NAME,)):
            if kind == "barrier" and name == "revised":
                self.revise_audit(states, self.revisions[json.loads(detail)["revision"]], barrier_id)
                continue
            if kind not in first or (kind != "barrier" and self.trimmed(barrier_id)):
                continue
            if line and kind != "attempt":  # beside what stands
                states[f"{kind} {line}", barrier_id, subject] = after
                continue
            if line and int(subject) not in self.attempts:  # at a barrier that was given up while it was revised
                continue
            thing = (kind, barrier_id, subject)
            if name == "revised":  # carried at a maintenance barrier, whose own rows were replaced
                states[thing] = after
                continue
            assert before == states.get(thing, first[kind] if barrier_id else None), f"{thing} was not {before}"
            states[thing] = after
            if kind == "barrier":
                decided[barrier_id, name] += 1
        stored: dict[tuple[str, Any, str], str] = {}
        stored.update({("barrier", b.barrier_id, str(b.barrier_id)): b.state for b in self.barriers.values()})
        attempts = [each for each in self.attempts.values() if not self.trimmed(each.barrier_id)]
        stored.update({("attempt", a.barrier_id, str(a.attempt_id)): a.state for a in attempts})
        for number, rows in self.progress.items():
            if not self.trimmed(number):
                stored.update({("table", number, p.table): p.state for p in rows.values()})
        for thing, state in stored.items():
            assert states.get(thing, first[thing[0]]) == state, f"{thing} is {state}, not {states.get(thing)}"
        standing = {thing for thing in states if thing[0] in first}
        assert standing <= set(stored), "the audit speaks of things that are not there"
        for (number, name), times in decided.items():
            assert name not in ("committing", "commit") or times == 1, f"barrier {number}: {name} {times} times"
