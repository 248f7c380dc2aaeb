"""`airflow-barrier init`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Project:
    folder: Path
    files: tuple[Path, ...]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to: a folder that is not there, or empty")
    parser.add_argument("--spark-port", type=int, default=15002, metavar="N", help="default: %(default)s")
    parser.add_argument("--airflow-port", type=int, default=8080, metavar="N", help="of the UI; default: %(default)s")


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.project.java import find_java
    from airflow_barrier.project.write import write_project
    from airflow_barrier.systems.spark_versions import installed_spark, is_before

    if is_before(installed_spark().number, "4.0"):
        raise ConfigurationError(
            f"expected the package pyspark of version 4.0 or newer, found {installed_spark().number}: the project "
            "works by Spark Connect, by which jobs do not reach older ones. Begin with the jobs that you have: "
            "docs/tutorials/your-own-dag.md"
        )
    files = write_project(options.folder, options.spark_port, options.airflow_port)
    try:
        find_java()
    except ConfigurationError as error:
        say(str(error))
    answer(options, Project(options.folder.absolute(), tuple(files)), _show)
    return DONE


def _show(project: Project, console: Console) -> None:
    for file in project.files:
        line(console, f"{project.folder.name}/{file.relative_to(project.folder)}")
    line(console, "")
    line(console, f"Next, in one terminal:   cd {project.folder} && . ./env.sh && ./start-spark.sh")
    line(console, f"and in another one:      cd {project.folder} && . ./env.sh && airflow standalone")
    line(console, "README.md in the folder goes on from there.")


INIT = Command(
    "init",
    "Write a small project to begin with. It has a DAG of two jobs, their tables, a Spark without docker and a README, "
    "and runs as it is in `airflow standalone`.",
    (_options,),
    _run,
    examples=("shop", "shop --airflow-port 8081"),
)
