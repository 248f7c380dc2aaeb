"""The views by which the MetaService can be asked in SQL. Their columns are promised in ``protocol/metadata.py``.

They show the line that stands. Jobs, tables and snapshots of rehearsals are left out.
"""

from __future__ import annotations

from sqlalchemy import Connection

#: Of each job of the current topologies, its name and its definition.
_JOBS = {
    "sqlite": """
        SELECT v.topology, json_extract(j.value, '$.name') AS job, j.value AS job_json
        FROM barrier_topology t
        JOIN barrier_topology_version v ON v.topology = t.name AND v.version = t.version
        JOIN json_each(v.definition, '$.jobs') j WHERE replace(t.name, '--rehearsal-', '') = t.name""",
    "postgresql": """
        SELECT v.topology, j.value ->> 'name' AS job, j.value AS job_json
        FROM barrier_topology t
        JOIN barrier_topology_version v ON v.topology = t.name AND v.version = t.version
        CROSS JOIN LATERAL json_array_elements(v.definition -> 'jobs') j
        WHERE replace(t.name, '--rehearsal-', '') = t.name""",
}
_TABLES_OF_JOB = {
    "sqlite": "JOIN json_each(j.job_json, '$.{what}') n",
    "postgresql": "CROSS JOIN LATERAL json_array_elements_text(j.job_json -> '{what}') n(value)",
}
_LENGTH = {
    "sqlite": "json_array_length(j.job_json, '$.{what}')",
    "postgresql": "json_array_length(j.job_json -> '{what}')",
}
_KIND = {"sqlite": "json_extract(s.definition, '$.kind')", "postgresql": "s.definition ->> 'kind'"}
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')", "postgresql": "clock_timestamp()"}
_ALSO = {"__META_JOB_SOURCE": "__META_ETL_SOURCE", "__META_JOB_SINK": "__META_ETL_SINK"}


def create_views(connection: Connection) -> None:
    """Create the views, with names in both ways where capitals matter: a query may quote them and need not."""
    dialect = connection.dialect.name
    made = _views(dialect) | {also: f'SELECT * FROM "{name}"' for also, name in _ALSO.items()}
    for name, query in made.items():
        connection.exec_driver_sql(f'CREATE VIEW "{name}" AS {query}')
    for name in made if dialect == "postgresql" else ():
        connection.exec_driver_sql(f'CREATE VIEW {name.lower()} AS SELECT * FROM "{name}"')


def _views(dialect: str) -> dict[str, str]:
    def tables(what: str, more: str = "") -> str:
        names = _TABLES_OF_JOB[dialect].format(what=what)
        return f"""
            SELECT j.topology || '.' || j.job AS job_id, n.value AS table_name, j.topology, j.job{more}
            FROM ({_JOBS[dialect]}) j {names}"""

    externals, inlets = (_LENGTH[dialect].format(what=what) for what in ("externals", "inlets"))
    root = f", CASE WHEN {externals} > 0 OR {inlets} = 0 THEN 'Root' ELSE 'Intermediate' END AS table_type"
    return {
        "__META_ETL_SOURCE": tables("inlets"),
        "__META_ETL_SINK": tables("outlets"),
        "__META_TABLE_VERSION": f"""
            SELECT s.table_name, coalesce(p.barrier_id, 0) AS version, s.table_type, s.topology
            FROM ({tables("outlets", root)}) s
            LEFT JOIN barrier_table_progress p
            ON p.topology = s.topology AND p.line = 0 AND p.table_name = s.table_name AND p.barrier_id = (
                SELECT b.barrier_id FROM barrier_barrier b
                WHERE b.topology = s.topology AND b.line = 0 AND b.state = 'COMMIT'
                ORDER BY b.barrier_id DESC LIMIT 1)""",
        "__META_BARRIER": """
            SELECT topology, computed_in AS revision, barrier_id,
            CASE WHEN barrier_id > 0 THEN timestamp END AS timestamp, state, predecessor, topology_version,
            kind, run_dag_id, run_id, run_kind, run_logical_date, timestamp_from, opened_at, precommit_at,
            committing_at, commit_at, aborted_at, expiring_at, expired_at, reason
            FROM barrier_barrier WHERE line = 0""",
        "__META_TABLE_PROGRESS": """
            SELECT p.topology, b.computed_in AS revision, p.barrier_id, p.table_name,
            p.topology || '.' || p.job AS job_id, p.state, p.snapshot_id, p.attempt_id, p.carried_from, p.decision,
            p.processed_at, p.written_at
            FROM barrier_table_progress p
            JOIN barrier_barrier b ON b.topology = p.topology AND b.line = p.line AND b.barrier_id = p.barrier_id
            WHERE p.line = 0""",
        "__META_ATTEMPT": """
            SELECT attempt_id, topology, computed_in AS revision, barrier_id, topology || '.' || job AS job_id, state,
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
            SELECT p.topology, b.computed_in AS revision, p.barrier_id, p.table_name, b.timestamp, p.snapshot_id,
            CASE WHEN p.snapshot_id IS NOT NULL
            THEN 'barrier_' || p.topology || '_b' || p.barrier_id || '_r' || b.computed_in END AS tag
            FROM barrier_barrier b
            JOIN barrier_table_progress p
            ON p.topology = b.topology AND p.line = b.line AND p.barrier_id = b.barrier_id
            WHERE b.line = 0 AND b.state = 'COMMIT' AND b.expiring_at IS NULL AND b.barrier_id > 0
            AND replace(b.topology, '--rehearsal-', '') = b.topology""",
        "__META_REVISION": """
            SELECT topology, revision, state, mode, first_barrier, window_end, head, last, actor, reason, created_at,
            committing_at, commit_at, cancelled_at
            FROM barrier_revision""",
        # a correction of what was delivered last is lacking, too; maintenance leaves nothing to deliver
        "__META_DELIVERY": f"""
            SELECT s.topology, s.name AS sink, s.owner, {_KIND[dialect]} AS kind, s.state, s.barrier_id, s.revision,
            s.delivered_at, count(b.barrier_id) AS lag_barriers, min(coalesce(r.commit_at, b.commit_at)) AS lag_since,
            s.error, s.failed_at, s.failures
            FROM barrier_sink s
            LEFT JOIN barrier_barrier b
            ON b.topology = s.topology AND b.line = 0 AND (b.barrier_id > coalesce(s.barrier_id, 0)
            OR b.barrier_id = s.barrier_id AND b.computed_in > s.revision)
            AND b.state = 'COMMIT' AND b.kind <> 'MAINTENANCE'
            AND (s.barrier_id IS NOT NULL OR b.commit_at >= s.created_at)
            LEFT JOIN barrier_revision r
            ON r.topology = b.topology AND r.revision = b.computed_in AND b.barrier_id = s.barrier_id
            WHERE s.released_at IS NULL
            GROUP BY s.topology, s.name""",
    }
