"""The shop under attack, made once in a folder in memory."""

from __future__ import annotations

import pytest

from tests.foreign.attacked import Template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("foreign"))
