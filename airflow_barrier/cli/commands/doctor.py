"""`airflow-barrier doctor`: what a new user gets wrong, a line each."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import TOKEN_VARIABLE, connection_option
from airflow_barrier.cli.frame import DONE, REFUSED, Command
from airflow_barrier.cli.screen import answer, line, make_console

if TYPE_CHECKING:
    from airflow_barrier.cli.doctor.check import Finding, Verdict

_COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red", "skipped": "cyan"}


@dataclass(frozen=True)
class Examined:
    """The findings, in the order of the checks."""

    healthy: bool
    findings: tuple[Finding, ...]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dag_files", nargs="*", metavar="DAG_FILE_OR_FOLDER", help="DAGs to look at (default: Airflow's DAGs folder)"
    )
    connection_option(parser)
    parser.add_argument(
        "--spark-conn-id",
        action="append",
        default=[],
        metavar="ID",
        help="Spark's connection, again for another one (default: those of the DAGs' jobs, else spark_connect_default)",
    )
    parser.add_argument(
        "--reader-uri",
        metavar="URI",
        help="the address that engines enter as a catalog, as `serve --iceberg` prints it; a token for it is taken "
        f"from the environment variable {TOKEN_VARIABLE}",
    )


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.cli.doctor import CHECKS
    from airflow_barrier.cli.doctor.check import Case, Verdict, examine

    console = make_console(options.out)
    findings = []
    case = Case(options.conn_id, options.spark_conn_id, options.dag_files, options.reader_uri)
    for finding in examine(case, CHECKS):
        findings.append(finding)
        if not options.json:
            verdict = finding.verdict.value
            line(console, f"{verdict:<7} {finding.about}: {finding.text}", _COLOURS[verdict])
            options.out.flush()
    counts = Counter(finding.verdict for finding in findings)
    healthy = not counts[Verdict.FAIL]
    answer(options, Examined(healthy, tuple(findings)), lambda _, to: line(to, _summary(counts)))
    return DONE if healthy else REFUSED


def _summary(counts: Counter[Verdict]) -> str:
    return ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items())


DOCTOR = Command(
    "doctor",
    "Look at all that barriers need, and say what is wrong and what to do. Exit code 1 if something is. It looks at "
    "the packages, Airflow's components, the connection, MetaService, catalog, the address of readers' catalogs, DAGs "
    "with their tables, sources and sinks, and Spark: from this host, so run it on a worker, too. It changes nothing, "
    "but for two empty tables that it makes and drops in a REST catalog, as the first barrier does.",
    (_options,),
    _run,
    examples=("", "dags/shopping.py", "--conn-id barrier_prod --spark-conn-id spark_prod --json"),
)
