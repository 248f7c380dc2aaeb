"""A target in PostgreSQL: whether it can take a table's rows, and the statements that merge changes into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from psycopg import Connection, sql

from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE
from airflow_barrier.protocol.errors import SinkRefusedError
from airflow_barrier.sinks.json_values import is_list, json_fault

if TYPE_CHECKING:
    import pyarrow as pa

#: What an Arrow type may go into without losing anything. Text goes into whatever reads it.
_INTEGERS = {8: ("smallint", "integer", "bigint"), 16: ("smallint", "integer", "bigint"), 32: ("integer", "bigint")}
_JSON = ("json", "jsonb")
#: Modifiers of types of times that keep all digits: none, and the largest.
_MICROSECONDS = (-1, 6)
_TEXT = ("text", "character varying", "character", *_JSON, "uuid", "citext")


@dataclass(frozen=True)
class Target:
    """``table`` of the topology goes into ``target``. ``columns``: the table's columns -> the target's. ``types``: the
    target's columns -> their types, without precision and length, and of domains what they are over. ``narrow``: those
    which may keep a value otherwise than it was sent -> their types as they are declared. ``key``: the table's columns
    that tell rows apart (none: it needs none). ``is_referred_to``: by rows of this sink's targets, at any moment.
    """

    table: str
    target: str
    oid: int
    columns: Mapping[str, str]
    types: Mapping[str, str]
    narrow: Mapping[str, str]
    key: tuple[str, ...]
    is_referred_to: bool = False

    def __str__(self) -> str:
        return f"target {self.target}"

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(*parts_of(self.target))

    def columns_of(self, names: Sequence[str]) -> list[str]:
        """Return the names of these columns in the target; ``_change`` is none of them."""
        return [self.columns[name] for name in names if name != CHANGE]

    @property
    def stage(self) -> sql.Identifier:
        """A table of the transaction, whatever the search path is."""
        return sql.Identifier("pg_temp", f"airflow_barrier_stage_{self.oid}")

    @property
    def arrays(self) -> set[str]:
        """The table's columns that go into PostgreSQL's arrays."""
        return {column for column, name in self.columns.items() if self.types[name].endswith("[]")}

    def merge(self, change: str, columns: Sequence[str]) -> sql.Composed:
        """Return the statement that applies the staged rows of a kind. It has no parameters: a name with a `%` in it
        would be taken for one.
        """
        statement = {
            DELETE: "DELETE FROM {target} t USING {stage} s WHERE {of} AND {same}",
            UPDATE: "UPDATE {target} t SET {set} FROM {stage} s WHERE {of} AND {same}",
            INSERT: "INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage} s WHERE {of}{in_order}",
        }[change]
        in_order = sql.SQL(" ORDER BY {}" if self.key else "{}").format(sql.SQL(", ").join(self._key_columns("s")))
        return sql.SQL(statement).format(
            target=self.name,
            stage=self.stage,
            of=_of(change),
            same=self._same_key(),
            columns=self.select(columns),
            in_order=in_order,
            set=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(column), sql.Identifier("s", column)) for column in columns
            ),
        )

    def narrowed(self, stage: sql.Identifier, columns: Sequence[str]) -> sql.Composed | None:
        """The column, and the key, of a staged value that the target would keep as another; None: there can be none.

        Of a row that goes it does not matter: its key is looked for as it is kept.
        """
        differ = {
            column: sql.SQL("CASE WHEN {staged} IS NOT NULL THEN {kept} IS DISTINCT FROM {sent} ELSE false END").format(
                staged=sql.Identifier("s", column),
                kept=self._comparable(column, sql.SQL("{}::{}").format(self._as_kept(column), self._staged(column))),
                sent=self._comparable(column, sql.Identifier("s", column)),
            )
            for column in columns
            if column in self.narrow
        }
        if not differ:
            return None
        which = sql.SQL(" ").join(
            sql.SQL("WHEN {} THEN {}").format(condition, sql.Literal(column)) for column, condition in differ.items()
        )
        return sql.SQL("SELECT {found} FROM {stage} s WHERE NOT {goes} AND ({differ}) LIMIT 1").format(
            goes=_of(DELETE),
            found=sql.SQL(", ").join([sql.SQL("CASE {} END").format(which), *self._key_columns("s")]),
            stage=stage,
            differ=sql.SQL(" OR ").join(differ.values()),
        )

    def differences(self, rows: sql.Identifier, former: sql.Identifier, columns: Sequence[str]) -> sql.Composed:
        """Return the statement that stages the changes after which the target holds all ``rows``, beside rows of
        others.
        """
        return sql.SQL(
            """
            CREATE TEMPORARY TABLE {stage} ON COMMIT DROP AS
            SELECT {insert}::text AS {change}, {of_row} FROM {rows} s
            WHERE NOT EXISTS (SELECT FROM {target} t WHERE {same})
            UNION ALL
            SELECT {update}, {of_row} FROM {rows} s JOIN {target} t ON {same}
            WHERE ({theirs}) IS DISTINCT FROM ({ours})
            UNION ALL
            SELECT {delete}, {of_target} FROM {target} t
            WHERE EXISTS (SELECT FROM {former} s WHERE {same}) AND NOT EXISTS (SELECT FROM {rows} s WHERE {same})
            """
        ).format(
            stage=self.stage,
            rows=rows,
            former=former,
            target=self.name,
            change=sql.Identifier(CHANGE),
            same=self._same_key(),
            of_row=sql.SQL(", ").join(sql.Identifier("s", column) for column in columns),
            of_target=sql.SQL(", ").join(sql.Identifier("t", column) for column in columns),
            ours=sql.SQL(", ").join(self._comparable(column, self._as_kept(column)) for column in columns),
            theirs=sql.SQL(", ").join(self._comparable(column, sql.Identifier("t", column)) for column in columns),
            insert=sql.Literal(INSERT),
            update=sql.Literal(UPDATE),
            delete=sql.Literal(DELETE),
        )

    def unmatched(self, change: str) -> sql.Composed:
        """The key of a staged row of that kind that the target does not have."""
        return sql.SQL(
            "SELECT {key} FROM {stage} s WHERE {of} AND NOT EXISTS (SELECT FROM {target} t WHERE {same}) LIMIT 1"
        ).format(
            key=sql.SQL(", ").join(self._key_columns("s")),
            stage=self.stage,
            of=_of(change),
            target=self.name,
            same=self._same_key(),
        )

    @staticmethod
    def select(columns: Sequence[str]) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, columns))

    def staging(self, columns: Sequence[str]) -> sql.Composed:
        """The columns, of types that lose nothing."""
        return sql.SQL(", ").join(
            sql.SQL("{0}::{1} AS {0}").format(sql.Identifier(column), self._staged(column)) for column in columns
        )

    def _staged(self, column: str) -> sql.SQL:
        kind = self.types[column]
        # `character` without a length is one character, and without its blanks text
        return sql.SQL(kind.replace("character", "text") if kind.removesuffix("[]") == "character" else kind)

    def _as_kept(self, column: str) -> sql.Composable:
        """A staged value as the target keeps it."""
        staged = sql.Identifier("s", column)
        return sql.SQL("{}::{}").format(staged, sql.SQL(self.narrow[column])) if column in self.narrow else staged

    def _comparable(self, column: str, value: sql.Composable) -> sql.Composable:
        """The value in a form that has an equality: of `json` its text."""
        return sql.SQL("({})::text").format(value) if self.types[column] in ("json", "json[]") else value

    def _key_columns(self, of: str) -> list[sql.Identifier]:
        return [sql.Identifier(of, self.columns[key]) for key in self.key]

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("t", column), self._as_kept(column))
            for column in (self.columns[key] for key in self.key)
        )


def _of(change: str) -> sql.Composed:
    """The condition: a staged row is of that kind."""
    return sql.SQL("{} = {}").format(sql.Identifier("s", CHANGE), sql.Literal(change))


def parts_of(name: str) -> tuple[str, str]:
    """Schema and name of a declared table."""
    schema, _, table = name.partition(".")
    return schema, table


def unlogged(here: str, name: str) -> str:
    """Return the text about an unlogged table: a crash of the server empties it, while its deliveries are
    remembered.
    """
    return (
        f"{here}: expected a table that outlives a crash of the server, found {name} unlogged; ALTER TABLE {name} SET "
        "LOGGED"
    )


def find_target(
    connection: Connection[Any],
    sink: str,
    table: str,
    target: str,
    schema: pa.Schema,
    *,
    key: Sequence[str] | None,
    keyed: bool,
) -> Target:
    """The target of ``table``, whose columns are ``schema``'s. ``key``: of the target's columns, None: its primary key;
    ``keyed``: it needs one. Raises SinkRefusedError.
    """
    here = f"{sink}: target {target} of {table}"
    name = sql.Identifier(*parts_of(target)).as_string(connection)
    row = connection.execute(
        """
        SELECT c.oid, c.relkind::text, has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'INSERT'),
            has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE'),
            row_security_active(c.oid), has_database_privilege(current_database(), 'TEMPORARY'),
            (SELECT p.oid::regclass::text FROM pg_class p WHERE p.relpersistence = 'u'
                AND (p.oid = c.oid OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)) LIMIT 1)
        FROM pg_class c WHERE c.oid = to_regclass(%s)
        """,
        (name,),
    ).fetchone()
    if row is None:
        raise SinkRefusedError(f"{here}: expected a table, found none; create it:\n{_create(name, schema, key)}")
    oid, kind, *rights, hides_rows, may_stage, of_no_log = row
    if kind not in ("r", "p"):
        raise SinkRefusedError(f"{here}: expected a table, found another kind of relation ({kind}); name a table")
    wanted = ("SELECT", "INSERT", "UPDATE", "DELETE") if keyed else ("SELECT", "INSERT")
    if lacking := [right for right, there in zip(wanted, rights, strict=False) if not there]:
        raise SinkRefusedError(f"{here}: expected the right to change its rows, found none; grant {', '.join(lacking)}")
    if not may_stage:
        raise SinkRefusedError(
            f"{here}: expected the right to stage changes in a temporary table, found none; grant TEMPORARY on the "
            "database"
        )
    if of_no_log:
        raise SinkRefusedError(unlogged(here, of_no_log))  # safety: logged-as-the-ledger
    if hides_rows:
        raise SinkRefusedError(
            f"{here}: expected to see and to write every row, found row level security that holds for the login, by "
            "which PostgreSQL takes no COPY; deliver with a role that has BYPASSRLS"
        )
    columns, kinds, narrow = _match(connection, here, oid, schema)
    found_key = _key(connection, here, oid, columns, schema, key) if keyed else ()
    return Target(table, target, oid, columns, kinds, narrow, found_key)


def in_order(connection: Connection[Any], sink: str, targets: Mapping[str, Target]) -> dict[str, Target]:
    """The targets, those first to which rows of others refer. Raises SinkRefusedError if there is no first one."""
    found = connection.execute(
        """
        SELECT conrelid, confrelid,
            format('ALTER TABLE %%s ALTER CONSTRAINT %%I DEFERRABLE', conrelid::regclass, conname)
        FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND (NOT condeferrable OR confdeltype = 'r')
            AND conrelid = ANY(%(targets)s::oid[]) AND confrelid = ANY(%(targets)s::oid[]) ORDER BY conname
        """,
        {"targets": [target.oid for target in targets.values()]},
    ).fetchall()
    table_of = {target.oid: table for table, target in targets.items()}
    refers: dict[str, set[str]] = {table: set() for table in sorted(targets)}
    for one, other, _ in found:
        if one != other:  # within a table the server looks when all of a statement is done
            refers[table_of[one]].add(table_of[other])
    try:
        order = list(TopologicalSorter(refers).static_order())
    except CycleError as error:
        circle = error.args[1]
        mend = next(
            mend for one, other, mend in found if one != other and {table_of[one], table_of[other]} <= {*circle}
        )
        raise SinkRefusedError(
            f"{sink}: expected foreign keys among its targets that lead one way, or are looked at when all is "
            f"delivered, found a circle ({' -> '.join(circle)}); {mend}"
        ) from None
    referred = {table_of[other] for _, other, _ in found}
    return {table: replace(targets[table], is_referred_to=table in referred) for table in order}


def _match(
    connection: Connection[Any], here: str, oid: int, schema: pa.Schema
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The table's columns -> the target's, and of these the types and those that are narrow, as :class:`Target` has
    them. Raises SinkRefusedError.
    """
    rows = connection.execute(
        """
        WITH RECURSIVE kind AS (
            SELECT attnum, atttypid AS oid, atttypmod AS modifier FROM pg_attribute WHERE attrelid = %(oid)s
            UNION ALL
            SELECT k.attnum, t.typbasetype, CASE k.modifier WHEN -1 THEN t.typtypmod ELSE k.modifier END
            FROM kind k JOIN pg_type t ON t.oid = k.oid WHERE t.typbasetype <> 0
        )
        SELECT a.attname, format_type(t.oid, NULL), k.modifier, t.typtype::text, format_type(a.atttypid, a.atttypmod),
            a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a'
        FROM pg_attribute a JOIN kind k USING (attnum) JOIN pg_type t ON t.oid = k.oid AND t.typbasetype = 0
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
        """,
        {"oid": oid},
    ).fetchall()
    there = {name: (kind, modifier, category) for name, kind, modifier, category, *_ in rows}
    folded = {name.casefold(): name for name in reversed(there)}
    columns: dict[str, str] = {}
    for column in schema:
        name = column.name if column.name in there else folded.get(column.name.casefold())
        if name is None:
            raise SinkRefusedError(
                f"{here}: expected a column {column.name}, found none; add it: ALTER TABLE ... ADD COLUMN "
                f'"{column.name}" {_type_for(column.type)}'
            )
        if fault := _type_fault(column.type, *there[name]):
            raise SinkRefusedError(f"{here}, column {column.name}: {fault}")
        columns[column.name] = name
    taken = set(columns.values())
    if len(taken) < len(columns):
        raise SinkRefusedError(
            f"{here}: expected a column for each of the table's, found names that differ in capitals"
        )
    if lacking := [name for name, *_, required, _ in rows if required and name not in taken]:
        raise SinkRefusedError(
            f"{here}: expected that columns which {here.rpartition(' ')[2]} lacks may be NULL or have a default, found "
            f"{', '.join(lacking)}; give them one"
        )
    if made := [name for name, *_, generated in rows if generated and name in taken]:
        raise SinkRefusedError(f"{here}: expected columns that can be written, found generated: {', '.join(made)}")
    # a number's precision and scale hold every value of its type, or it was refused
    narrow = {
        name: as_is
        for name, kind, _, _, as_is, *_ in rows
        if name in taken and as_is != kind and not kind.startswith("numeric")
    }
    return columns, {name: there[name][0] for name in columns.values()}, narrow


