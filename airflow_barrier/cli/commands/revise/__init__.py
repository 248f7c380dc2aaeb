"""`airflow-barrier revise`: correct history, and say before what that means."""

from __future__ import annotations

from airflow_barrier.cli.commands.revise.cancel import CANCEL
from airflow_barrier.cli.commands.revise.plan import PLAN
from airflow_barrier.cli.commands.revise.run import RUN
from airflow_barrier.cli.commands.revise.status import STATUS
from airflow_barrier.cli.frame import Group

REVISE = Group(
    "revise",
    "Correct history: compute barriers again beside what readers see, and swap all tables at once.",
    (PLAN, RUN, STATUS, CANCEL),
)
