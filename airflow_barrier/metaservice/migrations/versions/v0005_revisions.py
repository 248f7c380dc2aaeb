"""Revisions: barriers computed again, and which revision computed what stands."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_barrier.metaservice.schema import UtcTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NUMBERED = ("barrier_barrier", "barrier_attempt")
_LISTS = ("tables", "jobs", "changed", "corrections", "reused", "recut")


def upgrade() -> None:
    for table in _NUMBERED:
        op.add_column(table, sa.Column("computed_in", sa.Integer, nullable=False, server_default="0"))
    op.add_column("barrier_attempt", sa.Column("code", sa.JSON))
    _make_revisions()
    _make_views()


def _make_revisions() -> None:
    """Anew: nothing has begun one so far."""
    op.drop_table("barrier_revision")
    op.create_table(
        "barrier_revision",
        sa.Column("topology", sa.Text, sa.ForeignKey("barrier_topology.name"), primary_key=True),
        sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("first_barrier", sa.BigInteger, nullable=False),
        sa.Column("predecessor", sa.BigInteger, nullable=False),
        sa.Column("window_end", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.JSON, nullable=False) for name in _LISTS),
        sa.Column("topology_version", sa.Integer, nullable=False),
        sa.Column("gated_at", UtcTime),
        sa.Column("head", sa.BigInteger),
        sa.Column("last", sa.BigInteger),
        sa.Column("expected", sa.JSON, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", UtcTime, nullable=False),
        *(sa.Column(name, UtcTime) for name in ("committing_at", "commit_at", "cancelled_at")),
        sa.ForeignKeyConstraint(
            ["topology", "topology_version"],
            ["barrier_topology_version.topology", "barrier_topology_version.version"],
        ),
    )
    under_way = sa.text("state IN ('STAGING', 'COMMITTING')")
    op.create_index(  # safety: one-revision-under-way
        "barrier_revision_one_under_way",
        "barrier_revision",
        ["topology"],
        unique=True,
        sqlite_where=under_way,
        postgresql_where=under_way,
    )
    op.create_table(
        "barrier_revision_run",
        sa.Column("topology", sa.Text, primary_key=True),
        sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("dag_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        sa.Column("clear_number", sa.Integer),
        sa.Column("arrived_at", UtcTime),
        sa.ForeignKeyConstraint(["topology", "revision"], ["barrier_revision.topology", "barrier_revision.revision"]),
    )
    op.create_index("barrier_revision_run_by_run", "barrier_revision_run", ["dag_id", "run_id"])


# --- views --------------------------------------------------------------------------------------------
# Their columns are promised in protocol/metadata.py. They show the line that stands.

_VIEWS = {
    "__META_BARRIER": """
        SELECT topology, computed_in AS revision, barrier_id, CASE WHEN barrier_id > 0 THEN timestamp END AS timestamp,
        state, predecessor, topology_version, kind, run_dag_id, run_id, run_kind, run_logical_date, timestamp_from,
        opened_at, precommit_at, committing_at,
        commit_at, aborted_at, expiring_at, expired_at, reason
        FROM barrier_barrier WHERE line = 0""",
    "__META_TABLE_PROGRESS": """
        SELECT p.topology, b.computed_in AS revision, p.barrier_id, p.table_name, p.topology || '.' || p.job AS job_id,
        p.state, p.snapshot_id, p.attempt_id, p.carried_from, p.decision, p.processed_at, p.written_at
        FROM barrier_table_progress p
        JOIN barrier_barrier b
        ON b.topology = p.topology AND b.line = p.line AND b.barrier_id = p.barrier_id
        WHERE p.line = 0""",
    "__META_ATTEMPT": """
        SELECT attempt_id, topology, computed_in AS revision, barrier_id, topology || '.' || job AS job_id, state,
        request_key, generation, requested_at, started_at, closed_at, processed_at, ended_at, reason
        FROM barrier_attempt""",
    "__META_SNAPSHOT": """
        SELECT p.topology, b.computed_in AS revision, p.barrier_id, p.table_name, b.timestamp, p.snapshot_id,
        CASE WHEN p.snapshot_id IS NOT NULL
        THEN 'barrier_' || p.topology || '_b' || p.barrier_id || '_r' || b.computed_in END AS tag
        FROM barrier_barrier b
        JOIN barrier_table_progress p
        ON p.topology = b.topology AND p.line = b.line AND p.barrier_id = b.barrier_id
        WHERE b.line = 0 AND b.state = 'COMMIT' AND b.expiring_at IS NULL AND b.barrier_id > 0""",
    "__META_REVISION": """
        SELECT topology, revision, state, mode, first_barrier, window_end, head, last, actor, reason, created_at,
        committing_at, commit_at, cancelled_at
        FROM barrier_revision""",
}


def _make_views() -> None:
    """On PostgreSQL they are replaced in place: rights that were granted on them stay, and so do others' views on them.
    Columns may be added behind those that are there.
    """
    postgresql = op.get_bind().dialect.name == "postgresql"
    for name, query in _VIEWS.items():
        if postgresql:
            op.execute(f'CREATE OR REPLACE VIEW "{name}" AS {query}')
            op.execute(f'CREATE OR REPLACE VIEW {name.lower()} AS SELECT * FROM "{name}"')
        else:
            op.execute(f'DROP VIEW IF EXISTS "{name}"')
            op.execute(f'CREATE VIEW "{name}" AS {query}')
