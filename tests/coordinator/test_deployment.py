"""What a deployment says before anything is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ConfigurationError


def test_a_missing_pyiceberg_is_said_at_once_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_barrier.coordinator.deployment.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pyiceberg .*found none; .*airflow-provider-barrier\[iceberg\]"):
        Deployment.connect(Settings.embedded(str(tmp_path)))
