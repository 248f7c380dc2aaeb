"""A newer version of the package, with one more schema version, beside the one under test: its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

import airflow_barrier
from airflow_barrier.metaservice.versions import EXPECTED, VERSIONS
from tests.support.postgresql import without_password
from tests.support.waiting import patience

NEXT = f"{int(EXPECTED) + 1:04}"

#: It takes away what the version under test writes to: whoever missed it would fail in the middle, or do harm.
_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{EXPECTED}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("barrier_note", sa.Column("note", sa.Text))
    op.execute("ALTER TABLE barrier_audit RENAME COLUMN actor TO who")
'''


@dataclass(frozen=True)
class Newer:
    folder: Path

    @classmethod
    def made_in(cls, folder: Path, lock_timeout: float = 60) -> Newer:
        package = folder / "airflow_barrier"
        shutil.copytree(Path(airflow_barrier.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        metaservice = package / "metaservice"
        _replace(
            metaservice / "versions.py", f"VERSIONS = {_tuple(VERSIONS)}", f"VERSIONS = {_tuple((*VERSIONS, NEXT))}"
        )
        _replace(metaservice.parent / "systems" / "sql.py", "LOCK_TIMEOUT = 30", f"LOCK_TIMEOUT = {lock_timeout}")
        (metaservice / "migrations" / "versions" / f"v{NEXT}_newer.py").write_text(_MIGRATION)
        return cls(folder)

    def start(self, *arguments: str, url: str) -> subprocess.Popen[str]:
        """`airflow-barrier` of the newer version."""
        parts = make_url(url)
        command = [
            sys.executable,
            "-c",
            "import sys; from airflow_barrier.cli.main import main; sys.exit(main())",
            *arguments,
            "--metaservice-url",
            without_password(url),
        ]
        paths = os.pathsep.join((str(self.folder), *sys.path))
        environment = {**os.environ, "PYTHONPATH": paths}
        if parts.password is not None:
            environment["AIRFLOW_BARRIER_PASSWORD"] = str(parts.password)
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder
        )

    def run(self, *arguments: str, url: str) -> tuple[int, str]:
        """Exit code and all that it said."""
        return ended(self.start(*arguments, url=url))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=patience())
    return process.returncode, out + err


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name}: {old}"
    file.write_text(text.replace(old, new))


def _tuple(versions: tuple[str, ...]) -> str:
    names = ", ".join(f'"{version}"' for version in versions)
    return f"({names},)" if len(versions) == 1 else f"({names})"
