"""A topology, and a database that its tables are delivered to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivering.feed import Feed, Reporting, make_feed, reporting_on
from tests.delivering.lane import Lane, lane
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy


@pytest.fixture
def feed(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Feed]:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        feed = make_feed(settings)
        yield feed
        feed.deployment.close()


@pytest.fixture
def reporting(postgresql: PostgreSQL) -> Iterator[Reporting]:
    """A database of the tests' user, who is no superuser, with two empty targets."""
    with reporting_on(postgresql) as reporting:
        yield reporting


@pytest.fixture(scope="module")
def warm() -> Iterator[Lane]:
    with lane() as opened:
        yield opened


@pytest.fixture
def proxy(postgresql: PostgreSQL, reporting: Reporting) -> Iterator[Proxy]:
    with Proxy(postgresql.port) as proxy:
        yield proxy
