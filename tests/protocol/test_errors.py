"""Errors cross process borders, and say whether trying again helps."""

from __future__ import annotations

import inspect
import pickle

from airflow_barrier.protocol import errors
from tests.support.cases import cases

ALL = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, errors.BarrierError)]


def test_they_survive_pickling_with_their_messages() -> None:
    with cases() as case:
        for error in ALL:
            with case(error.__name__):
                there = pickle.loads(pickle.dumps(error("expected a, found b; do c")))
                assert type(there) is error
                assert str(there) == "expected a, found b; do c"


def test_each_is_either_retryable_or_terminal_and_says_what_it_means() -> None:
    with cases() as case:
        for error in set(ALL) - {errors.BarrierError}:
            with case(error.__name__):
                assert issubclass(error, errors.Retryable) != issubclass(error, errors.Terminal)
                assert error.retryable is issubclass(error, errors.Retryable)
                assert error.__doc__
