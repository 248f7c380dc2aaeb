"""What every table must hold at every barrier.

It knows nothing of how the protocol goes about it: all is computed from the input records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from airflow_barrier.protocol.topology import Job
from tests.model.epochs import Epoch, difference
from tests.model.memory import ADOPT, Memory, Opened, Progress
from tests.model.topology import JOBS, WRITER
from tests.support.memory_tables import Rows


class Contents(Memory):
    """The part of the oracle that computes."""

    def row(self, number: int, table: str, line: int = 0) -> Progress | None:
        """Where a table stands at a barrier: in the line that stands, or as the revision under way sees it."""
        if line and self._is_revised(number, table, line):
            return self.line.get(number, {}).get(table)
        return self.progress[number].get(table)

    def tables_of(self, number: int, line: int) -> set[str]:
        """What a revision has of a barrier."""
        if not line or number < self.revisions[line].first:
            return set()
        tables = set(self.revisions[line].tables)
        return tables if self.revisions[line].mode == "history" else tables & self.opened[number].tables

    def _is_revised(self, number: int, table: str, line: int) -> bool:
        revision = self.revisions[line]
        return number >= revision.first and table in revision.tables

    def _is_anew(self, number: int, table: str, line: int) -> bool:
        if (number, table) in self.begun:
            return True
        if line and self._is_revised(number, table, line):
            revision = self.revisions[line]
            return revision.mode != "incremental" and number == revision.first
        return (number, table) in self.cleared

    def expected(self, opened: Opened, table: str, line: int = 0) -> Rows:
        """The rows of a table at a barrier: all its epochs, one after the other, of what the input says."""
        revised = line and self._is_revised(opened.barrier_id, table, line)
        row = None if revised else self.progress[opened.barrier_id][table]
        if row is not None and row.decision == ADOPT:
            return self.world.tables.rows(row.snapshot_id)
        return self.epoch(opened, table, line).onto(self.before(opened, table, line))

    def before(self, opened: Opened, table: str, line: int = 0) -> Rows:
        """The rows of a table just before a barrier."""
        if self._is_anew(opened.barrier_id, table, line):
            return Counter()
        if table in opened.baseline:
            return opened.baseline[table]
        assert opened.before is not None
        return self.expected(opened.before, table, line)

    def epoch(self, opened: Opened, table: str, line: int = 0) -> Epoch:
        """What a barrier does to a table, in words of the attempts that count."""
        if opened.is_maintenance:
            return Epoch("nobody")
        job, number = JOBS[WRITER[table]], opened.barrier_id
        row = self.row(number, table, line)
        assert row is not None
        attempt_id = row.attempt_id if row.decision is None else self.made[number, table][0]
        assert attempt_id is not None, f"{table} counts at barrier {number}, and nobody made it"
        by = f"{job.name} {self.attempts[attempt_id].generation}"
        anew = self._is_anew(number, table, line)
        texts: list[str] = []
        weights: Rows = Counter()
        for source in job.externals:
            records = self._all_of(opened, source.name) if anew else opened.epoch[source.name]
            texts += self.input_of(attempt_id, opened, source.name, records)
        for name in job.inlets:
            # what is computed anew sees all that is in its inlets as new
            came = self.expected(opened, name, line) if anew else self._news(opened, attempt_id, name, line)
            weights.update({(row, name): times for row, times in came.items()})
        return Epoch(by, tuple(texts), weights)

    def _all_of(self, opened: Opened, source: str) -> list[str]:
        """The records of a source that are in a barrier's epoch or one before."""
        return [record for record in self.world.input.of(source) if record in opened.read[source]]

    def input_of(self, attempt_id: int, opened: Opened, source: str, records: Sequence[str]) -> list[str]:
        """What an attempt read of a source: as it was cut or, for a revision, as it was corrected by then."""
        texts = self.world.input.texts
        read = self.world.read[attempt_id][source]
        revision = self.attempts[attempt_id].computed_in
        possible = range(self.editions[revision], self.world.input.edition + 1) if revision else [opened.edition]
        found = texts(records, read)
        assert found in [texts(records, edition) for edition in possible], f"attempt {attempt_id} read {found}"
        return found

    def _news(self, opened: Opened, attempt_id: int, inlet: str, line: int) -> Rows:
        """What came into an attempt's inlet, and went: with the epoch or, if its job joins, since its start."""
        begins = opened.starts.get(self.attempts[attempt_id].job, {})
        before = self.world.tables.rows(begins[inlet]) if inlet in begins else self.before(opened, inlet, line)
        return difference(self._as_read(opened, attempt_id, inlet, line), before)

    def _as_read(self, opened: Opened, attempt_id: int, inlet: str, line: int) -> Rows:
        """An inlet at the barrier as it was staged: a person may have decided against it since, which is too late for
        who read it before, and only a revision reads it after that.
        """
        row, attempt = self.row(opened.barrier_id, inlet, line), self.attempts[attempt_id]
        assert row is not None
        if attempt.computed_in and row.decision == ADOPT and json.loads(attempt.inputs)[inlet] == row.snapshot_id:
            return self.world.tables.rows(row.snapshot_id)
        return self.epoch(opened, inlet, line).onto(self.before(opened, inlet, line))

    def needs(self, barrier_id: int, job: str, line: int = 0) -> set[tuple[str, int]]:
        """What a job has to wait for: its inlets here and, with its outlets, just before."""
        before, reads = self.opened[barrier_id].before, JOBS[job].inlets
        if line and barrier_id == self.revisions[line].first and self.revisions[line].mode != "incremental":
            before = None
        wanted = [(barrier_id, table) for table in reads]
        if before is not None:
            had = before.tables | self.tables_of(before.barrier_id, line)
            wanted += [(self._stands_at(before, t, line), t) for t in (*reads, *JOBS[job].outlets) if t in had]
        return {(table, number) for number, table in wanted if self._is_pending(number, table, line)}

    def _is_pending(self, barrier_id: int, table: str, line: int = 0) -> bool:
        line = line if line and self._is_revised(barrier_id, table, line) else 0
        query = "SELECT state FROM barrier_table_progress WHERE line = ? AND barrier_id = ? AND table_name = ?"
        return bool(self.raw.execute(query, (line, barrier_id, table)).fetchone()[0] == "PENDING")

    def _stands_at(self, opened: Opened, table: str, line: int = 0) -> int:
        """Maintenance passes by what it has not taken, and has no part in what is computed again."""
        if line and opened.is_maintenance and opened.before and self._is_revised(opened.barrier_id, table, line):
            return self._stands_at(opened.before, table, line)
        query = (
            "SELECT count(*) FROM barrier_attempt WHERE line = 0 AND barrier_id = ? AND job = ? "
            "AND state IN ('REQUESTED', 'RUNNING', 'CLOSED', 'PROCESSED')"
        )
        key = (opened.barrier_id, f"compaction of {table}")
        if (
            opened.is_maintenance
            and opened.before is not None
            and self._is_pending(opened.barrier_id, table)
            and not self.raw.execute(query, key).fetchone()[0]
        ):
            return self._stands_at(opened.before, table, line)
        return opened.barrier_id

    def job_of(self, barrier_id: int, table: str) -> Job:
        """Who makes a table at a barrier."""
        if self.barriers[barrier_id].is_maintenance:
            return Job(f"compaction of {table}", "upkeep", outlets=(table,))
        return JOBS[WRITER[table]]
