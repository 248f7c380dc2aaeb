"""What is written down is read back equal, of every class; and what was written otherwise is refused, saying where."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import airflow_barrier
from airflow_barrier.coordinator.waiting import AnyCondition
from airflow_barrier.protocol.codec import decode, digest, encode, wire_form
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import WireFormError
from airflow_barrier.protocol.journal import JournalHead
from airflow_barrier.protocol.records import Need, StagedTable
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology
from airflow_barrier.spark.spec import ClosingRecord
from tests.protocol.wire_forms import FORMS, TOPOLOGY
from tests.support.cases import cases
from tests.support.values import Values

PACKAGE = Path(airflow_barrier.__file__).parent
DRAWN = 40


def read_somewhere() -> Iterator[type]:
    """The first argument of each call of ``decode`` in the package: a class, a union, or the class around it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        around = {
            id(node): each.name for each in tree.body if isinstance(each, ast.ClassDef) for node in ast.walk(each)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "decode":
                kind = node.args[0]
                assert isinstance(kind, ast.Name), ast.unparse(node)
                module = import_module(".".join(("airflow_barrier", *path.relative_to(PACKAGE).with_suffix("").parts)))
                yield from records_in(getattr(module, around[id(node)] if kind.id == "cls" else kind.id))


def records_in(hint: Any) -> Iterator[type]:
    """The classes of records that a type is made of."""
    if is_dataclass(hint):
        yield hint  # type: ignore[misc]
        hints = get_type_hints(hint)
        for each in fields(hint):
            yield from records_in(hints[each.name])
    for part in get_args(hint):
        yield from records_in(part)


def values_in(value: Any) -> Iterator[Any]:
    """The records in a value, itself too."""
    if is_dataclass(value):
        yield value
        for each in fields(value):
            yield from values_in(getattr(value, each.name))
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from values_in(part)


KINDS = sorted({*read_somewhere()}, key=lambda kind: kind.__name__)
EXAMPLES = [each for value, *_ in FORMS.values() for each in values_in(value)]


def on_the_wire(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read_back(kind: type) -> None:
    values = [each for each in EXAMPLES if type(each) is kind]
    assert values, f"expected an example of {kind.__name__} among the forms, found none; add one to wire_forms.py"
    # those that refuse what was drawn stand among the examples with each of their choices
    if not any(hasattr(each, "__post_init__") for each in records_in(kind)):
        values += [Values(seed=7).record(kind, empty=number % 4 == 0) for number in range(DRAWN)]
    for value in values:
        assert decode(kind, on_the_wire(value)) == value


def test_what_is_optional_and_not_said_is_not_written() -> None:
    assert encode(Job("load", "dag")).keys() == {"name", "owner", "inlets", "outlets", "externals"}
    assert encode(Job("load", "dag", freshness=3))["freshness"] == 3


def test_what_is_missing_has_its_default() -> None:
    assert decode(StagedTable, {"table": "shop.a", "snapshot_id": 7}) == StagedTable("shop.a", 7)
    assert decode(JournalHead, {"version": 1, "incarnation": "i", "barrier_id": 7}) == JournalHead("i", 7)


def test_names_are_text_on_the_wire() -> None:
    """JSON has no others: a declaration is to be the same before it was written and after."""
    source = ExternalSource("tills", "kafka", {"offsets": {0: 5, 1: 7}})
    assert encode(source) == on_the_wire(source)
    assert digest(source) == digest(decode(ExternalSource, on_the_wire(source)))


def test_what_was_written_otherwise_is_refused() -> None:
    staged = {"table": "shop.a", "snapshot_id": 7, "unchanged": False}
    head = {"version": 1, "incarnation": "i", "barrier_id": 7}
    of_staged = "StagedTable with snapshot_id, table, unchanged, found"
    in_it = {"attempt_id": 1, "staged": {"shop.a": {**staged, "table": None}}}
    job = encode(TOPOLOGY)["jobs"][0]
    graph = {"name": "shopping", "jobs": [job, {**job, "outlets": ["shop.a", 3]}]}
    sink = encode(FORMS["sink"][0])
    soon = {"kind": "Delivered", "sink": "prices", "timestamp": "soon"}
    with cases() as case:
        for kind, data, message in [
            (StagedTable, [], "expected an object, found a list"),
            (StagedTable, {**staged, "snapshot_id": "7"}, "snapshot_id: expected an integer or null, found text"),
            (StagedTable, {**staged, "snapshot_id": True}, "expected an integer or null, found true or false"),
            (StagedTable, {**staged, "more": 1}, f"expected {of_staged} more besides"),
            (StagedTable, {"table": "shop.a"}, f"expected {of_staged} no snapshot_id"),
            (JournalHead, {**head, "version": 2}, "expected JournalHead of version 1, found 2"),
            (JournalHead, {"incarnation": "i", "barrier_id": 7}, "found no version"),
            (ClosingRecord, in_it, "ClosingRecord.staged: shop.a: StagedTable.table: expected text, found null"),
            (Topology, graph, "Topology.jobs: 1: Job.outlets: 1: expected text, found an integer"),
            (AnyCondition, {"kind": "Magic"}, "Unseen, found 'Magic'; run the same version"),
            (AnyCondition, soon, "Delivered.timestamp: expected a time (ISO 8601), found another text"),
            (SinkDeclaration, {**sink, "rows": "some"}, "rows: expected one of appends, changes, table, found 'some'"),
        ]:
            with case(message), pytest.raises(WireFormError, match=re.escape(message)):
                decode(kind, data)


def test_a_type_that_has_no_wire_form() -> None:
    with pytest.raises(TypeError, match="expected a type that has a wire form, found <class 'bytes'>"):
        wire_form(bytes)
    assert encode([Need("shop.a", 1, "load")]) == [{"table": "shop.a", "barrier_id": 1, "job": "load", "line": 0}]