def _key(
    connection: Connection[Any],
    here: str,
    oid: int,
    columns: Mapping[str, str],
    schema: pa.Schema,
    key: Sequence[str] | None,
) -> tuple[str, ...]:
    """The table's columns that tell its rows apart. Raises SinkRefusedError."""
    import pyarrow as pa

    rows = connection.execute(
        """
        SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.place), bool_and(a.attnotnull)
        FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(number, place), pg_attribute a
        WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
            AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.number
        GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indisprimary DESC
        """,
        (oid,),
    ).fetchall()
    names = {name.casefold(): name for name in columns}
    back = {name: column for column, name in columns.items()}
    if key is None:
        primary = next((found for is_primary, found, _ in rows if is_primary), None)
        if primary is None:
            raise SinkRefusedError(
                f"{here}: expected a primary key, by which changed rows are found, found none; add one, or name the "
                "columns of a unique index: PostgreSQLSink(..., key=[...])"
            )
        wanted = [back.get(name, "") for name in primary]
        if not all(wanted):
            raise SinkRefusedError(
                f"{here}: expected the columns of the primary key ({', '.join(primary)}) in the table, found some that "
                "it lacks; name the columns of another unique index: PostgreSQLSink(..., key=[...])"
            )
    else:
        wanted = [names.get(name.casefold(), "") for name in key]
        if not all(wanted):
            raise SinkRefusedError(f"{here}: key: expected columns of the table, found {', '.join(key)}; correct them")
        unique = {columns[name] for name in wanted}
        if not any(set(found) == unique and not_null for _, found, not_null in rows):
            raise SinkRefusedError(
                f"{here}: expected a unique index of NOT NULL columns ({', '.join(key)}), found none; create one: it "
                "is what finds the rows to change"
            )
    if floats := [name for name in wanted if pa.types.is_floating(schema.field(name).type)]:
        raise SinkRefusedError(
            f"{here}: expected a key of exact values, found floating point: {', '.join(floats)}; cast them in the job"
        )
    if nested := [name for name in wanted if pa.types.is_nested(schema.field(name).type)]:
        raise SinkRefusedError(
            f"{here}: expected a key of plain values, found structs, lists or maps: {', '.join(nested)}; name other "
            "columns, or take out of them in the job what tells rows apart"
        )
    return tuple(wanted)


