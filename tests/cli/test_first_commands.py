"""The first commands of a person whose barrier is open and whose jobs have not begun."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import JobStart, Tries
from airflow_barrier.protocol.topology import Job
from tests.support.runs import run_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with one open barrier, at which nothing has been done."""
    where = f"sqlite:///{tmp_path}/barrier.db"
    meta = MetaService(where)
    meta.topologies.register("shopping", "dag", [Job("load", "dag", outlets=("shop.a",))], "test")
    meta.barriers.open(
        Opening(
            "shopping",
            datetime(2025, 1, 1, 6, tzinfo=timezone.utc),
            topology_version=1,
            cuts=(),
            predecessor=0,
            run=run_of("dag/1"),
            timestamp_from="data interval end",
            max_open=4,
            baseline={"shop.a": None},
            starts=[JobStart("load", None, {"shop.a": None}, {}, {})],
            actor="test",
        ),
    )
    meta.close()
    return where


def test_status_shows_what_waits(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--metaservice-url", url]) == 0
    said = capsys.readouterr().out
    for text in ("shopping", "the baseline", "2025-01-01 06:00:00", "OPEN", "0 of 1 tables", "load: not started"):
        assert text in said


def test_status_as_a_probe(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    probe = ["status", "--check", "--metaservice-url", url]
    meta = MetaService(url)

    def fails(tries: Tries) -> None:
        attempt = meta.attempts.request(Request("shopping", 1, "load", "dag/1/load/-1", "g", "test"))
        meta.attempts.abort(attempt.attempt_id, "ValueError: " + "no" * 1_000, "test")
        meta.attempts.tried(attempt.request_key, tries)

    assert main(probe) == 0
    fails(Tries(1, 2, meta.now()))
    assert main(probe) == 3
    fails(Tries(2, 2, None))
    capsys.readouterr()
    assert main(probe) == 1
    said = capsys.readouterr().out
    assert said.startswith("shopping (version 1): failing · readers have the baseline\n")
    assert max(map(len, said.splitlines())) < 320, "an error is cut"
    assert not [line for line in said.splitlines() if line != line.rstrip()], "nothing is padded"
    assert main(["status", "--metaservice-url", url]) == 0
    capsys.readouterr()
    assert main([*probe, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["health"] == "failing"


def test_abort_takes_the_connection(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extras = {"warehouse": "/w", "metaservice_url": url}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_CLI", json.dumps({"conn_type": "barrier", "extra": extras}))
    abort = ["barrier", "abort", "shopping", "1", "--reason", "bad file", "--yes", "--conn-id", "barrier_cli"]
    assert main(abort) == 0
    assert "aborted barrier 1 of shopping" in capsys.readouterr().out
    assert main(abort) == 0
    assert "was aborted before" in capsys.readouterr().out
    assert main([*abort, "--json"]) == 0
    again = {"changed": False, "summary": "Barrier 1 was aborted before.", "states": {"barrier 1": "ABORTED"}}
    assert json.loads(capsys.readouterr().out) == again
    assert main(["barrier", "abort", "shopping", "7", *abort[4:]]) == 1
    assert MetaService(url).barriers.get("shopping", 1).reason == "bad file"


def test_the_database_is_looked_after(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["database", "check", "--metaservice-url", url]) == 0
    assert "schema version" in capsys.readouterr().out
    assert main(["database", "migrate", "--metaservice-url", f"sqlite:///{tmp_path}/new.db"]) == 0
    assert "new.db" in capsys.readouterr().out
    # asking makes nothing; that there is nothing yet is no fault, unless something of it is asked for
    other = ["--metaservice-url", f"sqlite:///{tmp_path}/other.db"]
    assert main(["status", *other]) == 0
    said = capsys.readouterr()
    hint = "once. If its run has failed, the log of the task start says why. airflow-barrier doctor looks"
    assert hint in " ".join(said.out.split())
    assert f"{tmp_path}/other.db: expected one, found none" in said.err
    assert main(["status", "--json", *other]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["status", "shopping", *other]) == 75
    assert not (tmp_path / "other.db").exists()
