"""A shop that can be put back to how it was, thousands of times, while its processes stay connected."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from tests.support.shop import Shop, make_shop

#: Nothing here has to survive a loss of power, and waiting for disks would take most of the time.
_MEMORY = Path("/dev/shm")


class Worlds:
    """``shared``: MetaService and catalog in one SQLite file, or in two."""

    def __init__(self, folder: Path, *, shared: bool, tag_policy: str) -> None:
        self.shared = shared
        self._files = folder / "warehouse" / "_barrier"
        self._kept_files = folder / "kept"
        self._databases = sorted({folder / "barrier.db", folder / ("barrier.db" if shared else "meta.db")})
        self._kept: dict[Path, sqlite3.Connection] = {}
        self.settings = Settings(
            metaservice_url=f"sqlite:///{self._databases[-1]}",
            catalog_uri=f"sqlite:///{folder}/barrier.db",
            warehouse=str(folder / "warehouse"),
            tag_policy=tag_policy,
        )
        self.shops: list[Shop] = []

    def keep(self, prepare: Callable[[Shop], None], processes: int) -> None:
        """Let something happen in a new shop, keep that, and connect ``processes`` to it, each as if it were alone."""
        shop = make_shop(self.settings)
        prepare(shop)
        self.shops = [shop, *(Shop(Deployment.connect(self.settings)) for _ in range(processes - 1))]
        for each in self.shops:
            each.deployment.meta.check()
            each.deployment.tables.check()
        shutil.copytree(self._files, self._kept_files)
        for path in self._databases:
            self._kept[path] = sqlite3.connect(":memory:", check_same_thread=False)
            with closing(sqlite3.connect(path)) as now:
                now.backup(self._kept[path])

    def restore(self) -> None:
        """All is as it was kept. (Metadata documents that were written since stay: nothing points to them any more.)"""
        shutil.rmtree(self._files)
        shutil.copytree(self._kept_files, self._files)
        for path, kept in self._kept.items():
            with closing(sqlite3.connect(path, timeout=30)) as now:
                kept.backup(now)

    def close(self) -> None:
        for shop in self.shops:
            shop.deployment.close()
        for kept in self._kept.values():
            kept.close()


@contextmanager
def worlds(*, shared: bool, tag_policy: str = "every=1") -> Iterator[Worlds]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        made = Worlds(Path(folder), shared=shared, tag_policy=tag_policy)
        yield made
        made.close()
