"""Files on a disk: what any sink does."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.sinks.behaviour import Behaviour, Places
from tests.sinks.files import FILES, LocalFiles


class TestLocalFiles(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, tmp_path: Path) -> Places:
        numbers = count()
        return lambda: LocalFiles(str(tmp_path / f"place-{next(numbers)}" / "out"))
