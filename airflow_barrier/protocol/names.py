"""How barriers and attempts are called in places that outlive us: branches, tags and snapshot summaries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")
_BRANCH = re.compile(
    r"^barrier_(?P<topology>[A-Za-z][A-Za-z0-9_-]{0,99})_b(?P<barrier>\d+)_r(?P<revision>\d+)_a(?P<attempt>\d+)$"
)
_TAG = re.compile(r"^barrier_(?P<topology>[A-Za-z][A-Za-z0-9_-]{0,99})_b(?P<barrier>\d+)_r(?P<revision>\d+)$")


@dataclass(frozen=True)
class Stamp:
    """What a staged snapshot's summary says about its origin.

    Written by the engine as snapshot properties, read back by the check of a staged table.
    """

    topology: str
    barrier_id: int
    revision: int
    attempt_id: int
    incarnation: str

    def properties(self) -> dict[str, str]:
        """The snapshot properties, as they stand in an Iceberg snapshot summary."""
        return {
            "barrier.topology": self.topology,
            "barrier.id": str(self.barrier_id),
            "barrier.revision": str(self.revision),
            "barrier.attempt": str(self.attempt_id),
            "barrier.incarnation": self.incarnation,
        }

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Stamp | None:
        """The stamp in a snapshot's summary; None if it bears none."""
        try:
            return cls(
                topology=summary["barrier.topology"],
                barrier_id=int(summary["barrier.id"]),
                revision=int(summary["barrier.revision"]),
                attempt_id=int(summary["barrier.attempt"]),
                incarnation=summary["barrier.incarnation"],
            )
        except (KeyError, ValueError):
            return None

    @property
    def branch(self) -> str:
        """The attempt branch: one name on every source and sink of the attempt."""
        return f"barrier_{self.topology}_b{self.barrier_id}_r{self.revision}_a{self.attempt_id}"


@dataclass(frozen=True)
class BranchName:
    """An attempt branch's name taken apart."""

    topology: str
    barrier_id: int
    revision: int
    attempt_id: int


def parse_branch(name: str) -> BranchName | None:
    """The parts of an attempt branch's name, or None if it is somebody else's branch."""
    match = _BRANCH.match(name)
    if match is None:
        return None
    return BranchName(match["topology"], int(match["barrier"]), int(match["revision"]), int(match["attempt"]))


def tag_name(topology: str, barrier_id: int, revision: int) -> str:
    """The tag that every table's published snapshot of a barrier bears, so that any engine can read it by name."""
    return f"barrier_{topology}_b{barrier_id}_r{revision}"


@dataclass(frozen=True)
class TagName:
    """A barrier's tag taken apart."""

    topology: str
    barrier_id: int
    revision: int


def parse_tag(name: str) -> TagName | None:
    """The parts of a barrier's tag, or None if it is somebody else's."""
    match = _TAG.match(name)
    return None if match is None else TagName(match["topology"], int(match["barrier"]), int(match["revision"]))


def is_topology_name(name: str) -> bool:
    """Whether ``name`` can be a topology's: it becomes part of branch and tag names."""
    return _NAME.match(name) is not None


def event_key(barrier_id: int, revision: int) -> str:
    """The partition key of asset events: consumers that see it twice have seen the same thing."""
    return f"b{barrier_id}.r{revision}"
