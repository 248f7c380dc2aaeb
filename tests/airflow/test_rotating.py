"""Passwords that rotate: a process keeps one set of connections of each Airflow connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql
from sqlalchemy import make_url

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.triggers._watcher import REACHED, Outcome, Watcher
from tests.support.postgresql import USER, PostgreSQL, without_password
from tests.support.waiting import patience, wait_for

CONN = "barrier_rotating"


class Rotating:
    """A deployment on PostgreSQL, with a role of its own, the password of which changes."""

    def __init__(self, url: str, server: PostgreSQL, monkeypatch: pytest.MonkeyPatch, warehouse: str) -> None:
        self.role = f"rotating_{uuid4().hex}"
        self._url = make_url(without_password(url)).set(username=self.role)
        self._server = server
        self._monkeypatch = monkeypatch
        self._warehouse = warehouse
        self._run("CREATE ROLE {} LOGIN IN ROLE {}", sql.Identifier(self.role), sql.Identifier(USER))
        self.rotate("first")

    def rotate(self, password: str) -> None:
        self._run("ALTER ROLE {} PASSWORD {}", sql.Identifier(self.role), sql.Literal(password))
        connection = {
            "conn_type": "barrier",
            "password": password,
            "extra": {"warehouse": self._warehouse, "metaservice_url": self._url.render_as_string()},
        }
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(connection))

    def connections(self) -> int:
        return len(self._run("SELECT pid FROM pg_stat_activity WHERE usename = {}", sql.Literal(self.role)))

    def _run(self, statement: str, *parts: sql.Composable) -> list[tuple[Any, ...]]:
        return self._server.run(sql.SQL(statement).format(*parts))


@pytest.fixture
def rotating(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rotating]:
    with postgresql.database() as url:
        yield Rotating(url, postgresql, monkeypatch, str(tmp_path))
        BarrierHook(CONN).get_meta_service().close()
        BarrierHook(CONN).get_deployment().close()


def test_what_the_old_password_opened_is_closed(rotating: Rotating) -> None:
    for number in range(5):
        rotating.rotate(f"geheim{number}")
        hook = BarrierHook(CONN)
        hook.get_meta_service().topologies.names()
        hook.get_deployment().tables.check()
        assert hook.get_deployment().meta.topologies.names() == []
        # one of each pool: MetaService alone, and MetaService and catalog of a deployment
        wait_for("the old connections to end", lambda: rotating.connections() <= 3)


def test_a_call_that_is_under_way_ends_as_if_nothing_had_happened(rotating: Rotating) -> None:
    began, go_on, said = threading.Event(), threading.Event(), []

    def work(meta: MetaService) -> None:
        def read(connection: object) -> str:
            began.set()
            go_on.wait(patience())
            return str(connection.exec_driver_sql("SELECT 'whole'").scalar_one())  # type: ignore[attr-defined]

        said.append(meta._db.read(read))

    thread = threading.Thread(target=work, args=[BarrierHook(CONN).get_meta_service()])
    thread.start()
    assert began.wait(patience())
    rotating.rotate("another")
    assert BarrierHook(CONN).get_meta_service().topologies.names() == []
    go_on.set()
    thread.join(patience())
    assert said == ["whole"]
    del thread
    wait_for("the old connection to end", lambda: rotating.connections() == 1)


def test_one_who_watches_goes_over_to_the_new_connections(rotating: Rotating) -> None:
    """Though its old ones still work."""

    async def story() -> int:
        watcher, looked = Watcher(CONN, "shopping"), 0

        def look(view: object) -> Outcome:
            nonlocal looked
            looked += 1
            return REACHED

        async for _ in watcher.follow(look, 60):
            pass
        rotating.rotate("another")
        await asyncio.to_thread(lambda: BarrierHook(CONN).get_meta_service().topologies.names())
        async for _ in watcher.follow(look, 60):
            pass
        return looked

    assert asyncio.run(story()) == 2
    wait_for("the old connection to end", lambda: rotating.connections() == 1)