def _type_fault(kind: pa.DataType, found: str, modifier: int, category: str) -> str | None:
    """Return in words why values of an Arrow type do not all fit into a column; None: they do."""
    import pyarrow as pa

    types = pa.types
    if types.is_nested(kind) and found in _JSON:
        return json_fault(kind)
    if is_list(kind) and found.endswith("[]") and not types.is_nested(kind.value_type):
        fits = _type_fault(kind.value_type, found.removesuffix("[]"), modifier, category) is None
    elif category == "e" or found in _TEXT:
        fits = types.is_string(kind) or types.is_large_string(kind)
    elif found == "boolean":
        fits = types.is_boolean(kind)
    elif types.is_signed_integer(kind):
        fits = found in (*_INTEGERS.get(kind.bit_width, ("bigint",)),) or (found == "numeric" and modifier == -1)
    elif found in ("real", "double precision"):
        fits = types.is_floating(kind) and (kind.bit_width <= 32 or found == "double precision")
    elif found == "numeric":
        fits = types.is_decimal(kind) and _numeric_fits(kind, modifier)
    elif found == "bytea":
        fits = types.is_binary(kind) or types.is_large_binary(kind)
    elif found == "date":
        fits = types.is_date(kind)
    elif found == "timestamp with time zone":
        fits = types.is_timestamp(kind) and kind.tz is not None and kind.unit != "ns" and modifier in _MICROSECONDS
    elif found == "timestamp without time zone":
        fits = types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns" and modifier in _MICROSECONDS
    elif found == "time without time zone":
        fits = types.is_time(kind) and kind.unit != "ns" and modifier in _MICROSECONDS
    else:
        fits = False
    if fits:
        return None
    return f"expected a column that holds every {kind}, such as {_type_for(kind)}, found {found}; change its type"


