"""How the processes of a run (`pytest -n 3`) share its tests.

Tests that ask for Airflow go to one process, which mostly waits for Airflow's scheduler. Tests that ask for the Spark
server go to another one, since some have tables of the same names. Of all other files each goes to the process that is
free. So two processes compute and one waits, which is what two cores can do. What takes longest begins first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: A fixture -> the group of the tests that ask for it, also by way of other fixtures. The first one counts.
_GROUPS = {"airflow": "airflow", "spark_server": "spark", "cluster": "spark"}
#: Groups and files that take minutes, the longest first.
_LONGEST = (
    "airflow",
    "spark",
    "tests/crash/test_crashes.py",
    "tests/mutation/test_mutants.py",
    "tests/races/test_interleavings.py",
    "tests/model/test_model.py",
)


class _Groups(LoadScopeScheduling):
    """xdist's distribution by scope; scopes are the groups and files that the processes have found."""

    def schedule(self) -> None:
        if self.collection is None:
            self._found = json.loads(_found_groups(self.config, of_worker=False).read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return str(self._found[nodeid])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return _Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of several: sort by group, and tell the one that distributes. All of them find the same."""
    if not hasattr(config, "workerinput"):
        return
    groups = {item.nodeid: _group_of(item) for item in items}
    items.sort(key=lambda item: _place_of(groups[item.nodeid]))
    target = _found_groups(config, of_worker=True)
    part = target.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(groups))
    part.replace(target)


def _group_of(item: pytest.Item) -> str:
    asked = getattr(item, "fixturenames", ())
    return next((group for fixture, group in _GROUPS.items() if fixture in asked), item.nodeid.partition("::")[0])


def _place_of(group: str) -> int:
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST)


def _found_groups(config: pytest.Config, *, of_worker: bool) -> Path:
    """A file in the folder of the run; each process has a folder of its own in there."""
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return (folder.parent if of_worker else folder) / "groups.json"
