"""`python -m benchmarks [figure...]`: measures, and prints tables with the machine's size.

--quick: tiny sizes, to see that it works. --write: docs/benchmarks.md too, and from there the numbers in README.
Nothing is left behind but that.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import FrameType

from rich.console import Console

from airflow_barrier.protocol.errors import BarrierError
from benchmarks.report import Measured, document, machine, software, with_figures, with_numbers
from demo.local_airflow import LocalAirflowError
from demo.local_spark import LocalSparkError

#: figure -> what it is about; each is a module of this package with a function `measure`.
FIGURES = {
    "latency": "from a barrier's timestamp to readable, and what we add to the tasks, through Airflow",
    "adoption": "lines changed to adopt the example jobs",
    "metaservice": "transitions per second, and reading",
    "distance": "a barrier's own steps, with PostgreSQL at a distance",
    "connecting": "what engines ask the server of catalogs",
    "wide": "a barrier of many jobs",
    "waiting": "many tasks that wait in one triggerer",
    "retained": "a barrier after many barriers",
    "aging": "a barrier after many barriers, with Spark and upkeep",
    "upkeep": "a barrier after many barriers that were compacted and expired",
    "publishing": "many tables at once",
    "reading": "a query at one barrier against the plain one",
    "delivering": "a delivery to PostgreSQL beside what it could be without a ledger",
    "files": "a delivery to files beside Spark's own writer",
    "topics": "topics of Kafka beside the plain client and Spark's own connector",
    "databases": "changes of PostgreSQL beside only reading them, and the log that it keeps for us",
    "revising": "correcting history, and the swap",
    "expiry": "letting go of many barriers",
    "overview": "what the page and dashboards ask, of many large topologies",
    "past": "a recovery after many barriers, and a cut beside many used files",
}
_DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_README = _DOCUMENT.parents[1] / "README.md"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("figure", nargs="*", help=f"some of {', '.join(FIGURES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, or the named figures into it")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.figure) - set(FIGURES))
    if unknown:
        parser.error(f"expected some of {', '.join(FIGURES)}, found {', '.join(unknown)}")
    if chosen.write and chosen.quick:
        parser.error("--write: expected figures in full, found tiny ones; leave --quick away")
    console = Console()
    console.print(f"{machine()}\n{software()}", highlight=False)
    found: list[Measured] = []
    missing: list[str] = []
    figures = chosen.figure or list(FIGURES)
    for number, figure in enumerate(figures, start=1):
        try:
            found += _measured(figure, console, quick=chosen.quick)
        except KeyboardInterrupt:
            console.print("Stopped.")
            return 130
        # a server's program that is missing is an AssertionError of the tests' helpers
        except (AssertionError, BarrierError, LocalAirflowError, LocalSparkError) as error:
            console.print(f"{type(error).__name__}: {error}", style="bold red", highlight=False, markup=False)
            missing.append(figure)
        if chosen.write and not chosen.figure:  # after each: what was measured is kept if a later one is interrupted
            _DOCUMENT.write_text(document(found, [*missing, *figures[number:]], "make benchmarks ARGS=--write"))
    if chosen.write:
        if chosen.figure:
            command = f'make benchmarks ARGS="{" ".join(chosen.figure)} --write"'
            _DOCUMENT.write_text(with_figures(_DOCUMENT.read_text(), found, command))
        if not missing:  # README has numbers of several figures
            _README.write_text(with_numbers(_README.read_text(), _DOCUMENT.read_text()))
        console.print(f"Written: {_DOCUMENT}", highlight=False)
    return 1 if missing else 0


def _measured(figure: str, console: Console, *, quick: bool) -> list[Measured]:
    began = time.monotonic()
    console.rule(f"{figure}: {FIGURES[figure]}")
    with tempfile.TemporaryDirectory(prefix=f"airflow-barrier-{figure}-") as folder:
        measured: list[Measured] = import_module(f"benchmarks.{figure}").measure(Path(folder), quick=quick)
    for one in measured:
        one.show(console)
    console.print(f"({time.monotonic() - began:.0f} s)", highlight=False)
    return measured


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main(sys.argv[1:]))