def _numeric_fits(kind: pa.DataType, modifier: int) -> bool:
    """PostgreSQL keeps precision and scale in one number, with four bytes of a header added."""
    if modifier == -1:
        return True
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)


def _type_for(kind: pa.DataType) -> str:
    """A type that holds every value of an Arrow type."""
    import pyarrow as pa

    types = pa.types
    if types.is_signed_integer(kind):
        return _INTEGERS.get(kind.bit_width, ("bigint",))[0]
    if types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    simple = {
        types.is_boolean: "boolean",
        types.is_float32: "real",
        types.is_float64: "double precision",
        types.is_date: "date",
        types.is_time: "time",
        types.is_binary: "bytea",
        types.is_large_binary: "bytea",
        types.is_nested: "jsonb",
    }
    return next((name for fits, name in simple.items() if fits(kind)), "text")


def _create(name: str, schema: pa.Schema, key: Sequence[str] | None) -> str:
    """A statement that makes the target."""
    lines = [f'    "{column.name}" {_type_for(column.type)}' for column in schema]
    quoted = ", ".join(f'"{column}"' for column in key or ())
    lines.append(f"    PRIMARY KEY ({quoted or '...'})")
    return f"CREATE TABLE {name} (\n" + ",\n".join(lines) + "\n)"
