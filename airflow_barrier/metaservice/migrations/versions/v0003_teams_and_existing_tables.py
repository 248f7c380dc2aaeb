"""Jobs that have left, what was in the tables of jobs that joined already, and the audit of barriers by index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_barrier.metaservice.schema import UtcTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "barrier_withdrawn",
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("at", UtcTime, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("jobs", sa.JSON(none_as_null=True), nullable=False),
    )
    key = ("topology", "line", "barrier_id")
    op.create_table(
        "barrier_job_start",
        sa.Column("topology", sa.Text, primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("barrier_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("start_from", sa.JSON(none_as_null=True)),
        sa.Column("baseline", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("previous", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("externals", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(key, [f"barrier_barrier.{column}" for column in key]),
    )
    of_barriers = sa.text("kind = 'barrier'")
    op.create_index(
        "barrier_audit_of_barriers",
        "barrier_audit",
        ["topology", "barrier_id"],
        sqlite_where=of_barriers,
        postgresql_where=of_barriers,
    )
