"""What a figure reports, and how that is shown: on the screen, in docs/benchmarks.md, and the few that README has."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

_PACKAGES = ("apache-airflow", "pyspark", "pyiceberg", "sqlalchemy")


@dataclass(frozen=True)
class Measured:
    """One table of numbers. ``how`` says how it was measured and what it includes; ``lines`` what it comes to."""

    title: str
    how: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str] = field(default=())

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for line in self.lines:
            console.print(f"  {line}", highlight=False)

    def markdown(self) -> str:
        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cells)} |"

        rule = line(["---", *["---:"] * (len(self.columns) - 1)])
        table = "\n".join([line(self.columns), rule, *(line(row) for row in self.rows)])
        bullets = "\n".join(f"- {one}" for one in self.lines)
        return "\n\n".join(part for part in (f"## {self.title}", self.how, table, bullets) if part)


def machine() -> str:
    """The size of the machine that all of it ran on, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "")
    return (
        f"{len(os.sched_getaffinity(0))} cores{f' ({model})' if model else ''}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}"
    )


def software() -> str:
    """The versions that the numbers depend on."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"Python {platform.python_version()}, {packages}"


def document(figures: Sequence[Measured], missing: Sequence[str], command: str) -> str:
    """docs/benchmarks.md; ``missing`` are figures that could not be measured."""
    head = """# Benchmarks

Written by `make benchmarks`; nothing here is typed by hand. Each table says when it was measured, and on which machine:
all of it, servers included, ran there.

Numbers of two tables are of two moments; compare within one table, whose columns were measured in one run, in turns."""
    if missing:
        head += f"\n\n**Not measured in the last run**, which failed there or was stopped: {', '.join(missing)}."
    return with_figures(head, figures, command)


def with_figures(document: str, figures: Sequence[Measured], command: str) -> str:
    """docs/benchmarks.md with figures that were measured again, or for the first time."""
    head, *sections = re.split(r"(?m)^(?=## )", document)
    by_title = {section.partition("\n")[0]: section.strip() for section in sections}
    now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    said = f"*Measured on {now} by `{command}`: {machine()}. {software()}.*"
    for figure in figures:
        title, _, rest = figure.markdown().partition("\n\n")
        by_title[title] = f"{title}\n\n{said}\n\n{rest}"
    return "\n\n".join([head.strip(), *by_title.values()]) + "\n"


def with_numbers(readme: str, document: str) -> str:
    """README with the numbers of docs/benchmarks.md between its two comments."""

    def section_of(title: str) -> str:
        (section,) = (one for one in re.split(r"(?m)^## ", document) if one.partition("\n")[0] == title)
        return section

    def measured(title: str) -> str:
        """When and where."""
        (found,) = re.findall(r"(?m)^\*Measured on (\S+) .*?`: (\d+ cores)", section_of(title))
        return ", ".join(found)

    def cell(title: str, row: str, column: str) -> str:
        section = section_of(title)
        columns, _, *rows = (
            [one.strip() for one in line.strip("|").split(" |")]
            for line in section.splitlines()
            if line.startswith("|")
        )
        (found,) = (cells for cells in rows if " | ".join(cells).startswith(f"{row} | "))
        return found[columns.index(column)]

    seconds, connect = "A barrier, from its timestamp to readable, in seconds", "Spark Connect, 6 barriers"
    without, reading = "The same jobs without us", "A pinned read against the plain read of the same snapshots"
    revising = "Correcting history by a revision"
    readable = cell(seconds, "timestamp to readable, median", connect)
    spark = cell(seconds, "of the median: Spark's work", connect)
    ratio = cell(without, "all six", "ratio")
    plain, pinned = (float(cell(reading, "until its rows are there", column)) for column in ("plain", "by a session"))
    revised = cell(revising, "last 7 of 120", "of full")
    rows = [
        ("20,000 new rows, from their timestamp until six tables have them", f"{readable} s, {spark} s of it Spark"),
        ("the six tasks, against the same tasks without barriers, each in a new session", f"{ratio} times as long"),
        ("a query at one barrier, against the plain query", f"{pinned / plain:.2f} times as long"),
        ("computing the last 7 of 120 barriers again, against all of them", f"{revised} of the time"),
    ]
    places = [measured(title) for title in (seconds, without, reading, revising)]
    table = "| [measured](docs/benchmarks.md) | | when and where |\n| --- | ---: | --- |\n" + "".join(
        f"| {what} | {figure} | {place} |\n" for (what, figure), place in zip(rows, places, strict=True)
    )
    begin, end = "<!-- numbers of docs/benchmarks.md -->\n", "<!-- end of numbers -->\n"
    before, _, rest = readme.partition(begin)
    _, _, after = rest.partition(end)
    if not after:
        raise ValueError(
            f"README.md: expected {begin.strip()} and then {end.strip()}, found no such lines; put them back"
        )
    return f"{before}{begin}{table}{end}{after}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
