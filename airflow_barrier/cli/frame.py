"""What a command is, whether `airflow-barrier` or `airflow barrier` runs it. Loads nothing but the standard library."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from airflow_barrier.protocol.errors import BarrierError

DONE = 0
#: Refused, or failed for good: the same call fails again until somebody has changed something.
REFUSED = 1
#: Wrong usage; argparse's own number.
USAGE = 2
#: Of `status --check` only: something is late, or failed and is tried again. Nobody has to do anything yet.
LATE = 3
#: The same call can succeed later: EX_TEMPFAIL of BSD's sysexits.h, which mailers and schedulers go by.
TRY_AGAIN = 75
_INTERRUPTED = 130  # as a shell says it of a program that was interrupted, ...
_READER_LEFT = 141  # ... and of one whose reader has closed the pipe


@dataclass(frozen=True)
class Command:
    """One command. Each of ``arguments`` adds some to a parser, ``run`` gets them parsed and returns the exit code.

    The first sentence of ``text`` stands in lists of commands. ``examples`` are arguments that make sense together.
    Every command has ``--json``; what ``run`` prints goes through :func:`airflow_barrier.cli.screen.answer`. Whatever
    is heavy is imported in ``run``.
    """

    name: str
    text: str
    arguments: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[str, ...] = ()

    @property
    def epilog(self) -> str:
        lines = "".join(f"\n  %(prog)s {example}".rstrip() for example in self.examples)
        return f"examples:{lines}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for add in self.arguments:
            add(parser)
        parser.add_argument("--json", action="store_true", help="for programs: one JSON document, and nothing else")


@dataclass(frozen=True)
class Group:
    """Commands under one word."""

    name: str
    text: str
    commands: tuple[Command | Group, ...]


class Formatter(argparse.HelpFormatter):
    """Fills paragraphs to the terminal's width, and leaves those alone that have lines set in, such as examples. What a
    person puts in stands in capitals, as it does in options.
    """

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return action.dest.upper()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            paragraph if "\n  " in paragraph else super(Formatter, self)._fill_text(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


def summary(entry: Command | Group) -> str:
    """Return the line about it in lists."""
    return entry.text.partition(".")[0]


def add_to(commands: Any, entry: Command | Group) -> None:
    """Add it to ``commands``, a parser's subparsers. A parsed command is in ``options.command``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        entry.name,
        help=summary(entry),
        description=entry.text,
        epilog=entry.epilog if isinstance(entry, Command) else None,
        formatter_class=Formatter,
    )
    if isinstance(entry, Command):
        entry.add_arguments(parser)
        parser.set_defaults(command=entry)
        return
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    for action in entry.commands:
        add_to(actions, action)


def execute(command: Command, options: argparse.Namespace) -> int:
    """Run it; what it raises on purpose becomes a line on standard error and an exit code.

    ``options.out`` is where its answer goes. To standard output itself Airflow and others write their logs.
    """
    options.out = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            code = command.run(options)
        options.out.flush()  # a reader that left is noticed here, and not at exit
    except BarrierError as error:
        say(str(error))
        return TRY_AGAIN if error.retryable else REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # or Python would try once more as it ends, and say so
        os.dup2(os.open(os.devnull, os.O_WRONLY), options.out.fileno())
        return _READER_LEFT
    return code


def say(message: str) -> None:
    """Tell the person on standard error: standard output is for what was asked."""
    print(f"airflow-barrier: {message}", file=sys.stderr)
