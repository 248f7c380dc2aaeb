"""External sources of the model: a log that is cut by position, and a landing place whose items are used up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.port import CutRequest


class Input:
    """What has arrived: records by source, in the order of their arrival."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}

    def arrive(self, source: str, how_many: int) -> None:
        there = self.records.setdefault(source, [])
        there += [f"{source}-{len(there) + i}" for i in range(how_many)]

    def of(self, source: str) -> list[str]:
        return self.records.get(source, [])


#: The running world's.
current = Input()


@dataclass(frozen=True)
class _Source:
    name: str
    kind: ClassVar[str]

    def declare(self) -> ExternalSource:
        return ExternalSource(self.name, self.kind)

    @classmethod
    def of(cls, declared: ExternalSource) -> _Source:
        return cls(declared.name)

    def check(self, cut: Cut) -> None:
        """Everything that has arrived stays readable."""

    def release(self, cut: Cut, catalog: Any) -> None:
        """Nothing is held."""


class Log(_Source):
    """Cut like a topic: by the position that it has reached."""

    kind: ClassVar[str] = "model-log"

    def cut(self, request: CutRequest) -> Cut:
        return Cut(self.name, request.start, {"position": len(current.of(self.name))})


class Landing(_Source):
    """Cut like a folder: what nobody has read yet."""

    kind: ClassVar[str] = "model-landing"

    def cut(self, request: CutRequest) -> Cut:
        there = current.of(self.name)
        used = request.used(there)
        return Cut(self.name, request.start, {"seen": len(there)}, tuple(item for item in there if item not in used))


ADAPTERS: dict[str, Any] = {Log.kind: Log, Landing.kind: Landing}


def records_of(kind: str, cut: Cut) -> list[str]:
    """What a driver reads of a cut."""
    if kind == Landing.kind:
        return list(cut.items)
    start: Mapping[str, Any] = cut.start or {"position": 0}
    return current.of(cut.source)[start["position"] : cut.end["position"]]
