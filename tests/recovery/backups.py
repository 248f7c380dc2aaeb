"""Backing a MetaService up, losing it and putting the backup back: with the tools that docs/recovery.md names."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

from airflow_barrier.coordinator.deployment import Deployment, with_password
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.migrate import migrate
from demo.local_postgresql import binary
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import patience


@dataclass
class Backups:
    """Of the database that ``settings`` name, in ``folder``. Nobody may be connected to what is lost or restored."""

    settings: Settings
    folder: Path
    postgresql: PostgreSQL

    @property
    def url(self) -> str:
        return with_password(self.settings.metaservice_url, self.settings.metaservice_password)

    def back_up(self) -> None:
        if self._sqlite is not None:
            _copy(self._sqlite, self.folder / "backup.db")
        else:
            self._run("pg_dump", "--format=custom", f"--file={self.folder / 'barrier.dump'}")

    def put_back(self) -> None:
        if self._sqlite is not None:
            _copy(self.folder / "backup.db", self._sqlite)
        else:
            self._run("pg_restore", "--clean", "--if-exists", str(self.folder / "barrier.dump"))

    def lose(self) -> None:
        """What is left is an empty database, migrated as an operator does."""
        if self._sqlite is not None:
            for path in self._sqlite.parent.glob(f"{self._sqlite.name}*"):
                path.unlink()
        else:
            name = str(make_url(self.url).database)
            self.postgresql.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", database=name)
            self.postgresql.run("GRANT ALL ON SCHEMA public TO barrier", database=name)
            migrate(self.url)

    @property
    def _sqlite(self) -> Path | None:
        url = make_url(self.url)
        return Path(url.database or "") if url.get_backend_name() == "sqlite" else None

    def _run(self, program: str, *arguments: str) -> None:
        url = make_url(self.url)
        where = [f"--host={url.host}", f"--port={url.port}", f"--username={url.username}", f"--dbname={url.database}"]
        environment = {**os.environ, "PGPASSWORD": str(url.password)}
        command = [binary(program), *where, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience())
        assert done.returncode == 0, f"{program} failed: {done.stderr}"


def put_back_outside(deployment: Deployment, locations: Mapping[str, str]) -> None:
    """What is outside the topology its owner leads back to where it was, if the catalog was lost, too."""
    catalog = deployment.tables.catalog
    for table, location in locations.items() if deployment.shares_database else ():
        namespace, _, name = table.partition(".")
        catalog.create_namespace_if_not_exists(namespace)
        if (namespace, name) in catalog.list_tables(namespace):
            catalog.drop_table(table)
        catalog.register_table(table, location)


def _copy(source: Path, target: Path) -> None:
    """SQLite's online backup, as its shell's .backup does it."""
    with closing(sqlite3.connect(source)) as of, closing(sqlite3.connect(target)) as into:
        of.backup(into)
