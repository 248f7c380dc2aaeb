"""Leases of readers, barriers that expire or maintain, and the metadata as tables that people query."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_barrier.metaservice.schema import UtcTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BARRIER_KEY = ("topology", "line", "barrier_id")


def upgrade() -> None:
    _extend_barriers()
    _let_maintenance_barriers_inherit()
    _make_leases()
    _make_views()


def _extend_barriers() -> None:
    for column in ("thinned_at", "expiring_at", "expired_at", "trimmed_at"):
        op.add_column("barrier_barrier", sa.Column(column, UtcTime))
    op.add_column("barrier_barrier", sa.Column("rollbacks", sa.Integer, nullable=False, server_default="0"))
    for name, where in (
        ("barrier_barrier_thinned", "thinned_at IS NOT NULL AND expired_at IS NULL"),
        ("barrier_barrier_readable", "state = 'COMMIT' AND expiring_at IS NULL"),
        ("barrier_barrier_untrimmed", "trimmed_at IS NULL AND (expired_at IS NOT NULL OR state = 'ABORTED')"),
    ):
        op.create_index(
            name, "barrier_barrier", list(_BARRIER_KEY), sqlite_where=sa.text(where), postgresql_where=sa.text(where)
        )


def _let_maintenance_barriers_inherit() -> None:
    name = "barrier_barrier_one_a_timestamp"
    where = sa.text("state <> 'ABORTED' AND kind <> 'MAINTENANCE'")
    not_aborted = sa.text("state <> 'ABORTED'")
    op.drop_index(name, "barrier_barrier")
    op.create_index(
        "barrier_barrier_by_time",
        "barrier_barrier",
        ["topology", "line", "timestamp", "barrier_id"],
        sqlite_where=not_aborted,
        postgresql_where=not_aborted,
    )
    op.create_index(  # safety: one-barrier-a-timestamp
        name,
        "barrier_barrier",
        ["topology", "line", "timestamp"],
        unique=True,
        sqlite_where=where,
        postgresql_where=where,
    )


def _make_leases() -> None:
    """Anew: nothing has granted one so far."""
    op.drop_table("barrier_lease")
    op.create_table(
        "barrier_lease",
        sa.Column("lease_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("topology", sa.Text, nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        sa.Column("through_id", sa.BigInteger, nullable=False),
        sa.Column("rollbacks", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("granted_at", UtcTime, nullable=False),
        sa.Column("expires_at", UtcTime, nullable=False),
        sa.ForeignKeyConstraint(_BARRIER_KEY, [f"barrier_barrier.{column}" for column in _BARRIER_KEY]),
        sqlite_autoincrement=True,
    )
    op.create_index("barrier_lease_by_barrier", "barrier_lease", list(_BARRIER_KEY))
    op.create_index("barrier_lease_by_end", "barrier_lease", ["topology", "line", "expires_at"])


# --- views --------------------------------------------------------------------------------------------
# Their columns are promised in protocol/metadata.py.

#: Of each job of the current topologies, its name and its definition.
_JOBS = {
    "sqlite": """
        SELECT v.topology, json_extract(j.value, '$.name') AS job, j.value AS job_json
        FROM barrier_topology t
        JOIN barrier_topology_version v ON v.topology = t.name AND v.version = t.version
        JOIN json_each(v.definition, '$.jobs') j""",
    "postgresql": """
        SELECT v.topology, j.value ->> 'name' AS job, j.value AS job_json
        FROM barrier_topology t
        JOIN barrier_topology_version v ON v.topology = t.name AND v.version = t.version
        CROSS JOIN LATERAL json_array_elements(v.definition -> 'jobs') j""",
}
_TABLES_OF_JOB = {
    "sqlite": "JOIN json_each(j.job_json, '$.{what}') n",
    "postgresql": "CROSS JOIN LATERAL json_array_elements_text(j.job_json -> '{what}') n(value)",
}
_LENGTH = {
    "sqlite": "json_array_length(j.job_json, '$.{what}')",
    "postgresql": "json_array_length(j.job_json -> '{what}')",
}
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')", "postgresql": "clock_timestamp()"}


def _views(dialect: str) -> dict[str, str]:
    def tables(what: str, more: str = "") -> str:
        names = _TABLES_OF_JOB[dialect].format(what=what)
        return f"""
            SELECT j.topology || '.' || j.job AS job_id, n.value AS table_name, j.topology, j.job{more}
            FROM ({_JOBS[dialect]}) j {names}"""

    externals, sources = (_LENGTH[dialect].format(what=what) for what in ("externals", "sources"))
    root = f", CASE WHEN {externals} > 0 OR {sources} = 0 THEN 'Root' ELSE 'Intermediate' END AS table_type"
    return {
        "__META_ETL_SOURCE": tables("sources"),
        "__META_ETL_SINK": tables("sinks"),
        "__META_TABLE_VERSION": f"""
            SELECT s.table_name, coalesce(p.barrier_id, 0) AS version, s.table_type, s.topology
            FROM ({tables("sinks", root)}) s
            LEFT JOIN barrier_table_progress p
            ON p.topology = s.topology AND p.line = 0 AND p.table_name = s.table_name AND p.barrier_id = (
                SELECT b.barrier_id FROM barrier_barrier b
                WHERE b.topology = s.topology AND b.line = 0 AND b.state = 'COMMIT'
                ORDER BY b.barrier_id DESC LIMIT 1)""",
        "__META_BARRIER": """
            SELECT topology, line AS revision, barrier_id, CASE WHEN barrier_id > 0 THEN timestamp END AS timestamp,
            state, predecessor, topology_version, kind, run_dag_id, run_id, run_kind, run_logical_date, timestamp_from,
            opened_at, precommit_at, committing_at, commit_at, aborted_at, expiring_at, expired_at, reason
            FROM barrier_barrier""",
        "__META_TABLE_PROGRESS": """
            SELECT topology, line AS revision, barrier_id, table_name, topology || '.' || job AS job_id, state,
            snapshot_id, attempt_id, carried_from, decision, processed_at, written_at
            FROM barrier_table_progress""",
        "__META_ATTEMPT": """
            SELECT attempt_id, topology, line AS revision, barrier_id, topology || '.' || job AS job_id, state,
            request_key, generation, requested_at, started_at, closed_at, processed_at, ended_at, reason
            FROM barrier_attempt""",
        "__META_LEASE": f"""
            SELECT lease_id, topology, line, barrier_id, through_id, holder, granted_at, expires_at
            FROM barrier_lease WHERE expires_at > {_NOW[dialect]}""",
        "__META_AUDIT": """
            SELECT audit_id, at, topology, revision, barrier_id, kind, subject, event, state_before, state_after, actor,
            CAST(detail AS TEXT) AS detail
            FROM barrier_audit""",
        "__META_SNAPSHOT": """
            SELECT p.topology, p.line AS revision, p.barrier_id, p.table_name, b.timestamp, p.snapshot_id,
            CASE WHEN p.snapshot_id IS NOT NULL
            THEN 'barrier_' || p.topology || '_b' || p.barrier_id || '_r' || p.line END AS tag
            FROM barrier_barrier b
            JOIN barrier_table_progress p
            ON p.topology = b.topology AND p.line = b.line AND p.barrier_id = b.barrier_id
            WHERE b.state = 'COMMIT' AND b.expiring_at IS NULL AND b.barrier_id > 0""",
    }


def _make_views() -> None:
    """Where capitals matter they get names in both ways, so that a query may quote them and need not."""
    dialect = op.get_bind().dialect.name
    made = _views(dialect)
    for name, query in made.items():
        op.execute(f'CREATE VIEW "{name}" AS {query}')
    for also, name in (("__META_JOB_SOURCE", "__META_ETL_SOURCE"), ("__META_JOB_SINK", "__META_ETL_SINK")):
        op.execute(f'CREATE VIEW "{also}" AS SELECT * FROM "{name}"')
        made[also] = name
    if dialect == "postgresql":
        for name in made:
            op.execute(f'CREATE VIEW {name.lower()} AS SELECT * FROM "{name}"')
