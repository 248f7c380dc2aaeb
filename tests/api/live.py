"""The API on a port, in this process: a test may say how long seconds are, and sees what runs on the loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.support.ports import free_port
from tests.support.waiting import patience, wait_for


class Live:
    def __init__(self, app: FastAPI) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/v1/deployments"
        self._loop = asyncio.new_event_loop()
        config = uvicorn.Config(app, port=port, ws="none", lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Live:
        self._thread.start()
        wait_for("the server", lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(patience())
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve())

    def tasks(self) -> list[str]:
        """What runs on the loop, beside the server itself."""

        async def found() -> list[str]:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            return [name for each in others if (name := each.get_coro().__qualname__) != "Server.serve"]

        return asyncio.run_coroutine_threadsafe(found(), self._loop).result(patience())

    def get(self, path: str, user: str = "admin") -> int:
        return httpx.get(self.url + path, headers={"user": user}, timeout=patience()).status_code

    @contextmanager
    def stream(self, **headers: str) -> Iterator[Iterator[str]]:
        """The lines of the stream of changes."""
        with httpx.stream(
            "GET", f"{self.url}/prod/events", headers={"user": "admin", **headers}, timeout=patience()
        ) as answer:
            assert answer.status_code == 200
            yield answer.iter_lines()


def changes(lines: Iterator[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        if line.startswith("data:"):
            told = json.loads(line.removeprefix("data:"))
            yield told["topology"], told["changes"]


@contextmanager
def statements() -> Iterator[list[str]]:
    """All SQL that this process executes meanwhile."""
    found: list[str] = []

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", executed)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
