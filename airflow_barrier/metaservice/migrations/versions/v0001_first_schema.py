"""The first schema: topologies, barriers, cuts, the map, attempts, audit; room for leases and revisions."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

from airflow_barrier.metaservice.schema import DatabaseNow, UtcTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_BARRIER_KEY = ("topology", "line", "barrier_id")


def upgrade() -> None:
    _create_service()
    _create_topologies()
    _create_barriers()
    _create_cuts()
    _create_progress()
    _create_attempts()
    _create_audit()
    _create_leases_and_revisions()


def _create_service() -> None:
    service = op.create_table(
        "barrier_service",
        sa.Column("service_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
    )
    op.execute(service.insert().values(service_id=1, incarnation=uuid4().hex, created_at=DatabaseNow()))


def _create_topologies() -> None:
    op.create_table(
        "barrier_topology",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
    )
    op.create_table(
        "barrier_topology_version",
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("definition", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
    )
    op.create_table(
        "barrier_fragment",
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("jobs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("registered_at", UtcTime, nullable=False),
    )
    op.create_table(
        "barrier_table_claim",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), nullable=False),
    )


def _create_barriers() -> None:
    op.create_table(
        "barrier_barrier",
        *_barrier_key(),
        sa.Column("timestamp", UtcTime, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("predecessor", sa.BigInteger),
        sa.Column("topology_version", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("run_dag_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("run_kind", sa.Text, nullable=False),
        sa.Column("run_logical_date", UtcTime),
        sa.Column("timestamp_from", sa.Text, nullable=False),
        sa.Column("opened_at", UtcTime, nullable=False),
        sa.Column("precommit_at", UtcTime),
        sa.Column("committing_at", UtcTime),
        sa.Column("commit_at", UtcTime),
        sa.Column("aborted_at", UtcTime),
        sa.Column("reason", sa.Text),
        sa.ForeignKeyConstraint(
            ["topology", "topology_version"], ["barrier_topology_version.topology", "barrier_topology_version.version"]
        ),
    )
    _create_partial_index(
        "barrier_barrier_uncommitted",
        "barrier_barrier",
        [*_BARRIER_KEY],
        where="state IN ('OPEN', 'PRECOMMIT', 'COMMITTING', 'BLOCKED')",
        unique=False,
    )
    op.create_index(
        "barrier_barrier_by_run", "barrier_barrier", ["topology", "line", "run_dag_id", "run_id", "barrier_id"]
    )
    _create_partial_index(
        "barrier_barrier_one_a_timestamp",
        "barrier_barrier",
        ["topology", "line", "timestamp"],
        where="state <> 'ABORTED'",
    )
    _create_partial_index(  # safety: one-publisher-index
        "barrier_barrier_one_publisher",
        "barrier_barrier",
        ["topology"],
        where="state IN ('COMMITTING', 'BLOCKED')",
    )


def _create_cuts() -> None:
    op.create_table(
        "barrier_cut",
        *_barrier_key(),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("start_position", sa.JSON(none_as_null=True)),
        sa.Column("end_position", sa.JSON(none_as_null=True), nullable=False),
        _of_barrier(),
    )
    op.create_index("barrier_cut_by_source", "barrier_cut", ["topology", "line", "source", "barrier_id"])
    op.create_table(
        "barrier_cut_item",
        sa.Column("topology", sa.Text, primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("item", sa.Text, primary_key=True),  # safety: item-in-one-cut-key
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        _of_barrier(),
    )
    op.create_index("barrier_cut_item_by_barrier", "barrier_cut_item", _BARRIER_KEY)


def _create_progress() -> None:
    op.create_table(
        "barrier_table_progress",
        *_barrier_key(),
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("job", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("snapshot_id", sa.BigInteger),
        sa.Column("attempt_id", sa.BigInteger),
        sa.Column("carried_from", sa.BigInteger),
        sa.Column("expected_snapshot", sa.BigInteger),
        sa.Column("processed_at", UtcTime),
        sa.Column("written_at", UtcTime),
        _of_barrier(),
    )


def _create_attempts() -> None:
    op.create_table(
        "barrier_attempt",
        sa.Column("attempt_id", _ID, primary_key=True),
        sa.Column("topology", sa.Text, nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("request_key", sa.Text, nullable=False),
        sa.Column("generation", sa.Text, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("requested_at", UtcTime, nullable=False),
        sa.Column("started_at", UtcTime),
        sa.Column("closed_at", UtcTime),
        sa.Column("processed_at", UtcTime),
        sa.Column("ended_at", UtcTime),
        *(
            sa.Column(name, sa.JSON(none_as_null=True), nullable=False)
            for name in ("waited_for", "inputs", "previous", "bases", "staged")
        ),
        sa.Column("reason", sa.Text),
        _of_barrier(),
        sqlite_autoincrement=True,
    )
    op.create_index("barrier_attempt_by_job", "barrier_attempt", [*_BARRIER_KEY, "job", "attempt_id"])
    _create_partial_index(  # safety: one-live-attempt
        "barrier_attempt_one_live",
        "barrier_attempt",
        [*_BARRIER_KEY, "job"],
        where="state IN ('REQUESTED', 'RUNNING', 'CLOSED', 'PROCESSED')",
    )


def _create_audit() -> None:
    op.create_table(
        "barrier_audit",
        sa.Column("audit_id", _ID, primary_key=True),
        sa.Column("at", UtcTime, nullable=False),
        sa.Column("topology", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("barrier_id", sa.BigInteger),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("state_before", sa.Text),
        sa.Column("state_after", sa.Text),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("barrier_audit_by_barrier", "barrier_audit", ["topology", "barrier_id", "audit_id"])
    op.create_index("barrier_audit_by_topology", "barrier_audit", ["topology", "audit_id"])


def _create_leases_and_revisions() -> None:
    op.create_table(
        "barrier_lease",
        sa.Column("lease_id", _ID, primary_key=True),
        sa.Column("topology", sa.Text, nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("granted_at", UtcTime, nullable=False),
        sa.Column("expires_at", UtcTime, nullable=False),
        _of_barrier(),
        sqlite_autoincrement=True,
    )
    op.create_index("barrier_lease_by_barrier", "barrier_lease", _BARRIER_KEY)
    op.create_table(
        "barrier_revision",
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), primary_key=True),
        sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("published", sa.Boolean, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
    )


def _barrier_key() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("topology", sa.Text, primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("barrier_id", sa.BigInteger, primary_key=True, autoincrement=False),
    )


def _of_barrier() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(_BARRIER_KEY, [f"barrier_barrier.{column}" for column in _BARRIER_KEY])


def _create_partial_index(name: str, table: str, columns: list[str], where: str, unique: bool = True) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
