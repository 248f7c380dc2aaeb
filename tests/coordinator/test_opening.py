"""Opening beside others who change the topology."""

from __future__ import annotations

from typing import Any

import pytest
import tenacity

from airflow_barrier.coordinator import opening
from airflow_barrier.protocol.topology import Job
from tests.support.shop import SHOPPING, Shop


def test_each_further_look_waits_a_little(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGs that are due at the same time register in the same second."""
    cut, slept = opening.cut_sources, list[float]()

    def register_beside(*arguments: Any) -> Any:
        if len(slept) < 3:
            name = f"other{len(slept)}"
            job = Job(name, name, inlets=(SHOPPING,), outlets=(f"shop.{name}",))
            shop.deployment.tables.catalog.create_table(f"shop.{name}", shop.deployment.tables.load(SHOPPING).schema())
            shop.deployment.meta.topologies.register("shopping", name, [job], "test")
        return cut(*arguments)

    monkeypatch.setattr(opening, "cut_sources", register_beside)
    monkeypatch.setattr(tenacity.nap.time, "sleep", slept.append)
    assert shop.open(1).barrier_id == 1
    assert len(slept) == 3
    assert all(0 < seconds <= 2 for seconds in slept)
