"""`airflow-barrier query`"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from airflow_barrier.cli.arguments import lasting, level_argument, moment_of, topology_argument
from airflow_barrier.cli.connection import connected, connection_option
from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import make_console, row, table
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_T = TypeVar("_T")
#: Names of the columns, and rows.
_Fetched = tuple[Sequence[str], Sequence[tuple[Any, ...]]]
_FORMATS = ("table", "csv", "json", "parquet")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", help="a query in DuckDB's dialect, as on the command line or - for standard input")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--barrier", type=int, metavar="N", help="at this barrier instead of the newest")
    which.add_argument("--at", type=moment_of, metavar="TIME", help="at the newest barrier at or before it: ISO 8601")
    minutes = lasting("minutes")
    which.add_argument(
        "--not-older-than", type=minutes, metavar="MINUTES", help="fail (75) if the newest is older, ..."
    )
    parser.add_argument("--wait", type=minutes, default="0", metavar="MINUTES", help="... and still is after so long")
    level_argument(parser)
    parser.add_argument("--format", choices=_FORMATS, help="default: table, with --json json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the rows to this file; parquet needs one")


def _run(options: argparse.Namespace) -> int:
    layout = _layout(options)
    sql = sys.stdin.read() if options.sql == "-" else options.sql
    if layout in ("csv", "parquet"):
        _by_duckdb(options, sql, layout)
    else:
        fetch, show = (_named, _as_json) if layout == "json" else (_fetched, _as_table)
        found = _read(options, sql, fetch)
        with _out(options) as out:
            show(found, out)
    return DONE


def _layout(options: argparse.Namespace) -> str:
    layout: str = options.format or ("json" if options.json else "table")
    if options.json and (layout != "json" or options.output is not None):
        found = f"--format {layout}" if layout != "json" else "--output"
        raise ConfigurationError(
            f"--json: expected no other --format and no --output beside it, found {found}; it is one JSON document on "
            "standard output, for a file there is --format json"
        )
    if layout == "parquet" and options.output is None:
        raise ConfigurationError("--format parquet: expected --output FILE, found none; parquet is no text to print")
    if options.output is not None and (options.output.is_dir() or not options.output.parent.is_dir()):
        raise ConfigurationError(f"--output {options.output}: expected a file in a folder that is there; name another")
    return layout


def _read(options: argparse.Namespace, sql: str, take: Callable[[DuckDBPyRelation], _T]) -> _T:
    """Return what ``take`` makes of the rows, once it is sure that they were held for as long as that took."""
    from airflow_barrier.reading.duckdb_views import running
    from airflow_barrier.reading.session import consistent_session

    with (
        connected(options.conn_id) as deployment,
        consistent_session(
            deployment,
            options.topology,
            level=options.level,
            at=options.barrier if options.barrier is not None else options.at,
            not_older_than=options.not_older_than,
            wait=options.wait,
        ) as session,
        session.duckdb() as connection,
    ):
        found = session.resolution
        where = found.level.value if found.barrier_id is None else f"barrier {found.barrier_id}"
        say(f"reading {found.topology} at {where}")
        try:
            with running(session, connection, sql) as rows:
                return take(rows)
        except ConfigurationError:
            session.check()  # what cannot be read may be what is no longer held
            raise


def _by_duckdb(options: argparse.Namespace, sql: str, layout: str) -> None:
    """Show the rows in DuckDB's own notation, however many they are."""
    with TemporaryDirectory(prefix="airflow-barrier-") as folder:
        file = options.output or Path(folder) / "rows"

        def write(rows: DuckDBPyRelation) -> None:
            (rows.write_csv if layout == "csv" else rows.write_parquet)(str(file))

        _read(options, sql, write)
        if options.output is None:
            with file.open(encoding="utf-8", newline="") as lines:
                shutil.copyfileobj(lines, options.out)


def _fetched(rows: DuckDBPyRelation) -> _Fetched:
    return rows.columns, rows.fetchall()


def _named(rows: DuckDBPyRelation) -> _Fetched:
    from airflow_barrier.reading.values import check_columns

    check_columns(rows.columns)
    return _fetched(rows)


def _as_json(found: _Fetched, out: TextIO) -> None:
    from airflow_barrier.reading.values import json_value

    rows = [dict(zip(found[0], values, strict=True)) for values in found[1]]
    out.write(json.dumps(json_value(rows), indent=2) + "\n")


def _as_table(found: _Fetched, out: TextIO) -> None:
    console = make_console(out)
    shown = table(console, *found[0])
    for each in found[1]:
        row(shown, *each)
    console.print(shown)


@contextmanager
def _out(options: argparse.Namespace) -> Iterator[TextIO]:
    if options.output is None:
        yield options.out
        return
    try:
        with options.output.open("w", encoding="utf-8") as out:
            yield out
    except OSError as error:
        raise ConfigurationError(
            f"--output {options.output}: expected a file that can be written, found that {error}; name another"
        ) from error


QUERY = Command(
    "query",
    "Run a query at one barrier, in this process, by DuckDB. Tables are called as in Spark; --json is --format json.",
    (topology_argument, _options, connection_option),
    _run,
    examples=(
        'shopping "SELECT count(*) FROM shop.user_item_price"',
        'shopping - --at "2026-01-05 00:00" --format csv',
        'shopping "SELECT * FROM shop.user_item_amount" --format parquet --output amount.parquet',
    ),
)
