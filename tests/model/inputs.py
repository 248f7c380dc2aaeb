"""External sources of the model: a log that is cut by position, and a landing place whose items are used up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_barrier.protocol.errors import RevisionRefusedError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.port import CutRequest

_REPLACES, _DELETES = "replaces", "deletes"


class Input:
    """What has arrived: records by source, in the order of their arrival; and what people corrected since."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        #: how often something was corrected
        self.edition = 0
        #: record -> what it says from which edition on; None: it was deleted
        self._corrected: dict[str, list[tuple[int, str | None]]] = {}

    def arrive(self, source: str, how_many: int) -> None:
        there = self.records.setdefault(source, [])
        there += [f"{source}-{len(there) + i}" for i in range(how_many)]

    def change(self, source: str, which: int, *, delete: bool) -> None:
        """The source delivers that one of its records stands no more, or that the new one stands in its place."""
        there = self.of(source)
        old = key_of(there[which % len(there)])
        there.append(f"{source}-{len(there)} {_DELETES if delete else _REPLACES} {old}")

    def of(self, source: str) -> list[str]:
        return self.records.get(source, [])

    def correct(self, record: str, *, delete: bool) -> None:
        """A person changes a record of the past, or takes it out."""
        self.edition += 1
        self._corrected.setdefault(record, []).append((self.edition, None if delete else f"{record}.{self.edition}"))

    def texts(self, records: Iterable[str], edition: int) -> list[str]:
        """What records said at an edition."""
        said = []
        for record in records:
            since = [text for number, text in self._corrected.get(record, ()) if number <= edition]
            text = since[-1] if since else record
            if text is not None:
                said.append(text)
        return said


def key_of(text: str) -> str:
    """What a record is about, whatever it said at which edition."""
    return text.partition(" ")[0].partition(".")[0]


def taken_back_by(text: str) -> str | None:
    """The key of the record that stands no more once this one has come."""
    words = text.split()
    return key_of(words[2]) if len(words) > 1 else None


def adds_nothing(text: str) -> bool:
    """Whether all it says is that another one stands no more."""
    return f" {_DELETES} " in text


#: The running world's.
current = Input()


@dataclass(frozen=True)
class _Source:
    name: str
    kind: ClassVar[str]
    location: ClassVar[None] = None
    connections: ClassVar[Sequence[tuple[str, str]]] = ()
    secrets: ClassVar[Mapping[str, str]] = {}

    def within(self, limits: Any, *credentials: Any) -> _Source:
        return self

    def for_driver(self) -> ExternalSource:
        return self.declare()

    def look(self, catalog: Any) -> None:
        """It is always there."""

    def declare(self) -> ExternalSource:
        return ExternalSource(self.name, self.kind)

    @classmethod
    def of(cls, declared: ExternalSource) -> _Source:
        return cls(declared.name)

    def check(self, cut: Cut) -> None:
        """Everything that has arrived stays readable; what was corrected since is not what was cut."""
        records = names_of(self.kind, cut)
        if current.texts(records, cut.end["edition"]) != current.texts(records, current.edition):
            raise SourceDataError(f"source {self.name}: expected what was cut, found it corrected; clear the task")

    def lag(self, cut: Cut | None, now: Any) -> None:
        """Nobody asks."""

    def repin(self, cut: Cut) -> Cut:
        return replace(cut, end={**cut.end, "edition": current.edition})

    def check_held(self, cut: Cut, catalog: Any) -> None:
        """Nothing has to be held."""

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        return Cut(self.name, cuts[0].start, cuts[-1].end)

    def release(self, cut: Cut, catalog: Any) -> None:
        """Nothing is held."""


class Log(_Source):
    """Cut like a topic: by the position that it has reached."""

    kind: ClassVar[str] = "model-log"

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        raise RevisionRefusedError(f"source {self.name}: expected a source of items, found a log")

    def cut(self, request: CutRequest) -> Cut:
        start = None if request.start is None else {"position": request.start["position"]}
        return Cut(self.name, start, {"position": len(current.of(self.name)), "edition": current.edition})


class Landing(_Source):
    """Cut like a folder: what nobody has read yet."""

    kind: ClassVar[str] = "model-landing"

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        """Nothing goes away, and nothing comes for an epoch of the past."""
        return [self.repin(cut) for cut in cuts]

    def cut(self, request: CutRequest) -> Cut:
        there = current.of(self.name)
        used = request.used(there)
        items = tuple(item for item in there if item not in used)
        end = {"seen": len(there), "edition": current.edition, "read": list(items)}
        return Cut(self.name, request.start, end, items)

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        read = [item for cut in cuts for item in cut.end["read"]]
        return Cut(self.name, cuts[0].start, {**cuts[-1].end, "read": read}, tuple(read))


ADAPTERS: dict[str, Any] = {Log.kind: Log, Landing.kind: Landing}


def records_of(kind: str, cut: Cut) -> list[str]:
    """What a driver reads of a cut."""
    return current.texts(names_of(kind, cut), cut.end["edition"])


def names_of(kind: str, cut: Cut) -> list[str]:
    """The records of a cut, whatever they say by now."""
    if kind == Landing.kind:
        return list(cut.end["read"])
    start: Mapping[str, Any] = cut.start or {"position": 0}
    return current.of(cut.source)[start["position"] : cut.end["position"]]
