"""The command line, as a person uses it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with one open barrier, at which nothing has been done."""
    where = f"sqlite:///{tmp_path}/barrier.db"
    meta = MetaService(where)
    meta.register("shopping", "dag", [Job("load", "dag", sinks=("shop.a",))], "test")
    meta.open_barrier(
        "shopping",
        datetime(2025, 1, 1, 6, tzinfo=timezone.utc),
        cuts=(),
        predecessor=0,
        run_key="dag/1",
        origin="data interval end of scheduled run",
        max_open=4,
        baseline={"shop.a": None},
        actor="test",
    )
    meta.close()
    return where


def test_status_shows_what_waits(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--metaservice-url", url]) == 0
    said = capsys.readouterr().out
    for text in ("shopping", "the baseline", "2025-01-01 06:00:00", "OPEN", "0 of 1 tables", "load: not started"):
        assert text in said


def test_status_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "shopping", "--metaservice-url", url, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    (barrier,) = told["open"]
    assert barrier["barrier"]["barrier_id"] == 1
    assert barrier["barrier"]["timestamp_origin"] == "data interval end of scheduled run"
    assert barrier["barrier"]["state"] == "OPEN"
    assert barrier["tables"][0]["state"] == "PENDING"


def test_abort_takes_the_connection(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extras = {"warehouse": "/w", "metaservice_url": url}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_CLI", json.dumps({"conn_type": "barrier", "extra": extras}))
    abort = ["abort", "shopping", "1", "--reason", "bad file", "--yes", "--conn-id", "barrier_cli"]
    assert main(abort) == 0
    assert "aborted barrier 1 of shopping" in capsys.readouterr().out
    assert main(abort) == 0
    assert "was aborted before" in capsys.readouterr().out
    assert MetaService(url).barrier("shopping", 1).reason == "bad file"


def test_the_database_is_looked_after(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "check", "--metaservice-url", url]) == 0
    assert "schema version" in capsys.readouterr().out
    assert main(["db", "migrate", "--metaservice-url", f"sqlite:///{tmp_path}/new.db"]) == 0
    assert "new.db" in capsys.readouterr().out
    # asking makes nothing
    assert main(["status", "--metaservice-url", f"sqlite:///{tmp_path}/other.db"]) == 1
    assert "expected a file" in capsys.readouterr().err
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "nowhere"], "nowhere"),
        (["abort", "shopping", "7", "--reason", "x", "--yes"], "shopping"),
    ],
)
def test_what_is_not_there_is_exit_code_1(
    url: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--metaservice-url", url]) == 1
    assert message in capsys.readouterr().err


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["abort", "shopping", "three"])
    assert ended.value.code == 2
    assert "invalid int value" in capsys.readouterr().err
