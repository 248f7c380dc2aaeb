"""What is kept of a topology that is compacted and expired does not grow with its barriers, but for what is meant to.

Here until it is steady, which it is after a few rounds; over 1,000 barriers in the benchmark `upkeep`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.coordinator import trimmed_journal
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from benchmarks.upkeep import Maintained

#: A barrier itself, and the audit of what happened to it as a whole.
BY_DESIGN = {"rows of barrier_barrier", "rows of barrier_audit"}
#: Of one barrier: opened, PRECOMMIT, COMMITTING, COMMIT, expiring, expired, and what expiries say of themselves.
AUDITED = 7.5


#: Barriers of which the journal is one file.
SPAN = 20


def test_what_upkeep_leaves_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimmed_journal, "SPAN", SPAN)
    deployment = Deployment.connect(Settings.embedded(str(tmp_path)))
    maintained = Maintained(deployment, every=10, keep=5)
    maintained.run(50)
    steady = maintained.sizes()
    maintained.run(90)
    later = maintained.sizes()
    deployment.close()
    grown = {what: count - steady[what] for what, count in later.items() if count > steady[what]}
    # numbers get longer, and with them their texts
    assert grown.pop("metadata document, KiB", 0) <= 1
    journal = grown.pop("files of the journal", 0)
    assert journal <= 44 / SPAN + SPAN, "a file a span, and those of the span that is not over"
    assert set(grown) == BY_DESIGN
    barriers = grown["rows of barrier_barrier"]
    assert barriers == 44, "one in ten compacts"
    assert grown["rows of barrier_audit"] <= AUDITED * barriers
    assert later["snapshots"] <= 7
    assert later["refs"] <= 7
    assert later["metadata log, entries"] <= 101
