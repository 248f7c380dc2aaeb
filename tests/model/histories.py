"""What must hold of jobs that join with their history: they are nowhere until it is published, and everywhere then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from airflow_barrier.metaservice import topologies
from tests.model.lines import Lines
from tests.model.memory import Barrier, Revision
from tests.model.topology import JOBS, LATE, NAME, WRITER


class Histories(Lines):
    """The part of the oracle that looks after jobs that wait, and after what is a member by which barrier."""

    def check_versions(self, earlier: Mapping[int, Barrier], revisions: Mapping[int, Revision]) -> None:
        """The jobs of a barrier are the same for ever, but for those that join with their history."""
        swapped = self.swapped_since(revisions)
        history = swapped if swapped is not None and swapped.mode == "history" else None
        joined = set() if history is None else {WRITER[table] for table in history.tables}
        for number, was in earlier.items():
            now = self.barriers[number]
            if not number or (was.version == now.version and history is None):
                continue
            has_epoch = now.state != "ABORTED" and not now.is_maintenance
            came = joined if has_epoch and history is not None and number >= history.first else set()
            before, after = self.members(was.version), self.members(now.version)
            assert Counter(after) == Counter(before) + Counter(came), f"barrier {number}: {before} became {after}"
        if history is not None:
            self._check_baseline(history)

    def _check_baseline(self, history: Revision) -> None:
        """It begins with nothing."""
        for table in history.tables:
            assert not self._baseline(table), f"{table} held rows before its history: {self._baseline(table)}"

    def joined(self) -> Counter[str]:
        """What came about of histories, for who counts it."""
        ran = Counter({"joined": len(self.begun)})
        for first, table in self.begun:
            there = [b for b in self.chain if table in self.opened[b.barrier_id].tables and not b.is_maintenance]
            ran["joined, at barriers of the past"] += len(there) > 1
            ran["joined, later than the first"] += self.opened[first].before is not None
            ran["joined, and an epoch since"] += any(
                self.progress[b.barrier_id][table].attempt_id is not None
                and self.attempts[self.progress[b.barrier_id][table].attempt_id].computed_in == 0
                for b in there
                if not self.trimmed(b.barrier_id)
            )
        return ran

    def check_waiting(self) -> None:
        """Who waits, and that no other job's tables are computed over history."""
        waiting = self.waiting(self.declared())
        found = {job.name for job in self.world.meta._db.read(lambda c: topologies.waiting(c, NAME))}
        assert found == waiting, f"{waiting} wait for their history, not {found}"
        revision = self.under_way
        if revision is None or revision.mode != "history":
            return
        had = {table for barrier in self.chain for table in self.opened[barrier.barrier_id].tables}
        assert not had & set(revision.tables), f"{revision} computes what barriers have already"
        assert {JOBS[WRITER[table]].owner for table in revision.tables} == {LATE}, f"{revision} has other tables too"
