"""The shopping topology over several DAGs: by the barrier alone, and by assets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.protocol.errors import UnknownTopologyError
from demo.cast import create_tables
from demo.oracle import compare, recompute, rows_of
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.spark import IN_AIRFLOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.coordinator.deployment import Deployment

LANDING = Path(__file__).parents[1] / "data" / "landing"
TEAMS = ("catalogue", "amounts", "prices", "categories")
ASSETS = ("amounts", "prices", "categories", "averages")
#: Fewer are over before the last member, which joins one barrier after what it reads, has taken part.
DAYS_OF_TEAMS = 4
#: One on which the readers of roots join, one on which their reader joins, and one that all of them compute.
DAYS_OF_ASSETS = 3


def differences(deployment: Deployment) -> list[str]:
    """Of what every reader sees from what landed up to the last barrier, computed anew."""
    committed = deployment.meta.barriers.newest_decided("shopping")
    assert committed is not None
    files: dict[str, set[Path]] = {"shopping": set(), "products": set()}
    for number in range(1, committed.barrier_id + 1):
        for source, cut in deployment.meta.cuts.of("shopping", number).items():
            files[source] |= {LANDING / source / item for item in cut.items}
    expected = recompute(files["shopping"], files["products"])
    found = {table: deployment.tables.load(f"shop.{table}").scan().to_arrow() for table in expected}
    return [str(d) for table, rows in expected.items() if (d := compare(table, rows, rows_of(found[table])))]


def members(deployment: Deployment) -> set[str]:
    """The jobs of the topology."""
    try:
        return {job.name for job in deployment.meta.topologies.get("shopping").jobs}
    except UnknownTopologyError:
        return set()


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_teams_meet_through_the_barrier_and_then_through_assets(
    airflow: AirflowUnderTest, deployment: Deployment, spark: SparkSession
) -> None:
    create_tables(spark, IN_AIRFLOW)
    # members are there first, and wait for the tables that they read; the catalogue reads none
    for team in TEAMS:
        airflow.unpause(f"shopping_{team}")
    airflow.until(lambda: members(deployment) == {"products"}, "the catalogue to have joined")
    amounts = airflow.until(lambda: airflow.run_ids("shopping_amounts"), "runs of the amounts")
    airflow.wait_for_task("shopping_amounts", amounts[0], "shopping.amount", "deferred")

    airflow.unpause("shopping_tills")
    airflow.wait_for_runs("shopping_tills", DAYS_OF_TEAMS)
    assert members(deployment) == {"load", "products", "amount", "price", "avg_price", "category_spend"}
    assert differences(deployment) == []
    assert len({job.owner for job in deployment.meta.topologies.get("shopping").jobs}) == 5
    before = deployment.meta.barriers.newest_decided("shopping")
    assert before is not None

    # the same jobs move to other DAGs, readers first, and go on where they left off: by assets, without a wait
    for team in ("prices", "categories", "amounts", "catalogue", "tills"):
        airflow.pause(f"shopping_{team}")
        left = leave(deployment, "shopping", f"shopping_{team}", None, reason="by assets from now on", actor="test")
        assert left.open == ()
    airflow.api.post("/pools", json={"name": "in_turn", "slots": 1}).raise_for_status()
    for consumer in ASSETS:
        airflow.unpause(f"shopping_assets_{consumer}")
    airflow.unpause("shopping_by_assets")
    # a consumer joins when its inlets are announced for the first time, and is a member from the next barrier on:
    # the barriers come one by one, else it depends on who is quicker whether the last one has all tables
    roots = {"load", "products"}
    for day, expected in (
        ("2017-01-06", {*roots, "amount", "price", "category_spend"}),
        ("2017-01-07", {*roots, "amount", "price", "category_spend", "avg_price"}),
    ):
        (airflow.folder / f"spread.{day}").touch()
        airflow.until(lambda jobs=expected: members(deployment) == jobs, f"{sorted(expected)} to have joined")
    (airflow.folder / "spread.2017-01-08").touch()
    airflow.wait_for_runs("shopping_by_assets", DAYS_OF_TEAMS + DAYS_OF_ASSETS)
    last = deployment.meta.barriers.newest_decided("shopping")
    assert last is not None
    assert last.barrier_id == before.barrier_id + DAYS_OF_ASSETS
    assert {p.table for p in deployment.meta.barriers.progress("shopping", last.barrier_id)} == {
        p.table for p in deployment.meta.barriers.progress("shopping", before.barrier_id)
    }
    assert differences(deployment) == []
    # each run of a consumer was one barrier's, and none was deferred for its inlets
    keys = [run["partition_key"] for run in airflow.runs("shopping_assets_averages")]
    assert f"b{last.barrier_id}.r0" in keys
    assert len(keys) == len(set(keys))
    for dag in ("by_assets", *(f"assets_{consumer}" for consumer in ASSETS)):
        airflow.pause(f"shopping_{dag}")
