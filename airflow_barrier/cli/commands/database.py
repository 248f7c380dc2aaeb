"""`airflow-barrier database migrate` and `check`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import database_options, database_url
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Stands:
    """A database that can be used. ``message`` says it to a person, without the password."""

    schema_version: str
    message: str


def _migrate(options: argparse.Namespace) -> int:
    from airflow_barrier.metaservice.migrate import migrate

    return _say(options, migrate(database_url(options)))


def _check(options: argparse.Namespace) -> int:
    from airflow_barrier.metaservice.migrate import check

    return _say(options, check(database_url(options)))


def _say(options: argparse.Namespace, message: str) -> int:
    from airflow_barrier.metaservice.versions import EXPECTED

    answer(options, Stands(EXPECTED, message), _show)
    return DONE


def _show(found: Stands, console: Console) -> None:
    line(console, found.message)


MIGRATE = Command(
    "migrate",
    "Bring the database's schema to this version. All or nothing; again is fine.",
    (database_options,),
    _migrate,
    examples=("--conn-id barrier_prod", "--metaservice-url postgresql://barrier@db.example.com/barrier"),
)

CHECK = Command(
    "check",
    "Say whether the database answers and has this version's schema.",
    (database_options,),
    _check,
    examples=("--conn-id barrier_prod",),
)
