"""What an abort leaves behind: nothing, if it can reach the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.iceberg_table import IcebergTable
from tests.cli.deployed import Deployed, run
from tests.support.shop import JOBS, SHOPPING, make_shop

OUTSIDE = "crm.customers"
LOAD = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(IcebergTable(OUTSIDE).declare(),))
#: A day after the outside table was written, by the clock of today.
LATER = 36_500
FRAGMENT = Fragment("shopping", "shopping_dag", (LOAD, *JOBS[1:]))


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """A shop that reads a table outside of it."""
    settings = Settings.embedded(str(tmp_path / "warehouse"))
    (tmp_path / "warehouse").mkdir()
    found = Deployed(make_shop(settings), settings)
    tables = found.shop.deployment.tables
    tables.catalog.create_namespace("crm")
    rows = pa.table({"n": [1]})
    tables.catalog.create_table(OUTSIDE, rows.schema).append(rows)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    yield found
    found.shop.deployment.close()


def refs(deployed: Deployed) -> set[str]:
    return set(deployed.shop.deployment.tables.load(OUTSIDE).metadata.refs)


def test_what_the_cut_held_is_let_go_of(deployed: Deployed) -> None:
    barrier = deployed.shop.open(LATER, FRAGMENT)
    assert refs(deployed) > {"main"}
    assert run("barrier", "abort", "shopping", "1", "--reason", "too early", "--yes").out == f"aborted {barrier}\n"
    assert refs(deployed) == {"main"}
    for day in (LATER + 1, LATER + 2):
        deployed.shop.open(day, FRAGMENT)
    assert run("barrier", "abort", "shopping", "2", "--reason", "too early", "--yes", "--json").json == {
        "changed": True,
        "summary": "Aborted barriers 2 and 3; their epochs join the next barrier's.",
        "states": {"barrier 2": "ABORTED", "barrier 3": "ABORTED"},
    }


def test_a_barrier_is_aborted_while_the_tables_do_not_answer(deployed: Deployed, tmp_path: Path) -> None:
    deployed.shop.open(LATER, FRAGMENT)
    (tmp_path / "warehouse" / "crm").rename(tmp_path / "away")
    said = run("barrier", "abort", "shopping", "1", "--reason", "too early", "--yes")
    assert said.code == 0
    assert "tags that hold its input in tables outside the topology are left: " in said.err
    assert deployed.meta.barriers.get("shopping", 1).state is BarrierState.ABORTED
