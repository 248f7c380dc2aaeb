"""A deployment whose tables exist already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from tests.adopting.existing import Existing


@pytest.fixture
def existing(tmp_path: Path) -> Iterator[Existing]:
    (tmp_path / "warehouse").mkdir()
    deployment = Deployment.connect(Settings.embedded(str(tmp_path / "warehouse")))
    yield Existing.made(deployment, tmp_path / "landing")
    deployment.close()
