"""`airflow-barrier query`"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.cli.arguments import level_argument, moment_of
from airflow_barrier.cli.connection import connected, connection_option
from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import answer, make_console, row, table
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_FORMATS = ("table", "csv", "json", "parquet")


def _define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")
    parser.add_argument("sql", help="a query in DuckDB's dialect, as on the command line or - for standard input")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--barrier", type=int, metavar="N", help="at this barrier instead of the newest")
    which.add_argument("--at", type=moment_of, metavar="TIME", help="at the newest barrier at or before it: ISO 8601")
    which.add_argument("--not-older-than", type=float, metavar="MINUTES", help="fail (75) if the newest is older")
    level_argument(parser)
    parser.add_argument("--format", choices=_FORMATS, default="table", help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the rows to this file; parquet needs one")
    connection_option(parser)


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.reading.duckdb_views import running
    from airflow_barrier.reading.session import consistent_session

    if options.format == "parquet" and options.output is None:
        raise ConfigurationError("--format parquet: expected --output FILE, found none; parquet is no text to print")
    sql = sys.stdin.read() if options.sql == "-" else options.sql
    age = options.not_older_than
    with (
        connected(options.conn_id) as deployment,
        consistent_session(
            deployment,
            options.topology,
            level=options.level,
            at=options.barrier if options.barrier is not None else options.at,
            not_older_than=None if age is None else timedelta(minutes=age),
        ) as session,
        session.duckdb() as connection,
    ):
        say(f"reading {session.resolution.topology} at barrier {session.resolution.barrier_id}")
        with running(session, connection, sql) as rows:
            _write(options, rows)
        session.check()
    return DONE


def _write(options: argparse.Namespace, rows: DuckDBPyRelation) -> None:
    from airflow_barrier.reading.values import json_value

    if options.output is not None:
        _to_file(options, rows)
    elif options.json or options.format == "json":
        options.json = True
        named = [dict(zip(rows.columns, values, strict=True)) for values in rows.fetchall()]
        answer(options, json_value(named), _never)
    elif options.format == "csv":
        options.out.write(rows.to_df().to_csv(index=False))
    else:
        console = make_console(options.out)
        shown = table(console, *rows.columns)
        for values in rows.fetchall():
            row(shown, *values)
        console.print(shown)


def _to_file(options: argparse.Namespace, rows: DuckDBPyRelation) -> None:
    if options.format == "parquet":
        rows.write_parquet(str(options.output))
    elif options.format == "csv":
        rows.write_csv(str(options.output))
    else:
        with options.output.open("w") as out:
            _write(argparse.Namespace(**{**vars(options), "output": None, "out": out}), rows)


def _never(found: Any, console: Any) -> None:
    raise AssertionError("JSON is not shown")


QUERY = Command(
    "query",
    "Run a query at one barrier, in this process, by DuckDB. Tables are called as in Spark; --json is --format json.",
    _define,
    _run,
    examples=(
        'shopping "SELECT count(*) FROM shop.user_item_price"',
        'shopping - --at "2026-01-05 00:00" --format csv',
        'shopping "SELECT * FROM shop.user_item_amount" --format parquet --output amount.parquet',
    ),
)
