"""`airflow-barrier barrier abort`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, reason_option, topology_argument
from airflow_barrier.cli.asking import refused, yes_option
from airflow_barrier.cli.connection import actor, connected, database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import answer, line

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.aborting import Aborted


@dataclass(frozen=True)
class Answer:
    """The barriers that this call gave up; none if it was aborted before."""

    topology: str
    barrier_id: int
    done: Aborted


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.aborting import abort_by_hand

    topology, barrier_id = options.topology, options.barrier
    with meta_service(options) as meta:
        later = [barrier for barrier in meta.barriers.uncommitted(topology) if barrier.barrier_id >= barrier_id]
        # what cannot be aborted, or was before, needs no answer: the MetaService says so
        if later and later[0].barrier_id == barrier_id:
            lines = [f"{barrier} is {barrier.state.value}" for barrier in later]
            code = refused(options, lines, "Give up? The epochs join the next barrier's.")
            if code is not None:
                return code
        connect = None if options.metaservice_url else partial(connected, options.conn_id)
        done = abort_by_hand(meta, topology, barrier_id, reason=options.reason, actor=actor(), connect=connect)
    if done.left is not None:
        say(f"aborted; but tags that hold its input in tables outside the topology are left: {done.left}")
    answer(options, Answer(topology, barrier_id, done), _show, _told)
    return DONE


def _told(found: Answer) -> models.Done:
    from airflow_barrier.api.outcomes import of_abort

    return of_abort(found.barrier_id, found.done)


def _show(found: Answer, console: Console) -> None:
    for barrier in found.done.barriers:
        line(console, f"aborted {barrier}")
    if not found.done.barriers:
        line(console, f"barrier {found.barrier_id} of {found.topology} was aborted before; nothing to do")


ABORT = Command(
    "abort",
    "Give a barrier up, and every later uncommitted one with it. Their epochs join the next barrier's. Refused once "
    "the barrier is COMMITTING. With --metaservice-url tags that hold its input in tables outside the topology stay.",
    (
        topology_argument,
        barrier_argument,
        reason_option("why, for the audit and for the tasks that meet the barrier"),
        yes_option,
        database_options,
    ),
    _run,
    examples=('shopping 3 --reason "landed twice"', 'shopping 3 --reason "landed twice" --yes --json'),
)
