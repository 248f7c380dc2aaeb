"""The requests of a barrier's steps to an object store, of which each costs some ten milliseconds: no more than these.

A step that asks for more is slower for everybody whose warehouse is far. If one has to, say why where the number is.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.budgets.wide import Wide
from tests.support.slow_store import slow_store

JOBS, EACH = 4, 5

#: pyarrow asks for an object by HEAD and GET. It deletes by HEAD and DELETE, and marks the folder by PUT.
BUDGET = {
    # the journal's head
    "open": {"HEAD": 1, "GET": 1},
    # the documents of 20 outlets and 3 inlets, the inlets' manifest lists at this barrier and at the one before, and 4
    # epoch specs
    "begin": {"HEAD": 23 + 6, "GET": 23 + 6, "PUT": 23 + 4},
    # the documents that the jobs wrote
    "close": {"HEAD": 20, "GET": 20},
    # these, the journal's head three times, whether the topology is in it, and what to delete: of 12 files 4 are there
    "commit": {"HEAD": 20 + 3 + 1 + 12, "GET": 20 + 3, "PUT": 20 + 2 + 4, "DELETE": 4},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    """After two barriers, of which the second is counted: the first makes empty snapshots to begin with."""
    with slow_store(0.002) as store:
        wide = Wide(store, Path(tmp_path_factory.mktemp("wide")), JOBS, EACH)
        wide.barrier(1)
        wide.requests.clear()
        wide.barrier(2)
    return wide


@pytest.mark.parametrize("step", BUDGET)
def test_a_step_asks_the_store_no_more_than_this(wide: Wide, step: str) -> None:
    asked = wide.requests[step]
    assert asked <= Counter(BUDGET[step]), f"{step}: {dict(asked)}"
