"""`airflow-barrier`, the console script."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from airflow_barrier.cli.commands import COMMANDS
from airflow_barrier.cli.connection import HELP
from airflow_barrier.cli.frame import USAGE, Formatter, add_to, execute
from airflow_barrier.provider import DISTRIBUTION

DESCRIPTION = "Timestamp barriers: what is committed, what is open, and what waits for whom."
EPILOG = f"""\
{HELP}

With --json standard output is one JSON document; messages go to standard error.

exit codes:
  0   done
  1   refused or failed: the reason is on standard error
  2   wrong usage
  3   late, or to be tried again: of `status --check` only, which has 1 for blocked and failing
  75  something does not answer just now, is busy or not so far: the same call can succeed later"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code.

    >>> main(["barrier", "abort", "shopping", "3", "--reason", "bad file", "--yes"])  # doctest: +SKIP
    0
    """
    # what Airflow says as it reads DAG files, and pyiceberg of each table, is no answer of ours
    levels = (
        "airflow.dag_processing=WARNING airflow.models.dagbag=WARNING alembic.runtime.plugins=WARNING "
        "py.warnings=ERROR pyiceberg.io=WARNING"
    )
    os.environ.setdefault("AIRFLOW__LOGGING__NAMESPACE_LEVELS", levels)
    root = parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        root.exit(USAGE, root.format_help())
    options = root.parse_args(arguments)
    return execute(options.command, options)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="airflow-barrier",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=Formatter,
    )
    root.add_argument("--version", action="version", version=f"%(prog)s {version(DISTRIBUTION)}")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for entry in COMMANDS:
        add_to(commands, entry)
    return root
