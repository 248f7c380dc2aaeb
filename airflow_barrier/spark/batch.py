"""Several epochs of one job in one Spark session, one after another.

The task that leads takes each closing record as it comes, reports it, and only then pins the next epoch. A driver of
its own is told by a file beside the closing record, for which it waits: :class:`Following`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.codec import encode
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Job
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, damaged, proven, signed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds that a driver waits for its next epoch; without it in its conf it ends after the first.
BATCH_PATIENCE = "spark.airflow_barrier.batch.patience"
#: Closing takes seconds, or a busy database longer; a driver whose task has died is gone after that.
PATIENCE = 120

#: Takes what an epoch staged, and gives the next one to process; None: no more.
GoOn = Callable[[EpochSpec, ClosingRecord], "EpochSpec | None"]


@dataclass(frozen=True)
class Following:
    """The place of the spec of a driver's next epoch; None: there is none, and the driver ends."""

    spec_uri: str | None = None
    digest: str | None = None

    def dumps(self, nonce: str) -> str:
        """The file's text; ``nonce`` is that of the attempt which the driver has just closed."""
        return signed(encode(self), nonce)

    @classmethod
    def loads(cls, text: str, nonce: str, where: str) -> Following:
        """Return what the driver is told; ``where`` names attempt and file in errors. Raises UnprovenFileError."""
        data = proven(text, nonce, where)
        told = data.get("spec_uri"), data.get("digest")
        if told != (None, None) and not all(isinstance(each, str) and each for each in told):
            raise damaged(where, "a spec and its digest, or neither")  # safety: next-has-a-digest
        return cls(*told)


def following_uri(closing_uri: str) -> str:
    """The file that tells a driver, once it has closed, what to do next."""
    return f"{closing_uri}.next"


def batch_conf() -> dict[str, str]:
    """Return what a driver's conf says if it may process several epochs."""
    return {BATCH_PATIENCE: str(PATIENCE)}


def run_epochs(spark: SparkSession, first: EpochSpec, job: Job, go_on: GoOn) -> None:
    """Run ``job`` for ``first``, and for whatever ``go_on`` gives.

    Raises what :func:`run_epoch` and ``go_on`` do.
    """
    spec: EpochSpec | None = first
    while spec is not None:
        record = run_epoch(spark, spec, job)
        spec = go_on(spec, record)
