"""How barriers and attempts are called in places that outlive us: branches, tags and snapshot summaries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256

# `\Z` and not `$`, which also matches before a newline at the end
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,99}\Z")
_BRANCH = re.compile(
    r"^barrier_(?P<topology>[A-Za-z][A-Za-z0-9_-]{0,99})_b(?P<barrier>\d+)_r(?P<revision>\d+)_a(?P<attempt>\d+)\Z"
)
_REHEARSAL = re.compile(r"--rehearsal-[0-9a-f]{12}\Z")
_EVENT_KEY = re.compile(r"^b(?P<barrier>\d+)\.r\d+$")
_TAG = re.compile(r"^barrier_(?P<topology>[A-Za-z][A-Za-z0-9_-]{0,99})_b(?P<barrier>\d+)_r(?P<revision>\d+)\Z")

# Control characters, halves of surrogate pairs, line and paragraph separators: what moves a cursor, ends a line, or is
# no text at all, so that databases, logs and terminals each make something else of it.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They turn the order of what follows around, so that a name reads as another one.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LONGEST_NAME = 250
# What Spark, Hadoop and pyiceberg disagree about in the URIs of a table's files (tried, all of them).
_NOT_IN_URIS = frozenset("?#:")
# They end a placeholder of an SQL job.
_BRACES = frozenset("{}")
#: Bytes of a table's name: percent-encoded in the identifier of its Airflow asset, it has to fit into 1,500 characters.
_LONGEST_TABLE = 450


@dataclass(frozen=True)
class Stamp:
    """The origin of a staged snapshot, as its summary has it.

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
        """The attempt branch: one name on every inlet and outlet of the attempt."""
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


def set_aside_tag(topology: str, barrier_id: int, revision: int) -> str:
    """The tag that keeps the snapshot of a table against which a person decided at that barrier."""
    return f"{tag_name(topology, barrier_id, revision)}_set_aside"


def is_topology_name(name: str) -> bool:
    """Return whether a DAG may call its topology ``name``: it becomes part of branch and tag names."""
    return _NAME.match(name) is not None and not is_rehearsal(name)


def rehearsals_of(topology: str) -> str:
    """The beginning of the names of a topology's rehearsals.

    >>> rehearsals_of("shopping")
    'shopping--rehearsal-'
    """
    return f"{topology[:70]}--rehearsal-"


def rehearsal_name(topology: str, dag_id: str, run_id: str) -> str:
    """The topology that a run of a DAG rehearses ``topology`` in; it has one barrier.

    >>> rehearsal_name("shopping", "shopping", "manual__2017-01-05T00:00:00+00:00")
    'shopping--rehearsal-9e8eab9f3ba5'
    """
    # the whole name, of which only the beginning is shown, and no longer names of runs
    return rehearsals_of(topology) + sha256("/".join((topology, dag_id, run_id)).encode()).hexdigest()[:12]


def is_rehearsal(topology: str) -> bool:
    """Return whether the topology is a rehearsal of another one: nothing of it is ever published."""
    return _REHEARSAL.search(topology) is not None


def name_fault(name: str) -> str | None:
    """Return the fault of ``name`` as a job's, a DAG's or a source's, or None. Any script will do, and any punctuation.

    >>> name_fault("préparer l'été; 100%"), name_fault("load\\n")
    (None, "an unprintable character, '\\\\n'")
    """
    if not name or len(name) > _LONGEST_NAME:
        return f"{len(name)} characters (1 to {_LONGEST_NAME} are possible)"
    if odd := next(filter(_is_odd, name), None):
        return f"an unprintable character, {odd!a}"
    if name != name.strip():
        return "blanks around it"
    return None


def table_fault(table: str) -> str | None:
    """Return the fault of ``table`` as a table's name (``namespace.table``, without the catalog), or None.

    >>> table_fault("shop.o'brien"), table_fault("shopping")
    (None, 'no namespace')
    """
    if "." not in table:
        return "no namespace"
    for part in table.split("."):
        if fault := name_fault(part):
            return f"{fault} in the part {part!a}"
    if size := max(0, len(table.encode()) - _LONGEST_TABLE):
        return f"{size} bytes more than the {_LONGEST_TABLE} that are possible"
    if odd := next((c for c in table if c in _NOT_IN_URIS), None):
        return f"{odd!r}, which engines disagree about in the URIs of a table's files"
    return _brace_in(table)


def source_fault(name: str) -> str | None:
    """Return the fault of ``name`` as an external source's, or None."""
    return name_fault(name) or _brace_in(name)


def _brace_in(name: str) -> str | None:
    brace = next((c for c in name if c in _BRACES), None)
    return f"{brace!r}, which no placeholder of an SQL job can hold" if brace else None


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that somebody may have meant who wrote ``name``; None: none is near.

    >>> nearest("purchase", ["purchases", "returns"])
    'purchases'
    """
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), None)  # a namespace in common says little


def one_line(text: str) -> str:
    """Free text as it is kept and logged: what would end a line, move a cursor or fail in a database is escaped.

    >>> one_line("bad\\nfile é")
    'bad\\\\nfile é'
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_odd(c) else c for c in text)


def _is_odd(character: str) -> bool:
    return character in _TURNING or unicodedata.category(character) in _UNPRINTABLE


def event_key(barrier_id: int, revision: int) -> str:
    """The partition key of asset events: consumers that see it twice have seen the same thing."""
    return f"b{barrier_id}.r{revision}"


def parse_event_key(key: str) -> int | None:
    """The barrier's id of an event's partition key, or None if it is somebody else's key.

    >>> parse_event_key("b3.r0"), parse_event_key("2026-01-01")
    (3, None)
    """
    match = _EVENT_KEY.match(key)
    return None if match is None else int(match["barrier"])
