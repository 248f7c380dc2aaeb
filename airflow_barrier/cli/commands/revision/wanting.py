"""What `plan` and `run` are asked alike: the arguments, what they mean, and the same words as a command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import day_of, one_or_more
from airflow_barrier.cli.connection import DEFAULT_CONN_ID
from airflow_barrier.protocol.revisions import MAX_REPLAY_BARRIERS

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.revisions.backfills import Backfill
    from airflow_barrier.coordinator.revisions.plan import RevisionPlan, Wanted
    from airflow_barrier.protocol.records import Barrier
    from airflow_barrier.protocol.revisions import TableCorrection
    from airflow_barrier.spark.corrections import CorrectBySql


def wanted_arguments(parser: argparse.ArgumentParser) -> None:
    """All but the topology; what is not given is None or empty."""
    parser.add_argument(
        "--from",
        dest="first",
        type=day_of,
        metavar="DAY",
        help="the first day (UTC) whose data is to be corrected, a time in ISO 8601, or a barrier's number. A barrier "
        "has the data of before its timestamp: the plan says of which run it is",
    )
    parser.add_argument("--to", dest="last", type=day_of, metavar="DAY", help="the last one (default: that of --from)")
    parser.add_argument(
        "--job",
        dest="jobs",
        action="append",
        default=[],
        metavar="JOB",
        help="a job whose code or input was corrected (default: all that read external sources), or that waits for its "
        "history (then without --from: from the first barrier that has its inlets)",
    )
    parser.add_argument(
        "--table",
        dest="tables",
        action="append",
        default=[],
        metavar="TABLE",
        help="the same by a table that it writes",
    )
    parser.add_argument("--full", action="store_true", help="from empty tables, everything up to --from in one epoch")
    parser.add_argument(
        "--reuse",
        dest="reused",
        action="append",
        default=[],
        metavar="TABLE",
        help="apply the rows again that this root table got then, without asking its source",
    )
    parser.add_argument(
        "--recut",
        action="append",
        default=[],
        metavar="SOURCE",
        help="cut this source anew at each of the days: files that are gone leave, and those that were delivered since "
        "under other names join",
    )
    parser.add_argument(
        "--sql",
        action="append",
        default=[],
        nargs=2,
        metavar=("TABLE", "STATEMENT"),
        help="correct each day's rows of a root table by one DELETE, UPDATE, MERGE or INSERT of Spark SQL",
    )
    parser.add_argument(
        "--file",
        dest="files",
        action="append",
        default=[],
        nargs=3,
        metavar=("TABLE", "URI", "FORMAT"),
        help="replace a day's rows of a root table by a file's: parquet, csv (with a header) or json",
    )
    parser.add_argument(
        "--at", type=one_or_more, metavar="BARRIER", help="correct by --sql or --file at this barrier only"
    )
    parser.add_argument(
        "--max-replay-barriers",
        type=one_or_more,
        default=MAX_REPLAY_BARRIERS,
        metavar="N",
        help="refuse to compute more barriers than so many again (default: %(default)s)",
    )
    parser.add_argument(
        "--accept-pause", action="store_true", help="even if barriers come faster than they are computed again"
    )


def plan_of(deployment: Deployment, options: argparse.Namespace) -> RevisionPlan:
    """Changes nothing. Raises what :func:`~airflow_barrier.coordinator.revisions.begin.plan_revision` raises,
    ConfigurationError for a correction that cannot be, and SqlSyntaxError.
    """
    from dataclasses import replace

    from airflow_barrier.coordinator.revisions.begin import plan_revision
    from airflow_barrier.coordinator.revisions.window import replay_of

    wanted = _wanted(options)
    if options.sql or options.files or options.at is not None:
        corrections = _corrections(deployment, options, replay_of(deployment.meta, wanted).window)
        wanted = replace(wanted, corrections=tuple(corrections))
    return plan_revision(deployment, wanted)


def _wanted(options: argparse.Namespace) -> Wanted:
    from airflow_barrier.coordinator.revisions.plan import Wanted
    from airflow_barrier.protocol.revisions import RevisionMode

    return Wanted(
        options.topology,
        options.first,
        options.last,
        changed=tuple(options.jobs),
        tables=tuple(options.tables),
        reused=tuple(options.reused),
        recut=tuple(options.recut),
        mode=RevisionMode.FULL if options.full else RevisionMode.INCREMENTAL,
        max_replay_barriers=options.max_replay_barriers,
        accept_pause=options.accept_pause,
    )


def _corrections(
    deployment: Deployment, options: argparse.Namespace, window: Sequence[Barrier]
) -> Iterator[TableCorrection]:
    from airflow_barrier.protocol.codec import encode
    from airflow_barrier.protocol.errors import ConfigurationError, RevisionRefusedError
    from airflow_barrier.protocol.revisions import TableCorrection
    from airflow_barrier.spark.corrections import ReplaceByFile

    tables = [table for table, *_ in (*options.sql, *options.files)]
    twice = sorted({table for table in tables if tables.count(table) > 1})
    if twice or not tables:
        found = f"more of {', '.join(twice)}" if twice else "--at without --sql or --file"
        raise ConfigurationError(f"expected one correction for each table, found {found}; correct the command")
    chosen = [barrier for barrier in window if options.at in (None, barrier.barrier_id)]
    days = f"barriers {window[0].barrier_id} to {window[-1].barrier_id}"
    if not chosen:
        raise RevisionRefusedError(
            f"expected --at one of the barriers between --from and --to, which are {days}, found {options.at}; correct "
            "its number"
        )
    if options.files and len(chosen) > 1:
        raise RevisionRefusedError(
            f"expected one barrier whose rows a file replaces, found {days}; choose it with --at, and correct the "
            "others by revisions of their own"
        )
    for barrier in chosen:
        number = barrier.barrier_id
        for table, statement in options.sql:
            yield TableCorrection(number, table, encode(_by_sql(deployment, barrier, table, statement)))
        for table, uri, form in options.files:
            more = {"header": True} if form == "csv" else {}
            yield TableCorrection(number, table, encode(ReplaceByFile(table, uri, form, options=more)))


def _by_sql(deployment: Deployment, barrier: Barrier, table: str, statement: str) -> CorrectBySql:
    """Other tables are read as they stand at the barrier."""
    from airflow_barrier.reading.correcting import correct_by_sql

    pins = {
        row.table: row.snapshot_id for row in deployment.meta.barriers.progress(barrier.topology, barrier.barrier_id)
    }
    return correct_by_sql(statement, table, catalog=deployment.spark_catalog, pins=pins)


# --- the same as command lines --------------------------------------------------------------------


def run_command(options: argparse.Namespace) -> str:
    """`revision run` for what `revision plan` was asked."""
    from airflow_barrier.coordinator.revisions.telling import revision_command

    more = [] if options.at is None else ["--at", str(options.at)]
    more += [word for values in options.sql for word in ("--sql", *values)]
    more += [word for values in options.files for word in ("--file", *values)]
    if options.conn_id != DEFAULT_CONN_ID:
        more += ["--conn-id", options.conn_id]
    return revision_command(_wanted(options), *more)


def backfill_command(backfill: Backfill, number: int | str) -> str:
    """Airflow's own. Dates have their zone, since Airflow takes those without as its own."""
    words = ["--dag-id", backfill.dag_id, "--from-date", backfill.first.isoformat()]
    words += ["--to-date", backfill.last.isoformat(), "--reprocess-behavior", "completed"]
    return f"airflow backfill create {shlex.join(words)} --dag-run-conf '{{\"barrier_revision\": {number}}}'"
