"""The supervisor that a task talks to, as a test wants it: the task SDK's own calls, with answers of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.execution_time.comms import GetXCom, MaskSecret, SetXCom, XComResult
from airflow.sdk.execution_time.supervisor import set_supervisor_comms

from airflow_barrier.links.barrier import BarrierLink

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


class KeptXComs:
    """Answers for one task: what it has written as XCom it gets back. ``kept``: the values by their keys."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def __call__(self, msg: Any) -> Any:
        if isinstance(msg, SetXCom):
            self.kept[msg.key] = msg.value
        if isinstance(msg, GetXCom):
            return XComResult(key=msg.key, value=self.kept.get(msg.key))
        return None

    @property
    def link(self) -> str | None:
        """What the task links to: the query of the page's address."""
        shown = self.kept.get(BarrierLink().xcom_key)
        return None if shown is None else shown.partition("?")[2]


@contextmanager
def supervised(answering: Answering) -> Iterator[Supervisor]:
    """As in a process in which a task runs."""
    supervisor = Supervisor(answering)
    with set_supervisor_comms(supervisor):
        yield supervisor
