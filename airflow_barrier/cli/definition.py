"""`airflow barrier …`: the same commands in Airflow's own command line, found by the key `cli` of provider info."""

from __future__ import annotations

import argparse
import sys

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_barrier.cli.commands import COMMANDS
from airflow_barrier.cli.frame import Command, Formatter, Group, execute, summary
from airflow_barrier.cli.main import DESCRIPTION, EPILOG


def get_barrier_cli_commands() -> list[CLICommand]:
    """Return what Airflow adds to its commands, in each of its processes that parses a command line."""
    return [
        GroupCommand(
            name="barrier",
            help="Look after timestamp barriers",
            subcommands=[_command(entry) for entry in COMMANDS],
            description=DESCRIPTION,
            epilog=EPILOG,
        )
    ]


class _Arguments(Arg):
    """All arguments of a command at once: one by one, as Airflow adds them, they could not exclude each other."""

    def __init__(self, command: Command) -> None:
        super().__init__(flags=(command.name,))  # type: ignore[no-untyped-call]
        self._command = command

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.formatter_class = Formatter  # Airflow's fills no paragraphs
        self._command.add_arguments(parser)


def _command(entry: Command | Group) -> CLICommand:
    if isinstance(entry, Group):
        return GroupCommand(entry.name, summary(entry), [_command(each) for each in entry.commands], entry.text)

    def run(options: argparse.Namespace) -> None:
        from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

        redirect_stdout_log_handlers_to_stderr()
        sys.exit(execute(entry, options))  # Airflow does not look at what a command returns

    return ActionCommand(entry.name, summary(entry), run, [_Arguments(entry)], entry.text, entry.epilog)
