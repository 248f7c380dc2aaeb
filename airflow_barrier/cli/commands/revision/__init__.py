"""`airflow-barrier revision`: correct history, and say before what that means."""

from __future__ import annotations

from airflow_barrier.cli.commands.revision.cancel import CANCEL
from airflow_barrier.cli.commands.revision.plan import PLAN
from airflow_barrier.cli.commands.revision.run import RUN
from airflow_barrier.cli.commands.revision.status import STATUS
from airflow_barrier.cli.frame import Group

REVISION = Group(
    "revision",
    "Correct history: compute barriers again beside what readers see, and swap all tables at once.",
    (PLAN, RUN, STATUS, CANCEL),
)
