"""Arguments that several commands have."""

from __future__ import annotations

import argparse


def barrier_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("barrier", type=int, help="the barrier's id, as `status` and `barrier list` show it")


def one_or_more(text: str) -> int:
    """A whole number from 1 on, for ``type=``."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number


one_or_more.__name__ = "int"  # argparse's word for it in an error
