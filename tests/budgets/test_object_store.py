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

#: A file in an upload of parts costs one of each of these.
UPLOAD = ("POST uploads", "PUT uploadId", "POST uploadId")
BUDGET = {
    "open": {"HEAD": 1, "GET": 1},
    "begin": {"HEAD": 43, "GET": 43, **dict.fromkeys(UPLOAD, 27)},
    "close": {"HEAD": 20, "GET": 20},
    "commit": {"HEAD": 76, "GET": 63, "DELETE": 4, "PUT": 4, **dict.fromkeys(UPLOAD, 22)},
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
