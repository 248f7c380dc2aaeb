"""What an adapter does, and what it is given."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_TOKENS = uuid.UUID("b6d8b7c4-52d2-5f6e-9a37-4f0f7c1f2d51")


@dataclass(frozen=True)
class Handing:
    """The things that the driver of one attempt has to be told: ``conf``, the path of the guard's jar on this machine,
    and the attempt's branch, of which there is one in the world."""

    conf: Mapping[str, str]
    guard: str
    branch: str

    @property
    def token(self) -> str:
        """A token for services that run the same request once: equal only within one attempt."""
        return str(uuid.uuid5(_TOKENS, self.conf.get("spark.airflow_barrier.spec.digest", self.branch)))


class Adapter(Protocol):
    """A module whose functions hand an attempt to the operators of one class.

    That of an operator of your own is registered by an entry point of your distribution: in its `pyproject.toml`

        [project.entry-points."airflow_barrier.adapters"]
        "our_airflow.operators.NightlyOperator" = "our_airflow.nightly_adapter"
    """

    def refusal(self, operator: Any) -> str | None:
        """Return what keeps this operator from being a job, and what to do about it; None if nothing does.

        Asked while the DAG is parsed, when templated fields are still templates, and again before each attempt.
        """
        ...

    def spark_version(self, operator: Any) -> str | None:
        """The Spark that the job will run on, if that can be known now: ``4.1.3``."""
        ...

    def hand_over(self, operator: Any, handing: Handing) -> None:
        """Make the operator submit its work with the conf. Its templated fields are rendered; nobody uses it again."""
        ...
