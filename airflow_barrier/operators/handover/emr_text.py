"""Spark's parameters as the services of EMR take them: one text."""

from __future__ import annotations

from collections.abc import Mapping


def with_conf(parameters: str | None, conf: Mapping[str, str]) -> str:
    """The parameters with the conf behind them, where it wins.

    >>> with_conf("--name a", {"spark.x": "1"})
    '--name a --conf spark.x=1'
    """
    return " ".join([*([parameters] if parameters else []), *(f"--conf {key}={value}" for key, value in conf.items())])
