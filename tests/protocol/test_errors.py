"""Errors cross process borders, and say whether trying again helps."""

from __future__ import annotations

import inspect
import pickle

import pytest

from airflow_barrier.protocol import errors

ALL = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, errors.BarrierError)]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_it_survives_pickling_with_its_message(error: type[errors.BarrierError]) -> None:
    there = pickle.loads(pickle.dumps(error("expected a, found b; do c")))
    assert type(there) is error
    assert str(there) == "expected a, found b; do c"


@pytest.mark.parametrize("error", [e for e in ALL if e is not errors.BarrierError], ids=lambda error: error.__name__)
def test_it_is_either_retryable_or_terminal_and_says_what_it_means(error: type[errors.BarrierError]) -> None:
    assert issubclass(error, errors.Retryable) != issubclass(error, errors.Terminal)
    assert error.retryable is issubclass(error, errors.Retryable)
    assert error.__doc__
