"""The commands. A new one is a file beside these, and its place in the list below."""

from __future__ import annotations

from airflow_barrier.cli.commands.abort import ABORT
from airflow_barrier.cli.commands.adopt import ADOPT, VALIDATE
from airflow_barrier.cli.commands.barrier import LIST as BARRIERS
from airflow_barrier.cli.commands.barrier import SHOW as BARRIER
from airflow_barrier.cli.commands.commit import COMMIT
from airflow_barrier.cli.commands.database import CHECK, MIGRATE
from airflow_barrier.cli.commands.delay import DELAY
from airflow_barrier.cli.commands.doctor import DOCTOR
from airflow_barrier.cli.commands.expiry import PLAN as EXPIRY
from airflow_barrier.cli.commands.init import INIT
from airflow_barrier.cli.commands.lease import LIST as LEASES
from airflow_barrier.cli.commands.lease import RELEASE
from airflow_barrier.cli.commands.leave import JOIN, LEAVE
from airflow_barrier.cli.commands.query import QUERY
from airflow_barrier.cli.commands.recover import RECOVER
from airflow_barrier.cli.commands.resolve import RESOLVE
from airflow_barrier.cli.commands.revision import REVISION
from airflow_barrier.cli.commands.serve import SERVE
from airflow_barrier.cli.commands.sink import SINK
from airflow_barrier.cli.commands.snapshots import SNAPSHOTS
from airflow_barrier.cli.commands.source import RESNAPSHOT
from airflow_barrier.cli.commands.spark_conf import SPARK_CONF
from airflow_barrier.cli.commands.status import STATUS
from airflow_barrier.cli.commands.table import CREATE
from airflow_barrier.cli.commands.topology import LIST as TOPOLOGIES
from airflow_barrier.cli.commands.topology import SHOW as TOPOLOGY
from airflow_barrier.cli.frame import Command, Group

COMMANDS: tuple[Command | Group, ...] = (
    INIT,
    DOCTOR,
    STATUS,
    DELAY,
    Group(
        "barrier",
        "Look at barriers, commit one without its DAG, give one up, and lead a BLOCKED one out.",
        (BARRIERS, BARRIER, COMMIT, ABORT, RESOLVE),
    ),
    QUERY,
    SNAPSHOTS,
    REVISION,
    Group("source", "What becomes of a source that went wrong.", (RESNAPSHOT,)),
    SINK,
    Group("lease", "Who holds which barrier.", (LEASES, RELEASE)),
    Group("expiry", "What may be deleted.", (EXPIRY,)),
    Group(
        "topology",
        "Look at topologies, take existing tables in, and give them back.",
        (TOPOLOGIES, TOPOLOGY, VALIDATE, ADOPT, LEAVE, JOIN),
    ),
    Group("table", "The tables that DAGs declare.", (CREATE,)),
    RECOVER,
    SERVE,
    SPARK_CONF,
    Group("database", "The MetaService's database.", (MIGRATE, CHECK)),
)
