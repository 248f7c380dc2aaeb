"""What keeps a database from giving its changes, each with the statement that mends it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from psycopg import sql

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.postgresql.database import Database, create_publication, identifier
from airflow_barrier.sources.postgresql.segments import METADATA
from airflow_barrier.sources.postgresql.types import spark_type

log = logging.getLogger(__name__)

#: Settings by which a server lets go of a slot, and of which one. Unless somebody sets them it does not.
_LIMITS = {
    "max_slot_wal_keep_size": "that holds more of the log",
    "idle_replication_slot_timeout": "that nobody has read for longer",
}
#: Role that managed services grant in place of the attribute REPLICATION.
_RDS = "rds_replication"
_PLUGIN = "pgoutput"
#: Types of columns that tell when a row was changed last.
_TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ")


def check(database: Database, tables: Sequence[str], slot: str | None, publication: str | None) -> None:
    """Raise SourceDataError naming all that keeps changes of ``tables`` from being had. ``slot`` and ``publication``:
    None, they are made by the source. Raises SourceUnavailableError, too. Limits of slots are told in the log.
    """
    found = [
        *_of_server(database),
        *(fault for table in tables for fault in _of_table(database, table)),
        *(_of_publication(database, tables, publication) if publication else _to_be_published(database, tables)),
        *(_of_slot(database, slot) if slot else ()),
    ]
    if found:
        raise SourceDataError(f"{database}: {'; '.join(found)}")  # safety: changes-can-be-had
    _warn_of_limits(database)


def _warn_of_limits(database: Database) -> None:
    set_ones = database.rows(
        "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%(names)s) AND setting <> boot_val",
        {"names": list(_LIMITS)},
    )
    for name, value in set_ones:
        log.warning(
            "%s: %s = %s: a slot %s is lost, and its source has to begin anew (source resnapshot). Let it be well "
            "beyond what comes while barriers are late",
            database,
            name,
            value,
            _LIMITS[name],
        )


def check_times(database: Database, by: Mapping[str, str]) -> None:
    """Raise SourceDataError naming all that keeps rows from being read by their times. ``by``: table -> column."""
    found = [
        *_of_version(database),
        *(fault for table, column in by.items() for fault in _times_of(database, table, column)),
    ]
    if found:
        raise SourceDataError(f"{database}: {'; '.join(found)}")  # safety: changes-can-be-had


def _of_version(database: Database) -> Iterator[str]:
    ((version,),) = database.rows("SELECT current_setting('server_version_num')::int")
    if version < 130_000:
        yield f"expected PostgreSQL 13 or later, found {version // 10_000}"


def _of_server(database: Database) -> Iterator[str]:
    yield from _of_version(database)
    ((level, user, may, rds),) = database.rows(
        """
        SELECT current_setting('wal_level'), current_user,
            (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
            (SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname = %(rds)s)
        """,
        {"rds": _RDS},
    )
    if level != "logical":
        yield (
            f"expected wal_level = logical, found {level}: ALTER SYSTEM SET wal_level = logical; and restart "
            "the server (on Amazon RDS the parameter rds.logical_replication = 1, on Cloud SQL the flag "
            "cloudsql.logical_decoding = on)"
        )
    if not may and not rds:
        granted = f"GRANT {_RDS} TO {user}" if rds is not None else f"ALTER ROLE {user} REPLICATION"
        yield f"expected role {user} to have the right to replicate, found that it has not: {granted}"


def _of_table(database: Database, table: str) -> Iterator[str]:
    yield from _to_be_read(database, table)
    rows = database.rows(
        """
        SELECT c.relpersistence, c.relreplident, quote_ident(%(schema)s) || '.' || quote_ident(%(name)s),
            EXISTS (
                SELECT FROM pg_index WHERE indrelid = c.oid
                AND CASE c.relreplident WHEN 'd' THEN indisprimary ELSE indisreplident END
            )
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND c.relkind IN ('r', 'p')
        """,
        _parts(table),
    )
    for persistence, identity, quoted, has_key in rows:
        if persistence != "p":
            yield f"expected {table} to be in the log, found it UNLOGGED or temporary: ALTER TABLE {quoted} SET LOGGED"
        if identity == "n" or (identity != "f" and not has_key):
            yield (
                f"expected {table} to have a primary key, or another replica identity, found none, so that the "
                f"database refuses updates and deletes once it is published: ALTER TABLE {quoted} ADD PRIMARY KEY "
                f"(...), or ALTER TABLE {quoted} REPLICA IDENTITY FULL"
            )


def _to_be_read(database: Database, table: str) -> Iterator[str]:
    rows = database.rows(
        """
        SELECT c.relkind, quote_ident(%(schema)s) || '.' || quote_ident(%(name)s),
            has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), c.relrowsecurity,
            (SELECT array_agg(attname::text) FROM pg_attribute
                WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = %(name)s
        """,
        _parts(table),
    )
    if not rows:
        yield f"expected table {table}, found none; correct the declaration: upper and lower case count"
        return
    ((kind, quoted, may_read, secured, columns),) = rows
    if kind not in ("r", "p"):
        yield f"expected {table} to be a table, found a relation of kind {kind!r}; name the tables that it is made of"
        return
    if not may_read:
        yield f"expected the right to read {table}, found none: GRANT SELECT ON {quoted} TO CURRENT_USER's role"
    if secured:
        yield (
            f"expected {table} without row security, found some, which would leave rows out of the copy and of no "
            f"change: enter by a role with BYPASSRLS, or ALTER TABLE {quoted} DISABLE ROW LEVEL SECURITY"
        )
    lowered = [column.lower() for column in columns or ()]
    taken = sorted({column.name for column in METADATA} & set(lowered))
    if taken:
        yield f"expected no column {', '.join(taken)} in {table}, found one: changes have such; rename it"
    if len(set(lowered)) < len(lowered):
        yield f"expected columns of {table} that differ in more than upper and lower case, found others; rename one"


def _times_of(database: Database, table: str, column: str) -> Iterator[str]:
    """The faults that keep the rows of a table from being read by the time in ``column``."""
    if unread := [*_to_be_read(database, table)]:
        yield from unread
        return
    rows = database.rows(
        """
        SELECT a.atttypid, a.atttypmod, a.attnotnull, format_type(a.atttypid, a.atttypmod),
            quote_ident(%(schema)s) || '.' || quote_ident(%(name)s), quote_ident(%(column)s),
            EXISTS (
                SELECT FROM pg_index
                WHERE indrelid = a.attrelid AND indisvalid AND indpred IS NULL AND indkey[0] = a.attnum
            )
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND a.attname = %(column)s
            AND a.attnum > 0 AND NOT a.attisdropped
        """,
        {**_parts(table), "column": column},
    )
    if not rows:
        yield f"expected a column {column} in {table}, found none; name another one by by=..."
        return
    ((oid, modifier, is_filled, kind, quoted, name, is_indexed),) = rows
    if spark_type(*database.base_type(oid, modifier)).name not in _TIMES:
        yield f"expected {column} of {table} to be a timestamp, found {kind}; name another column by by=..."
        return
    if not is_indexed:
        log.warning(
            "%s: expected an index on %s of %s, found none, so that each barrier reads the whole table: "
            "CREATE INDEX ON %s (%s)",
            *(database, column, table, quoted, name),
        )
    if not is_filled:
        nothing = sql.SQL("SELECT count(*) FROM {} WHERE {} IS NULL")
        ((without,),) = database.rows(nothing.format(identifier(table), sql.Identifier(column)))
        if without:
            yield (
                f"expected {column} in each row of {table}, found {without:,} rows without, which no barrier would "
                f"read: UPDATE {quoted} SET {name} = now() WHERE {name} IS NULL, and ALTER TABLE {quoted} ALTER {name} "
                "SET NOT NULL"
            )


def _parts(table: str) -> dict[str, str]:
    return dict(zip(("schema", "name"), table.split(".", 1), strict=True))


def _of_publication(database: Database, tables: Sequence[str], publication: str) -> Iterator[str]:
    rows = database.rows(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication "
        "WHERE pubname = %(name)s",
        {"name": publication},
    )
    name = sql.Identifier(publication).as_string()
    if not rows:
        yield from _to_be_published(database, tables, publication)
        return
    ((is_whole, via_root),) = rows
    if not is_whole:
        yield (
            f"expected publication {publication} to have all kinds of changes, found some left out: ALTER PUBLICATION "
            f"{name} SET (publish = 'insert, update, delete, truncate')"
        )
    ((has_filters, partitioned, published),) = database.rows(
        """
        SELECT
            (SELECT count(*) FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_publication_rel'::regclass
                AND attname IN ('prqual', 'prattrs')) = 2,
            (SELECT array_agg(n.nspname || '.' || c.relname) FROM pg_class c
                JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname || '.' || c.relname = ANY (%(tables)s) AND c.relkind = 'p'),
            (SELECT array_agg(schemaname || '.' || tablename) FROM pg_publication_tables WHERE pubname = %(name)s)
        """,
        {"name": publication, "tables": list(tables)},
    )
    if partitioned and not via_root:
        yield (
            f"expected publication {publication} to publish partitioned tables as one, found that it publishes their "
            f"partitions: ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
        )
    elif lacking := [table for table in tables if table not in (published or ())]:
        added = sql.SQL(", ").join(map(identifier, lacking)).as_string()
        yield (
            f"expected publication {publication} to have {', '.join(lacking)}, found them missing: ALTER PUBLICATION "
            f"{name} ADD TABLE {added}"
        )
    if has_filters and database.rows(
        """
        SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %(name)s AND n.nspname || '.' || c.relname = ANY (%(tables)s)
            AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)
        """,
        {"name": publication, "tables": list(tables)},
    ):
        yield (
            f"expected publication {publication} to have whole tables, found one with a row filter or a list of "
            "columns; name a publication of its own for the source, and have the job leave rows and columns out"
        )


def _to_be_published(database: Database, tables: Sequence[str], publication: str = "airflow_barrier") -> Iterator[str]:
    ((may_create, others),) = database.rows(
        """
        SELECT has_database_privilege(current_database(), 'CREATE'),
            (SELECT array_agg(n.nspname || '.' || c.relname) FROM pg_class c
                JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname || '.' || c.relname = ANY (%(tables)s) AND NOT pg_has_role(c.relowner, 'USAGE'))
        """,
        {"tables": list(tables)},
    )
    if not may_create or others:
        found = f"that it does not own {', '.join(others)}" if others else "that it may not CREATE in the database"
        yield (
            f"expected a publication, or the rights to make it, found {found}: have their owner make one, "
            f"{create_publication(publication, tables).as_string()}, and name it: publication={publication!r}"
        )


def _of_slot(database: Database, name: str) -> Iterator[str]:
    slot = database.slot(name)
    ((here,),) = database.rows("SELECT current_database()")
    if slot is not None and (slot.plugin != _PLUGIN or slot.database != here):
        yield (
            f"expected slot {name} to be one of {_PLUGIN} in {here}, found one of {slot.plugin or 'no plugin'} in "
            f"{slot.database or 'no database'}; name another one: slot='...'"
        )
