"""Asking a person before something is given up."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_barrier.cli.frame import REFUSED, USAGE, say


def yes_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")


def refused(options: argparse.Namespace, lines: Sequence[object], question: str) -> int | None:
    """None if the person agrees, or has said ``--yes``; else the exit code. ``lines``: what the question is about."""
    if options.yes:
        return None
    if not sys.stdin.isatty():
        say("expected --yes, found no terminal to ask on; nothing was changed")
        return USAGE
    for line in lines:
        print(line, file=sys.stderr)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return None
    say("nothing was changed")
    return REFUSED
