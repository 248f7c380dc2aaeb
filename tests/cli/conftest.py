"""A deployment to look at, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.deployed import Deployed, deploy
from tests.support.deployments import SHARED, settings_on
from tests.support.postgresql import PostgreSQL


@pytest.fixture(scope="module", params=SHARED)
def deployed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL
) -> Iterator[Deployed]:
    """For tests that only look."""
    with settings_on(request.param, tmp_path_factory.mktemp("cli"), postgresql) as settings:
        found = deploy(settings)
        with pytest.MonkeyPatch.context() as patched:
            for name, value in found.environment.items():
                patched.setenv(name, value)
            yield found
        found.shop.deployment.close()
