"""A shop whose MetaService can be lost or restored, on each kind of deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.metaservice.auditing import check_audit
from tests.recovery.backups import Backups
from tests.recovery.landing import LandedShop, landed_shop
from tests.support.deployments import is_in_files, settings_on
from tests.support.kept import Kept
from tests.support.postgresql import PostgreSQL


@pytest.fixture(params=["sqlite", "sqlite apart", "postgresql"])
def settings(request: pytest.FixtureRequest, postgresql: PostgreSQL, kept: Kept) -> Iterator[Settings]:
    """Where they are not apart, the catalog lies in the MetaService's database, and is lost and restored with it."""
    with settings_on(request.param, kept.folder, postgresql) as settings:
        yield settings


@pytest.fixture
def backups(settings: Settings, tmp_path: Path, postgresql: PostgreSQL) -> Backups:
    return Backups(settings, tmp_path, postgresql)


@pytest.fixture
def landed(settings: Settings, backups: Backups, kept: Kept) -> Iterator[LandedShop]:
    kept.empty()
    landed = landed_shop(settings, kept.folder)
    landed.kept = kept if is_in_files(settings.metaservice_url) else None
    yield landed
    landed.close()
    check_audit(backups.url)
