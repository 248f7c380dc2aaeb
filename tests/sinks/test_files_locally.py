"""Files on a disk: what any sink does."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.sinks.behaviour import Behaviour, Places
from tests.sinks.files import FILES, LocalFiles


@pytest.mark.kills("after-what-was-delivered", method="test_what_comes_out_of_order_is_refused")
@pytest.mark.kills("ledger-is-ours", method="test_what_a_person_lets_it_adopt")
@pytest.mark.kills("newest-deliverer", method="test_one_who_was_overtaken_learns_so")
class TestLocalFiles(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, tmp_path: Path) -> Places:
        numbers = count()
        return lambda: LocalFiles(str(tmp_path / f"place-{next(numbers)}" / "out"))
