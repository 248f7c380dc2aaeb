"""Edits of metadata documents, as a REST catalog is told them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_barrier.tables._metadata import Changes
from airflow_barrier.tables._rest_changes import table_change

FOREVER = 2**63 - 1
DOCUMENT: dict[str, Any] = {
    "table-uuid": "u",
    "properties": {"a": "b"},
    "refs": {
        "main": {"snapshot-id": 1, "type": "branch"},
        "attempt": {"snapshot-id": 2, "type": "branch", "max-ref-age-ms": FOREVER},
        "tag": {"snapshot-id": 1, "type": "tag"},
    },
}


def test_what_is_done_already_is_not_sent() -> None:
    done = Changes(branches={"main": 1}, tags={"tag": 1}, drop=frozenset({"gone"}), properties={"a": "b"})
    assert table_change(DOCUMENT, done) is None


@pytest.mark.kills("table-is-the-same", "refs-are-where-they-were")
def test_what_has_to_be_there_is_said_along() -> None:
    change = table_change(DOCUMENT, Changes(branches={"main": 2}, tags={"new": 2}, drop=frozenset({"attempt"})))
    assert change == {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": "u"},
            {"type": "assert-ref-snapshot-id", "ref": "attempt", "snapshot-id": 2},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
            {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None},
        ],
        "updates": [
            {"action": "remove-snapshot-ref", "ref-name": "attempt"},
            {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": 2, "type": "branch"},
            {
                "action": "set-snapshot-ref",
                "ref-name": "new",
                "snapshot-id": 2,
                "type": "tag",
                "max-ref-age-ms": FOREVER,
            },
        ],
    }


def test_a_snapshot_comes_before_the_refs_to_it() -> None:
    root = {"snapshot-id": 7}
    change = table_change({**DOCUMENT, "refs": {}}, Changes(branches={"x": 7}, snapshot=root, keep={"x": 3}))
    assert change is not None
    assert [update["action"] for update in change["updates"]] == ["add-snapshot", "set-snapshot-ref"]
    assert change["updates"][1]["min-snapshots-to-keep"] == 3
    assert change["requirements"][1] == {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}


def test_properties_are_set_where_they_differ() -> None:
    change = table_change(DOCUMENT, Changes(properties={"a": "b", "c": "d"}))
    assert change is not None
    assert change["updates"] == [{"action": "set-properties", "updates": {"c": "d"}}]
    change = table_change(DOCUMENT, Changes(drop_properties=frozenset({"a", "gone"})))
    assert change is not None
    assert change["updates"] == [{"action": "remove-properties", "removals": ["a"]}]
