"""The supervisor that a task talks to, as a test wants it: the task SDK's own calls, with answers of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.execution_time.comms import MaskSecret
from airflow.sdk.execution_time.supervisor import set_supervisor_comms

#: What the supervisor makes of a message: it answers, or raises as the task SDK does where the answer is an error.
Answering = Callable[[Any], Any]


class Supervisor:
    """``asked``: the messages so far, but for those that say what is secret."""

    def __init__(self, answering: Answering) -> None:
        self.asked: list[Any] = []
        self._answering = answering

    def send(self, msg: Any) -> Any:
        if isinstance(msg, MaskSecret):
            return None
        self.asked.append(msg)
        return self._answering(msg)

    async def asend(self, msg: Any) -> Any:
        return await asyncio.to_thread(self.send, msg)


@contextmanager
def supervised(answering: Answering) -> Iterator[Supervisor]:
    """As in a process in which a task runs."""
    supervisor = Supervisor(answering)
    with set_supervisor_comms(supervisor):
        yield supervisor
