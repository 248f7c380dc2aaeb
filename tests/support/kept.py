"""A deployment with a history, computed once and put back for each test that begins with it.

Tables name their files by absolute paths, so all tests of a process get it in the same folder. That is for what lies in
files altogether: SQLite's databases and a warehouse on this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest


class Kept:
    """A folder, and copies of what was in it, each by its name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / "folder"
        self._copies: dict[Hashable, Path] = {}

    def empty(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()

    def put_back(self, name: Hashable, make: Callable[[], object]) -> None:
        """Have what ``make`` leaves in the empty folder there again. Nobody may be connected to what is in it."""
        self.empty()
        copy = self._copies.get(name)
        if copy is not None:
            shutil.copytree(copy, self.folder, dirs_exist_ok=True)
            return
        make()
        self._copies[name] = Path(shutil.copytree(self.folder, self._root / f"copy {len(self._copies)}"))


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))
