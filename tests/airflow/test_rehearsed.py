"""Which runs rehearse their barrier, and what is said to a run that cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_barrier.operators._conf import is_rehearsed
from airflow_barrier.protocol.errors import ConfigurationError


def is_one(conf: object, by: str | None = None) -> bool:
    return is_rehearsed(SimpleNamespace(conf=conf, triggering_user_name=by))


def test_which_runs_are_rehearsals() -> None:
    assert is_one(None, "dag_test")
    assert is_one({"mine": 1}, "dag_test")
    assert not is_one({"barrier_rehearsal": False}, "dag_test")
    assert is_one({"barrier_rehearsal": True}, "ann")
    for by in ("ann", None):
        assert not is_one({}, by)
    with pytest.raises(ConfigurationError, match=r"barrier_rehearsal: expected True or False, found 'perhaps'"):
        is_one({"barrier_rehearsal": "perhaps"})
