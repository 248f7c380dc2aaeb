"""The ways in which MetaService and catalog are deployed, for tests that run on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_barrier.coordinator.settings import Settings
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password

#: One database for both, whose publish and COMMIT are one transaction, ...
SHARED = ("sqlite", "postgresql")
#: ... or one for each.
APART = ("sqlite apart", "postgresql apart")


@contextmanager
def settings_on(kind: str, folder: Path, postgresql: PostgreSQL) -> Iterator[Settings]:
    """New databases of one of these kinds, for a warehouse in ``folder``; given to :func:`make_shop`, for instance.

    Those on PostgreSQL are dropped afterwards. The passwords do not stand in the URLs, as in an Airflow connection.
    """
    if is_in_files(kind):
        yield settings_in_files(kind, folder)
        return
    with ExitStack() as databases:
        meta = databases.enter_context(postgresql.database())
        apart = {"postgresql": False, "postgresql apart": True}[kind]
        catalog = databases.enter_context(postgresql.database(migrated=False)) if apart else meta
        yield Settings(
            *(without_password(url) for url in (meta, catalog)),
            str(folder / "warehouse"),
            metaservice_password=PASSWORD,
            catalog_password=PASSWORD,
        )


def is_in_files(kind: str) -> bool:
    """Return whether a kind of deployment, or the database of this URL, lies in files."""
    return kind.startswith("sqlite")


def settings_in_files(kind: str, folder: Path) -> Settings:
    if kind == "sqlite":
        return Settings.embedded(str(folder))
    return Settings(f"sqlite:///{folder}/meta.db", f"sqlite:///{folder}/catalog.db", str(folder / "warehouse"))
