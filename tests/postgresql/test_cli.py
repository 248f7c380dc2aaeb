"""`airflow-barrier database` on PostgreSQL, as its operator uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from airflow_barrier.cli.main import main
from airflow_barrier.metaservice.versions import EXPECTED
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password


@pytest.fixture
def url(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of an empty database, as it is given on the command line; the password is in the environment."""
    monkeypatch.setenv("AIRFLOW_BARRIER_PASSWORD", PASSWORD)
    with postgresql.database(migrated=False) as url:
        yield without_password(url)


def test_an_operator_migrates_and_checks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["database", "check", "--metaservice-url", url]) == 75
    assert f"expected schema version {EXPECTED}, found none" in capsys.readouterr().err
    for command in ("migrate", "migrate", "check"):
        assert main(["database", command, "--metaservice-url", url]) == 0
        said = capsys.readouterr().out
        assert f"{make_url(url).database} has schema version {EXPECTED}." in said
        assert PASSWORD not in said


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_wrong_password_is_said_and_not_shown(
    password: str | None, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if password is None:
        monkeypatch.delenv("AIRFLOW_BARRIER_PASSWORD")
    else:
        monkeypatch.setenv("AIRFLOW_BARRIER_PASSWORD", password)
    assert main(["database", "migrate", "--metaservice-url", url]) == 75
    said = capsys.readouterr().err
    assert "password" in said
    assert "wrong" not in said


def test_missing_rights_are_named(url: str, postgresql: PostgreSQL, capsys: pytest.CaptureFixture[str]) -> None:
    postgresql.run("REVOKE ALL ON SCHEMA public FROM public, pg_database_owner", database=url)
    assert main(["database", "migrate", "--metaservice-url", url]) == 1
    assert "expected rights to read and write its tables" in capsys.readouterr().err
    postgresql.run("GRANT ALL ON SCHEMA public TO public", database=url)
    assert main(["database", "migrate", "--metaservice-url", url]) == 0
    postgresql.run("ALTER TABLE barrier_schema_version OWNER TO admin", database=url)
    assert main(["database", "check", "--metaservice-url", url]) == 1
    assert "permission denied for table barrier_schema_version; grant" in capsys.readouterr().err
