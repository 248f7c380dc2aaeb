"""`--json` says what the API answers, where it has a route for the question."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_barrier.api.server import Served, create_server
from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.deployment import nobody_gets_in
from airflow_barrier.metaservice.store import MetaService
from tests.api.asking import Asking
from tests.api.scene import declared, everything
from tests.support.cases import cases
from tests.support.waiting import patience

#: Command -> what is asked below the topologies of `serve`.
ASKED = {
    "topology list": "",
    "barrier list shop --limit 2": "/shop/barriers?limit=2",
    "lease list shop": "/shop/leases",
    "sink list shop": "/shop/sinks",
    "revision status shop": "/shop/revisions",
    "revision status shop 1": "/shop/revisions/1",
    "delay shop": "/shop/delay",
    "delay shop --table shop.orders": "/shop/delay?table=shop.orders",
    "delay shop --barrier 1": "/shop/barriers/1/delay",
}
#: Actions for which no tables are needed, and their routes.
DONE = {
    "barrier abort shop 3 --reason again --yes": "shop/barriers/3/abort",
    "lease release shop 1 --reason again": "shop/leases/1/release",
}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaService]:
    """Where there is something of all that can be told."""
    with closing(MetaService(f"sqlite:///{tmp_path}/barrier.db", create=True)) as meta:
        everything(declared(meta))
        yield meta


def said(command: str, database: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main([*command.split(), "--metaservice-url", f"sqlite:///{database}", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def at_any_time(document: Any) -> Any:
    """Ages, and the time of what is open, grow from one question to the next."""
    for each in document.get("topologies", ()):
        assert each.pop("age") > 0
    if "present" in document:
        assert document["present"].pop("at")
        document["present"] = document["present"]["barrier_id"]
        document["blame"] = sorted((each["part"], each["job"] or "") for each in document["blame"])
    return document


def test_what_is_asked(meta: MetaService, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = TestClient(create_server(Served("metaservice", meta, nobody_gets_in), None), "http://localhost")
    with cases() as case:
        for command, path in ASKED.items():
            with case(command):
                answer = server.get(f"/v1/deployments/metaservice/topologies{path}")
                assert answer.status_code == 200
                assert at_any_time(said(command, tmp_path / "barrier.db", capsys)) == at_any_time(answer.json())


def test_what_is_done(meta: MetaService, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To one of two that are the same by the command, to the other one by the API."""
    meta.close()
    shutil.copy(tmp_path / "barrier.db", tmp_path / "twin.db")
    with closing(MetaService(f"sqlite:///{tmp_path}/twin.db")) as twin, cases() as case:
        api = Asking({"prod": twin})
        for command, path in DONE.items():
            with case(command):
                answer = api.post(path)
                assert answer.status_code == 200
                assert said(command, tmp_path / "barrier.db", capsys) == answer.json()


def test_where_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(MetaService(f"sqlite:///{tmp_path}/barrier.db", create=True)) as meta:
        assert meta.topologies.names() == []
    assert said("topology list", tmp_path / "barrier.db", capsys) == {"topologies": [], "counts": {}, "after": None}


def test_who_only_looks_does_not_wait_for_the_api_to_be_loaded(meta: MetaService, tmp_path: Path) -> None:
    commands = [command.split() for command in ("status", *ASKED)]
    code = f"""
import sys
from airflow_barrier.cli.main import main
for command in {commands}:
    assert main([*command, "--metaservice-url", "sqlite:///{tmp_path}/barrier.db"]) == 0
print("loaded", sys.modules.keys() & {{"fastapi", "pydantic", "airflow_barrier.api"}})
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience())
    assert said.stdout.endswith("loaded set()\n"), said.stdout + said.stderr
