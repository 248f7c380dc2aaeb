"""What the model's tables in memory do is what Iceberg's do: the same random steps, of the protocol and of engines, on
both, with the same answers, errors and metadata. Only then do the model's schedules say something of real tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest

from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.names import Stamp, tag_name
from airflow_barrier.tables._metadata import MAIN, refs_of
from airflow_barrier.tables.port import Publication
from tests.catalogs.engines import REAL, Engine, in_memory
from tests.catalogs.lake import Lake
from tests.support.reporting import report
from tests.tables.lake import stamp_of

_TOPOLOGY = "shop"
_STEPS = 40
#: Of Spark, which is the slowest, fewer.
_RUNS = [(kind, seed) for kind in REAL for seed in range(1, 9 if kind.startswith("spark") else 25)]
#: Of a summary, what the protocol goes by; engines say more.
_STAMP = "barrier."


class Side:
    """A table whose snapshots are called by numbers, in the order in which they came."""

    def __init__(self, engine: Engine, table: str) -> None:
        self.engine = engine
        self.tables = engine.tables
        self.table = table
        self._numbers: dict[int, int] = {}

    def id_of(self, number: int | None) -> int | None:
        """What is not there is there on neither side."""
        return None if number is None else {there: each for each, there in self._numbers.items()}.get(number, 4711)

    def refs(self) -> dict[str, int]:
        return {
            name: self._numbers[ref["snapshot-id"]] for name, ref in refs_of(self.engine.document(self.table)).items()
        }

    def state(self) -> Mapping[str, Any]:
        """The metadata document in numbers."""
        document = self.engine.document(self.table)
        for snapshot in sorted(document["snapshots"], key=lambda each: each["sequence-number"]):
            self._numbers.setdefault(snapshot["snapshot-id"], len(self._numbers) + 1)
        # an expiry by pyiceberg also takes out that a snapshot had a parent, one by Java leaves it
        known = {each["snapshot-id"]: self._numbers[each["snapshot-id"]] for each in document["snapshots"]}
        return {
            "refs": {name: (ref["type"], known[ref["snapshot-id"]]) for name, ref in refs_of(document).items()},
            "current": known.get(document.get("current-snapshot-id") or 0),
            "log": [known[entry["snapshot-id"]] for entry in document["snapshot-log"]],
            "snapshots": {
                known[each["snapshot-id"]]: (
                    known.get(each.get("parent-snapshot-id", 0)),
                    each["summary"]["operation"],
                    {name: told for name, told in each["summary"].items() if name.startswith(_STAMP)},
                )
                for each in document["snapshots"]
            },
        }

    def answer(self, ask: Callable[[Side], object]) -> object:
        """What a step answers, in numbers, or the name of its error."""
        try:
            found = ask(self)
        except BarrierError as error:
            return type(error).__name__
        self.state()  # what the step has made has a number now
        return self._in_numbers(found)

    def _in_numbers(self, found: Any) -> Any:
        if is_dataclass(found):
            return {each.name: self._in_numbers(getattr(found, each.name)) for each in fields(found)}
        if isinstance(found, Mapping):
            return {key: self._in_numbers(each) for key, each in found.items()}
        if isinstance(found, (list, tuple)):
            return [self._in_numbers(each) for each in found]
        return self._numbers.get(found, found) if isinstance(found, int) else found

    def append(self, branch: str, stamp: Stamp | None) -> None:
        self.engine.append(self.table, [1], branch, stamp)


# --- steps ----------------------------------------------------------------------------------------


def _step(chance: Random, side: Side) -> tuple[str, Callable[[Side], object]]:
    """A step that both sides take, chosen by what one of them, and so both, have."""
    state = side.state()
    refs, numbers = side.refs(), sorted(state["snapshots"])
    branches = [name for name, (kind, _) in state["refs"].items() if kind == "branch"] or [MAIN]
    stamp = stamp_of(chance.randint(1, 4), chance.randint(1, 6), revision=chance.choice([0, 0, 0, 1]))
    base = chance.choice([*numbers, None])
    main = refs.get(MAIN)
    new = chance.choice([*[at for name, at in refs.items() if name != MAIN], *numbers[-3:], None])
    tag = tag_name(_TOPOLOGY, stamp.barrier_id, 0)

    def publication(of: Side) -> list[Publication]:
        expected, going = of.id_of(chance_expected), of.id_of(new)
        return [Publication(of.table, _TOPOLOGY, stamp.barrier_id, expected, going, tag, dropped)]

    chance_expected = chance.choice([main, main, main, base])
    dropped = tuple(name for name, at in refs.items() if name.startswith("barrier_") and chance.random() < 0.2)
    branch = chance.choice(branches)
    steps: dict[str, Callable[[Side], object]] = {
        "prepare": lambda of: of.tables.prepare({of.table: of.id_of(base)}, stamp).deltas,
        "an attempt's append": lambda of: of.append(branch, stamp),
        "an attempt": lambda of: (of.tables.prepare({of.table: of.id_of(main)}, stamp), of.append(stamp.branch, stamp))[
            1
        ],
        "staged": lambda of: of.tables.staged(of.table, stamp, of.id_of(base)),
        "staged summaries": lambda of: len(of.tables.staged_summaries(of.table, stamp, of.id_of(base))),
        "check": lambda of: of.tables.check_snapshot(of.table, of.id_of(new) or 4711, stamp, of.id_of(base)),
        "publish": lambda of: of.tables.publish(publication(of)) and None,
        "look": lambda of: of.tables.look(publication(of)),
        "findings": lambda of: {name: type(e).__name__ for name, e in of.tables.findings(publication(of)).items()},
        "current": lambda of: of.tables.currents({of.table: of.id_of(base)})[of.table],
        "mains": lambda of: of.tables.mains([of.table]),
        "origin": lambda of: str(of.tables.origin(of.table)),
        "traces": lambda of: str(sorted(of.tables.traces(of.table, _TOPOLOGY).tags)),
        # each with one of its reasons: which of several comes first is the order of the document
        "verdicts": lambda of: [(v.snapshot_id, v.keep) for v in of.tables.snapshot_verdicts(of.table, tag, dropped)],
        "steps since": lambda of: of.tables.has_steps_since(of.table, of.id_of(base) or 4711),
        "drop tags": lambda of: of.tables.drop_tags([of.table], [tag]),
        "drop a revision": lambda of: of.tables.drop_revision([of.table], _TOPOLOGY, 1),
        "give back": lambda of: of.tables.give_back([of.table], _TOPOLOGY, [(2, 3)]),
        "take in": lambda of: of.tables.take_in([of.table]),
        "a stranger's append": lambda of: of.append(MAIN, None),
    }
    if numbers:
        at = chance.choice(numbers)
        steps["a stranger's rollback"] = lambda of: of.engine.set_main(of.table, of.id_of(at) or 0)
        steps["an expiry"] = lambda of: of.engine.take_out(of.table, _unneeded(of))
    if others := [name for name in refs if name != MAIN]:
        gone = chance.choice(others)
        steps["a stranger's drop"] = lambda of: of.engine.drop_ref(of.table, gone)
    name = chance.choice([*steps, "an attempt", "an attempt", "publish", "publish", "publish"])
    return name, steps[name]


def _unneeded(side: Side) -> list[int]:
    return [each.snapshot_id for each in side.tables.snapshot_verdicts(side.table, None) if not each.keep]


# --- tests ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taken() -> Iterator[Counter[str]]:
    """How often each step was taken."""
    taken: Counter[str] = Counter()
    yield taken
    report(f"tables in memory beside Iceberg's: {taken.total()} steps of {len(taken)} kinds, no difference")


@pytest.mark.parametrize(("lake", "seed"), _RUNS, indirect=["lake"])
@pytest.mark.drawn
def test_the_same_steps_come_to_the_same(seed: int, lake: Lake, taken: Counter[str]) -> None:
    chance = Random(seed)
    (table,) = lake.create("t")
    engine = in_memory()
    engine.create(table)
    memory, real = Side(engine, table), Side(lake.engine, table)
    told = []
    for _ in range(_STEPS):
        name, step = _step(chance, memory)
        answers = memory.answer(step), real.answer(step)
        told.append(f"{name}: {answers[0]}")
        assert answers[0] == answers[1], told
        assert memory.state() == real.state(), told
        taken[name] += 1
