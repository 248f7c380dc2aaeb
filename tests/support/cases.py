"""Many cases in one test: all of them are tried, and one failure tells of each that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


@contextmanager
def cases() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """Yields what each case goes in, given what to call it."""
    failed: list[str] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{name!a}: {type(error).__name__}: {error}")

    yield case
    assert not failed, f"{len(failed)} cases failed:\n" + "\n".join(failed)
