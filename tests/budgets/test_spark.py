"""What the six epochs of one barrier ask a Spark Connect server: requests by kind, and jobs that Spark ran.

The counts do not depend on the host. A landing that exceeds one of these numbers fails; one that lowers it writes the
lower number here. The topology is that of `dags/shopping.py`, over the committed sample, at its third barrier: lines
are corrected, one product is new, and the tables of version 2 and 3 have deletes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from demo.cast import barrier_time
from demo.steps import run_barrier
from tests.demo.conftest import SAMPLE, shopping_in
from tests.support.reporting import report
from tests.support.spark import COUNTED, SparkServer
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Requests that the client waits for (those that only free something it does not), and Spark's jobs.
BUDGET = {"ExecutePlan": 27, "AnalyzePlan": 4, "Config": 25, "jobs": 20}


@pytest.mark.timeout(600)
def test_the_epochs_of_a_barrier_ask_spark_no_more_than_their_budget(
    spark_server: SparkServer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shopping_in(COUNTED, SAMPLE, spark_server, spark) as shopping:

        def barrier(day: int) -> int:
            timestamp = barrier_time(day)
            at = run_barrier(shopping.deployment, spark_server.url, shopping.fragment, timestamp, shopping.jobs)
            return at.barrier_id

        barrier(1)
        barrier(3)
        with requests(monkeypatch) as found:
            number = barrier(4)
        branches = {attempt.branch for attempt in shopping.deployment.meta.attempts.of("shopping", number)}
    found["jobs"] = jobs_of(spark_server.ui, branches)
    for what in BUDGET:
        report(f"budget, Spark, {what}: {found[what]}")
    assert {what: found[what] for what, most in BUDGET.items() if found[what] > most} == {}


@contextmanager
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts what sessions ask that are made meanwhile, by the method's name."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    found: Counter[str] = Counter()

    class Counting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
            found[details.method.rpartition("/")[2]] += 1
            return go_on(details, request)

        intercept_unary_stream = intercept_unary_unary

    plain = DefaultChannelBuilder.toChannel
    with monkeypatch.context() as patched:
        patched.setattr(
            DefaultChannelBuilder, "toChannel", lambda builder: grpc.intercept_channel(plain(builder), Counting())
        )
        yield found


def jobs_of(ui: str, branches: set[str]) -> int:
    """Return how many jobs Spark has run for these attempts, by its own pages, which are some moments late."""
    api = f"{ui}/api/v1/applications"
    (application,) = httpx.get(api, timeout=patience()).raise_for_status().json()
    counts = [-1]
    deadline = time.monotonic() + patience()
    while len(counts) < 3 or len(set(counts[-3:])) > 1:
        assert time.monotonic() < deadline, f"expected Spark's pages to settle, found these numbers of jobs: {counts}"
        time.sleep(0.3)
        jobs = httpx.get(f"{api}/{application['id']}/jobs", timeout=patience()).raise_for_status().json()
        counts.append(sum(any(one in tag for tag in job.get("jobTags", ()) for one in branches) for job in jobs))
    return counts[-1]
