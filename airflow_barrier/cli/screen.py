"""What commands print: tables and lines for a person, or one JSON document for a program."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from airflow_barrier.protocol.names import one_line

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from airflow_barrier.protocol.revisions import RevisionState
    from airflow_barrier.protocol.states import BarrierState

_T = TypeVar("_T")
#: The columns of a table: title -> the cell of one row.
Columns = Mapping[str, Callable[[_T], object]]

#: Wider than any row: what is piped is never broken into lines, nor cut.
_UNBOUNDED = 1_000_000
#: Characters of free text that are shown beside other things: as many as the error of a task has.
_LONGEST = 300
_COLOURS = {
    "OPEN": "yellow",
    "STAGING": "yellow",
    "PRECOMMIT": "cyan",
    "COMMITTING": "cyan",
    "BLOCKED": "red",
    "COMMIT": "green",
}


def answer(
    options: argparse.Namespace,
    found: _T,
    show: Callable[[_T, Console], None],
    told: Callable[[_T], BaseModel] | None = None,
) -> None:
    """Print what was found: with ``--json`` as that, or as the API has it ``told``; else by ``show``."""
    if not options.json:
        show(found, make_console(options.out))
    elif told is not None:
        tell(options, told(found))
    else:
        _write(options, plain(found))


def tell(options: argparse.Namespace, model: BaseModel) -> None:
    """Print what the API would answer, as its server writes it: of the same times, say, in the same text."""
    _write(options, model.model_dump(mode="json"))


def _write(options: argparse.Namespace, document: Any) -> None:
    options.out.write(json.dumps(document, indent=2) + "\n")


def plain(value: Any) -> Any:
    """Return what JSON can hold: records by the names of their fields, times in ISO 8601, in UTC, to the microsecond,
    durations in seconds, decimal numbers as text. Fields that a record does not show (``repr=False``) are secrets, and
    left out.

    >>> plain({"at": datetime(2026, 1, 5, 6, tzinfo=timezone.utc), "ids": (1, None)})
    {'at': '2026-01-05T06:00:00.000000+00:00', 'ids': [1, None]}
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds")
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    # of what is left, a number that JSON would round is exact as text
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


# --- for a person ---------------------------------------------------------------------------------


def make_console(out: TextIO) -> Console:
    """Return a console; one that is no terminal has no colours, and lines as long as what they say."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process, as if something had failed

        def print(self, *objects: Any, **options: Any) -> None:
            if self.is_terminal:
                super().print(*objects, **options)
                return
            with self.capture() as printed:
                super().print(*objects, **options)
            # rows are filled up to the longest of all
            self.file.write(re.sub(" +$", "", printed.get(), flags=re.MULTILINE))

    console = Ours(file=out, highlight=False)
    return console if console.is_terminal else Ours(file=out, highlight=False, width=_UNBOUNDED)


def show_table(console: Console, columns: Columns[_T], found: Iterable[_T]) -> None:
    """Print a table with a row for each of ``found``."""
    shown = table(console, *columns)
    for one in found:
        row(shown, *(cell(one) for cell in columns.values()))
    console.print(shown)


def table(console: Console, *columns: str) -> Table:
    """A table to which :func:`row` adds; in a terminal that is too narrow cells are folded, never cut."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.HEAVY_HEAD if console.is_terminal else None, pad_edge=console.is_terminal)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def row(into: Table, *cells: object) -> None:
    """Add a row: None is an empty cell, times are shown to the second, and text is never read as rich's own markup."""
    into.add_row(*(cell_of(cell) for cell in cells))


def cell_of(value: object) -> Text:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        return Text(moment(value))
    if isinstance(value, (list, tuple)):
        return Text("\n".join(map(str, value)))
    return Text("" if value is None else str(value))


def state_of(state: BarrierState | RevisionState) -> Text:
    """A barrier's or a revision's state, in its colour."""
    from rich.text import Text

    return Text(state.value, colour_of(state))


def colour_of(state: BarrierState | RevisionState) -> str:
    return _COLOURS.get(state.value, "white")


def shortened(text: str) -> str:
    """Free text, an error say, that stands beside other things.

    >>> len(shortened("no" * 1_000))
    301
    """
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def line(console: Console, text: str, style: str = "") -> None:
    """A line of its own, unbroken: it may hold what is to be copied."""
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=True)


def one_line_of(value: object) -> str:
    """A position, whatever it is made of, on one line."""
    return "" if value is None else one_line(json.dumps(plain(value), ensure_ascii=False))


def moment(at: datetime | None) -> str:
    """A time in UTC, to the second."""
    return "" if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
