"""Trying again: what passes within seconds, and races for a table that others win; and publishing table by table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_barrier.protocol.errors import CatalogUnavailableError
from airflow_barrier.tables._catalog import Edit
from airflow_barrier.tables._metadata import Document

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

_Found = TypeVar("_Found")

TRIES = 4
#: How often a commit is tried that others are faster with, where nothing can be locked for long.
RACES = 25


class OvertakenError(CatalogUnavailableError):
    """Another commit was faster."""


def patiently() -> Retrying:
    """Lost connections and busy databases pass: a few tries within seconds, then the error itself."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    return Retrying(
        retry=retry_if_exception_type(CatalogUnavailableError),
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(multiplier=0.2, max=2),
        reraise=True,
    )


def tirelessly(commit: Callable[[], _Found]) -> _Found:
    """Lost races are tried again for long, outages for seconds."""
    from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

    def enough(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        return state.attempt_number >= (RACES if isinstance(error, OvertakenError) else TRIES)

    tries = Retrying(
        retry=retry_if_exception_type(CatalogUnavailableError),
        stop=enough,
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    return tries(commit)


def roll_forward(
    edits: Mapping[str, Edit],
    look: Callable[[Iterable[str]], Mapping[str, tuple[str, Document]]],
    commit: Callable[[str, Edit], str],
) -> dict[str, str]:
    """Commit to one table after the other. Returns table -> location of the document that now counts.

    ``look``: table -> where its document lies, and the document. ``commit`` does one table.

    Tables are committed in the order of their names. If two publishers work on the same barrier, the slower one finds
    each table published already.
    """
    if len(edits) > 1:
        for table, (location, document) in look(edits).items():
            edits[table](document, location)  # safety: all-are-looked-at-before-the-first
    return {table: tirelessly(partial(commit, table, edits[table])) for table in sorted(edits)}
