"""The operations of a recorded run, and the points at which a process is killed or suspended.

A recording has the operations of each kind of barrier, in order, each with its task. Kinds: the `first` barrier of a
topology, which registers it and joins tables that are empty; one of `every` day; one where the table of a job is
`unchanged`; and the commit of one where MetaService and catalog are `apart`, in two databases. A point stands before
each operation that changes something (:data:`READS` do not), in the middle of each write to a file, and after the last
operation of each task. The state that an operation leaves behind is the one before the next that changes something, so
"after" needs no points of its own. A file that gets its name when it is complete (`.part`) counts as one operation with
its writing and closing: nobody can find it before it is renamed.

`counts.txt` has how many operations of which kind each task makes, so that no point goes, or comes, without being seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.instrument import AFTER, BEFORE, DURING
from tests.crash.shopping import TASKS

COUNTS = Path(__file__).with_name("counts.txt")
FIRST, EVERY, UNCHANGED, APART = "first", "every", "unchanged", "apart"
#: Operations that leave nothing behind.
READS = ("sql/read", "file/read", "file/exists", "file/stat", "source/")
#: The point after everything that a task does.
END = "end"


@dataclass(frozen=True)
class Point:
    """Where a process of ``task`` dies or is suspended, at a barrier of a kind."""

    kind: str
    task: str
    when: str
    operation: str

    def __str__(self) -> str:
        return f"{self.when} {self.operation} of {self.task} ({self.kind} barrier)"


def counted(operations: dict[str, list[str]]) -> str:
    """How often each task does what, as `counts.txt` has it."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for kind, lines in operations.items():
        for line in lines:
            task, _, operation = line.partition(" ")
            found = counts.setdefault((kind, task), Counter())
            if not operation.startswith(READS):
                found[operation.split()[0]] += 1
    tasks = [
        f"{kind} {task}: {', '.join(f'{number} {what}' for what, number in sorted(found.items()))}"
        for (kind, task), found in counts.items()
    ]
    return "\n".join(
        [*tasks, f"points: {len(points(operations))}", f"points apart: {len(points_apart(operations))}", ""]
    )


def points(operations: dict[str, list[str]]) -> list[Point]:
    """All of a recording in one database; one that another kind of barrier has is not there twice."""
    found: dict[tuple[str, str, str], Point] = {}
    for kind in (EVERY, UNCHANGED, FIRST):
        for point in _points(kind, operations[kind], TASKS):
            found.setdefault((point.task, point.when, point.operation), point)
    return list(found.values())


def points_apart(operations: dict[str, list[str]]) -> list[Point]:
    """All of a commit in two databases, as far as they have to do with these."""
    return [
        point
        for point in _points(APART, operations[APART], TASKS[-1:])
        if point.operation.startswith(("sql/", "file/delete"))
    ]


def points_in_metastores(operations: Sequence[str]) -> list[Point]:
    """Before each lock, move and unlock of one job and of the commit, and after both."""
    tasks = ("load", "commit")
    found = [point for point in _points(EVERY, operations, tasks) if point.task in tasks]
    return [point for point in found if point.operation.startswith("metastore/") or point.when == END]


def of_ours(points: Sequence[Point]) -> list[Point]:
    """Without those of the driver, which commits to a metastore by pyiceberg: under a lock, and without comparing."""
    theirs = ("#", "unlock")
    return [point for point in points if point.task != "load" or not any(each in point.operation for each in theirs)]


def points_of_commits(operations: list[str]) -> list[Point]:
    """Before and after each COMMIT of a transaction that writes."""
    commits = [line.partition(" ")[::2] for line in operations if " sql/COMMIT " in line]
    return [Point(EVERY, task, when, operation) for task, operation in commits for when in (BEFORE, AFTER)]


def points_of_task(task: str, operations: list[str]) -> list[Point]:
    """Those of one task that is no part of a barrier. Of many deletions in a row the first stands for all."""
    found = _points(task, operations, (task,))
    return [point for point in found if not (point.operation.startswith("file/delete") and "#" in point.operation[-4:])]


def _points(kind: str, operations: Sequence[str], tasks: Sequence[str]) -> list[Point]:
    found = []
    for line in operations:
        task, _, operation = line.partition(" ")
        unnamed = ".part" in operation and operation.startswith(("file/write", "file/close"))
        if not operation.startswith(READS) and not unnamed:
            found.append(Point(kind, task, BEFORE, operation))
        if operation.startswith("file/write"):
            found.append(Point(kind, task, DURING, operation))
    return found + [Point(kind, task, END, "") for task in tasks]
