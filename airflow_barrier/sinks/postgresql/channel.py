"""How one process delivers to PostgreSQL: sessions, the ledger, and rows that are staged and merged.

The ledger's row has a number, which goes up by one whenever somebody opens the sink. Who delivers moves the row from
exactly its own number and the position that it began at, in the transaction of the rows: a deliverer that was
superseded moves nothing, and its rows go with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Counts, Remedy, Rows, SinkDeclaration
from airflow_barrier.protocol.errors import (
    BarrierError,
    FencedDelivererError,
    RowRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
    TargetChangedError,
)
from airflow_barrier.sinks.ledger import FORMAT, Deliverer, LedgerRecord, Words, check_others, command, opened
from airflow_barrier.sinks.port import Delivery, RowBatches
from airflow_barrier.sinks.postgresql.rows import Part, columns_of, csv_of, find_refused, has_rows, left_out, named
from airflow_barrier.sinks.postgresql.targets import Target, find_target, in_order, parts_of, unlogged
from airflow_barrier.systems.postgresql import address_of, arguments_of, message_of, no_entry

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import LiteralString, Self

log = logging.getLogger(__name__)

_NAME = "airflow_barrier"
#: Seconds: to wait for somebody else's lock, and until the server ends a session that does nothing.
_LOCK, _IDLE = 30, 600
#: By which a table is found to be a ledger, whatever it is called.
_COMMENT: LiteralString = "airflow_barrier: what sinks were delivered (docs/deliveries.md)"
#: The statements that make a ledger.
_MAKE: tuple[LiteralString, ...] = (
    """CREATE TABLE {} (
    topology text NOT NULL, sink text NOT NULL, format integer NOT NULL, incarnation text NOT NULL,
    place text NOT NULL, targets jsonb NOT NULL, number bigint NOT NULL, deliverer text NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT now(), barrier_id bigint, revision integer,
    barrier_timestamp timestamptz, delivered_at timestamptz, changed jsonb,
    PRIMARY KEY (topology, sink))""",
    f"COMMENT ON TABLE {{}} IS '{_COMMENT}'",
)
_RECORDS: LiteralString = "SELECT topology, sink, incarnation, place, targets, format FROM {} WHERE {}"
#: SQLSTATEs of what the server cannot do, or is not told rightly, whatever the rows are.
_OF_NO_ROW = ("0A", "42", "XX")
#: Tables of a transaction, by which a target is compared with its table.
_ROWS, _FORMER = (sql.Identifier("pg_temp", f"airflow_barrier_{name}") for name in ("rows", "former"))


class PostgreSQLChannel:
    """See :class:`~airflow_barrier.sinks.port.Channel`."""

    def __init__(self, declared: SinkDeclaration, credentials: Credentials) -> None:
        self._declared = declared
        self._credentials = credentials
        self._ledger = sql.Identifier(*parts_of(declared.options["ledger"]))
        self._connection: psycopg.Connection[Any] | None = None
        self._deliverer: Deliverer | None = None
        self._number = 0
        self._empty: LedgerRecord | None = None
        self._record: LedgerRecord | None = None
        self._targets: dict[str, Target] = {}

    def __enter__(self) -> Self:
        at = self._credentials
        try:
            self._connection = psycopg.connect(**arguments_of(at), autocommit=True)
        except psycopg.Error as error:
            raise SinkUnavailableError(no_entry(str(self), at, error)) from None
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def __str__(self) -> str:
        return f"sink {self._declared.name}"

    @property
    def _where(self) -> str:
        return address_of(self._credentials)

    # --- before anything is delivered -------------------------------------------------------------

    def validate(self, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
        """See the port."""
        with self._transaction() as connection:
            self._check_ledger(connection)
            self._targets = self._find_targets(connection, schemas)
        return {table: target.key for table, target in self._targets.items()}

    def _find_targets(self, connection: psycopg.Connection[Any], schemas: Mapping[str, pa.Schema]) -> dict[str, Target]:
        found = {}
        for table, schema in sorted(schemas.items()):
            target, keyed = self._declared.targets[table], self._declared.rows is Rows.CHANGES
            key = self._declared.options["keys"].get(target)
            found[table] = find_target(connection, str(self), table, target, schema, key=key, keyed=keyed)
        return in_order(connection, str(self), found)

    def _check_ledger(self, connection: psycopg.Connection[Any]) -> None:
        schema, name = parts_of(self._declared.options["ledger"])
        row = connection.execute(
            """
            SELECT to_regclass(%(name)s) IS NOT NULL,
                coalesce(has_table_privilege(to_regclass(%(name)s), 'SELECT, INSERT, UPDATE'), false),
                (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %(schema)s),
                (SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(%(name)s)), current_user
            """,
            {"name": f"{_quoted(schema)}.{_quoted(name)}", "schema": schema},
        ).fetchone()
        assert row is not None
        there, usable, may_make, is_unlogged, role = row
        if may_make is None:
            raise SinkRefusedError(
                f"{self}: expected schema {schema} for the ledger in {self._where}, found none; create it, or name "
                "another one: PostgreSQLSink(..., ledger='schema.table')"
            )
        if (there and not usable) or not (there or may_make):
            mend = f"grant SELECT, INSERT, UPDATE on {schema}.{name}"
            if not there:
                mend = f"grant CREATE on schema {schema}, or have its owner make the ledger:\n{self._making(role)}"
            raise SinkRefusedError(
                f"{self}: expected that {role} may keep the ledger {schema}.{name}, found no right to; {mend}"
            )
        if is_unlogged:
            raise SinkRefusedError(  # safety: logged-as-the-ledger
                unlogged(f"{self}: ledger {schema}.{name}", self._ledger.as_string(connection))
            )

    # --- the ledger -------------------------------------------------------------------------------

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        """See the port."""
        self._deliverer = deliverer
        return self._found(None)[1]

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        """See the port."""
        self._deliverer = deliverer
        there, _ = self._found(remedy)  # who is refused ends nobody's session
        self._end_older_sessions()
        if not there:
            self._make_ledger()
        with self._transaction() as connection:
            self._empty = self._empty_record(connection)
            self._lock_targets(connection, self._empty)
            self._on_ledger(
                connection,
                """
                INSERT INTO {} (topology, sink, format, incarnation, place, targets, number, deliverer)
                VALUES ({}, {}, {}, {}, '', '{{}}', 0, '') ON CONFLICT DO NOTHING
                """,
                *self._key,
                FORMAT,
                deliverer.incarnation,
            )
            self._record = record = self._look(connection, self._empty, remedy, lock=True)
            moved = self._on_ledger(
                connection,
                """
                UPDATE {} SET number = number + 1, deliverer = {}, opened_at = now(), incarnation = {}, place = {},
                    targets = {}
                WHERE topology = {} AND sink = {} RETURNING number
                """,
                deliverer.request_key,
                record.incarnation,
                record.place,
                _targets_of(record),
                *self._key,
            ).fetchone()
            assert moved is not None
        self._number = moved[0]
        return record

    @property
    def _key(self) -> tuple[str, str]:
        assert self._deliverer is not None
        return self._deliverer.topology, self._deliverer.sink

    @property
    def _application(self) -> str:
        """The name of sessions in transactions for this sink: PostgreSQL keeps 63 bytes of it."""
        if self._deliverer is None:
            return _NAME
        digest = hashlib.sha256(json.dumps([*self._key, self._declared.options["ledger"]]).encode()).hexdigest()[:16]
        return f"{_NAME} {digest}"

    def _found(self, remedy: Remedy | None) -> tuple[bool, LedgerRecord]:
        """Return whether the ledger is there, and the record to go on from. Raises LedgerError if it is another's."""
        with self._transaction() as connection:
            name = connection.execute("SELECT to_regclass(%s)", (self._ledger.as_string(connection),)).fetchone()
            there, ours = name is not None and name[0] is not None, self._empty_record(connection)
            if not there:
                self._check_others(connection, ours)
                return False, ours
            return True, self._look(connection, ours, remedy)

    def _look(
        self, connection: psycopg.Connection[Any], ours: LedgerRecord, remedy: Remedy | None, lock: bool = False
    ) -> LedgerRecord:
        """Return the record to go on from. Raises LedgerError if the ledger is another's."""
        own = sql.SQL("topology = {} AND sink = {} {}").format(*self._key, sql.SQL("FOR UPDATE" if lock else ""))
        row = self._on_ledger(connection, _RECORDS, own).fetchone()
        self._check_others(connection, ours)
        assert self._deliverer is not None
        return opened(self._deliverer, self._words, None if row is None else _record_of(row), ours, remedy)

    def _check_others(self, connection: psycopg.Connection[Any], ours: LedgerRecord) -> None:
        """Look into all ledgers of the database: the same target has two names, and may have been declared beside
        another ledger.
        """
        assert self._deliverer is not None
        ledgers = connection.execute(
            """
            SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid IN (
                SELECT to_regclass(%(own)s)::oid UNION SELECT objoid FROM pg_description
                WHERE classoid = 'pg_class'::regclass AND objsubid = 0 AND description = %(comment)s)
                AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
            """,
            {"own": self._ledger.as_string(connection), "comment": _COMMENT},
        ).fetchall()
        records = (
            sql.SQL("UNION ALL SELECT {}, topology, sink, incarnation, place, targets, format FROM {}").format(
                number, sql.Identifier(*ledger)
            )
            for number, ledger in enumerate(ledgers)
        )
        nobody = "SELECT 0, '', '', '', '', '{}'::jsonb, 0 WHERE false "
        rows = connection.execute(sql.SQL(nobody) + sql.SQL(" ").join(records)).fetchall()
        own = (parts_of(self._declared.options["ledger"]), self._key)
        for number, *row in rows:
            other, ledger = _record_of(row), ledgers[number]
            if (ledger, (other.topology, other.sink)) != own:
                forget = partial(_forget, sql.Identifier(*ledger))
                check_others(self._deliverer, self._words, ours, [other], ".".join(ledger), forget)

    @property
    def _words(self) -> Words:
        assert self._deliverer is not None
        return Words(
            ledger=f"ledger {self._declared.options['ledger']} in {self._where}",
            place="database",
            target="target",
            another="give this sink another connection or ledger",
            copied="If deliveries move to this copy",
            anew=f"To have it compared with its table: {command('redeliver', self._deliverer)}",
        )

    def _make_ledger(self) -> None:
        made_by_another = suppress(errors.UniqueViolation, errors.DuplicateObject, errors.DuplicateTable)
        with made_by_another, self._transaction() as connection:
            for statement in _MAKE:
                self._on_ledger(connection, statement)

    def _making(self, role: str) -> str:
        """Return the statements by which somebody else makes the ledger for a role that may not."""
        granted = sql.SQL("GRANT SELECT, INSERT, UPDATE ON {} TO {}").format(self._ledger, sql.Identifier(role))
        made = [sql.SQL(statement).format(self._ledger) for statement in _MAKE]
        return ";\n".join(statement.as_string() for statement in (*made, granted))

    def _on_ledger(
        self, connection: psycopg.Connection[Any], statement: LiteralString, *values: Any
    ) -> psycopg.Cursor[Any]:
        """Run a statement whose first ``{}`` is the ledger, and the others the values.

        They are no parameters: a `%` in the ledger's name would be taken for one.
        """
        return connection.execute(sql.SQL(statement).format(self._ledger, *values))

    def _end_older_sessions(self) -> None:
        """A deliverer that was stopped in a transaction keeps the locks of what it was about to commit."""
        with self._transaction() as connection:
            ended = connection.execute(
                """
                SELECT pid, CASE WHEN pg_has_role(usesysid, 'MEMBER') THEN pg_terminate_backend(pid, 5000) END
                FROM pg_stat_activity
                WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()
                """,
                (self._application,),
            ).fetchall()
        for pid, done in ended:
            log.warning(
                "%s: an older session of it, PostgreSQL's process %s, %s",
                self,
                pid,
                "was ended" if done else "could not be ended, and may hold locks",
            )

    def _empty_record(self, connection: psycopg.Connection[Any]) -> LedgerRecord:
        """The record of a sink that has received nothing, in this very database and with these very targets."""
        row = connection.execute(
            """
            SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || oid FROM pg_database
            WHERE datname = current_database()
            """
        ).fetchone()
        assert row is not None
        assert self._deliverer is not None
        identities = {target: self._identity(connection, target) for target in self._declared.targets.values()}
        return LedgerRecord.of(self._deliverer, self._declared, row[0], identities)

    @staticmethod
    def _identity(connection: psycopg.Connection[Any], target: str) -> dict[str, Any]:
        """``part_of``: the table that it is a partition of, else itself."""
        name = sql.Identifier(*parts_of(target)).as_string(connection)
        row = connection.execute(
            "SELECT oid::text, coalesce(pg_partition_root(oid)::oid, oid)::text FROM pg_class "
            "WHERE oid = to_regclass(%s)",
            (name,),
        ).fetchone()
        return {} if row is None else {"oid": row[0], "part_of": row[1]}

    @staticmethod
    def _lock_targets(connection: psycopg.Connection[Any], ours: LedgerRecord) -> None:
        """Lock the targets: of two sinks that open at once, one sees the other's record, whatever ledgers they have."""
        # in one order, whatever the targets are called: else two sessions could wait for each other
        for each in sorted({target.identity.get("part_of", name) for name, target in ours.targets.items()}):
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"{_NAME} {each}",)
            )  # safety: targets-are-locked

    # --- delivering -------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        """See the port."""
        counts: dict[str, Counts] = {}
        table = ""
        try:
            with self._transaction() as connection:
                connection.execute("SET CONSTRAINTS ALL DEFERRED")
                schemas = {table: columns_of(rows) for table, rows in delivery.tables.items()}
                if any(not {*schemas[table].names} <= {*target.columns} for table, target in self._targets.items()):
                    self._targets = self._find_targets(connection, schemas)  # some were dropped since this barrier
                steps = {table: self._apply(connection, target, delivery) for table, target in self._targets.items()}
                for table, step in steps.items():
                    counts[table] = next(step)
                for table, step in reversed(steps.items()):
                    counts[table] = sum(step, counts[table])
                self._move_ledger(connection, delivery, counts)
        except TargetChangedError:
            self._check_newest(delivery)
            raise
        except psycopg.Error as error:  # the row's: what is not, `_transaction` has made errors of ours of
            self._check_newest(delivery)
            raise self._row_refused(error, self._blamed(error) or self._targets[table], delivery) from None
        return counts

    def _apply(self, connection: psycopg.Connection[Any], target: Target, delivery: Delivery) -> Iterator[Counts]:
        """Yield what was changed. Rows to which other targets refer go when it is asked for more: last of all."""
        rows = delivery.tables[target.table]
        columns = target.columns_of(rows.schema.names)
        if delivery.former is not None and not target.key:
            self._check_empty(connection, target)
        if delivery.former is not None and target.key:
            self._stage_differences(connection, target, rows, delivery.former[target.table])
        elif (target.table in delivery.whole or delivery.rows is Rows.APPENDS) and not target.narrow:
            yield Counts(inserted=copy(connection, target.name, columns, rows, target.arrays))
            return
        elif has_rows(rows):
            self._stage(connection, target, rows, target.stage)
        else:
            yield Counts()
            return
        # rows that go make room for unique values of those that come, unless those are referred to first
        changes = [(INSERT, UPDATE), (DELETE,)] if target.is_referred_to else [(DELETE, UPDATE, INSERT)]
        for some in changes:
            yield self._merge(connection, target, columns, some)
        connection.execute(sql.SQL("DROP TABLE {}").format(target.stage))

    def _merge(
        self, connection: psycopg.Connection[Any], target: Target, columns: Sequence[str], changes: Iterable[str]
    ) -> Counts:
        counted = sql.SQL("SELECT {change}, count(*) FROM {stage} GROUP BY 1")
        staged = dict(connection.execute(counted.format(change=sql.Identifier(CHANGE), stage=target.stage)).fetchall())
        done: dict[str, int] = {}
        for change in changes:
            wanted = staged.get(change, 0)
            done[change] = connection.execute(target.merge(change, columns)).rowcount if wanted else 0
            if done[change] != wanted:
                raise self._not_as_staged(connection, target, change, wanted, done[change])  # safety: applied-as-staged
        return Counts(done.get(INSERT, 0), done.get(UPDATE, 0), done.get(DELETE, 0))

    def _stage_differences(
        self, connection: psycopg.Connection[Any], target: Target, rows: RowBatches, former: RowBatches
    ) -> None:
        """Stage what differs between the target and all ``rows``; of rows that are gone, those of ``former`` keys."""
        self._stage(connection, target, rows, _ROWS)
        self._stage(connection, target, former, _FORMER, DELETE)
        connection.execute(target.differences(_ROWS, _FORMER, target.columns_of(rows.schema.names)))
        connection.execute(sql.SQL("DROP TABLE {}, {}").format(_ROWS, _FORMER))

    def _check_empty(self, connection: psycopg.Connection[Any], target: Target) -> None:
        if connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(target.name)).fetchone() is not None:
            raise SinkRefusedError(  # safety: loaded-anew-into-nothing
                f"{self}: expected an empty {target}, since the sink gets what was appended, which no key tells "
                "apart, found rows; empty it, and the next try delivers its table whole"
            )

    def _stage(
        self,
        connection: psycopg.Connection[Any],
        target: Target,
        rows: RowBatches,
        stage: sql.Identifier,
        unsaid: str = INSERT,
    ) -> None:
        """Rows in a table of this transaction, as they were sent; ``unsaid``: what they are if they do not say it.

        Raises RowRefusedError for a value that the target would keep as another.
        """
        columns = target.columns_of(rows.schema.names)
        connection.execute(
            sql.SQL(
                """
                CREATE TEMPORARY TABLE {stage} ON COMMIT DROP AS
                SELECT {unsaid}::text AS {change}, {columns} FROM {target} LIMIT 0;
                ALTER TABLE {stage} ALTER {change} SET DEFAULT {unsaid}
                """
            ).format(
                stage=stage,
                unsaid=sql.Literal(unsaid),
                change=sql.Identifier(CHANGE),
                columns=target.staging(columns),
                target=target.name,
            )
        )
        names = [target.columns.get(name, name) for name in rows.schema.names]  # `_change` is called so
        copy(connection, stage, names, rows, target.arrays)
        connection.execute(sql.SQL("ANALYZE {}").format(stage))
        narrowed = target.narrowed(stage, columns)
        found = None if narrowed is None else connection.execute(narrowed).fetchone()
        if found is not None:
            column, *key = found
            where = f", in the row with {named(target.key, key)}" if target.key else ""
            raise RowRefusedError(  # safety: kept-as-sent
                f"{self}: expected {target} to keep every value of {target.table} as it is, found that column {column} "
                f"({target.narrow[column]}) would cut or round one{where}. Nothing of this barrier was delivered. "
                "Widen the column, or correct the row by a revision; then clear the task"
            )

    def _move_ledger(
        self, connection: psycopg.Connection[Any], delivery: Delivery, counts: Mapping[str, Counts]
    ) -> None:
        assert self._record is not None and self._empty is not None, "open() comes before deliver()"  # noqa: PT018
        record = self._record.delivered(self._empty, delivery.position)
        moved = self._on_ledger(
            connection,
            """
            UPDATE {} SET barrier_id = {}, revision = {}, barrier_timestamp = {}, delivered_at = clock_timestamp(),
                changed = {}, targets = {}
            WHERE {} RETURNING true
            """,
            delivery.barrier_id,
            delivery.revision,
            delivery.timestamp,
            json.dumps({table: vars(count) for table, count in counts.items()}),
            _targets_of(record),
            self._as_we_left_it(delivery),
        ).fetchone()
        self._check_ours(moved, delivery)

    def _check_newest(self, delivery: Delivery) -> None:
        """Raise FencedDelivererError if a newer deliverer opened the sink: the conflicting rows are then its rows, not
        an error of the target.
        """
        with self._transaction() as connection:
            statement = "SELECT true FROM {} WHERE {}"
            self._check_ours(self._on_ledger(connection, statement, self._as_we_left_it(delivery)).fetchone(), delivery)

    def _as_we_left_it(self, delivery: Delivery) -> sql.Composed:
        """The condition: the ledger's row has our number, and the position that the delivery began at."""
        after = delivery.after
        still = [
            sql.SQL("topology = {} AND sink = {}").format(*self._key),
            sql.SQL("number = {}").format(self._number),  # safety: ledger-fences-deliverers
            sql.SQL("(barrier_id, revision) IS NOT DISTINCT FROM ({}::bigint, {}::integer)").format(
                None if after is None else after.barrier_id, None if after is None else after.revision
            ),  # safety: ledger-moves-from-its-position
        ]
        return sql.SQL(" AND ").join(still)

    def _check_ours(self, row: tuple[Any, ...] | None, delivery: Delivery) -> None:
        if row is None:
            raise FencedDelivererError(  # safety: ledger-fences-deliverers
                f"{self._deliverer}: expected to be its only deliverer (number {self._number}, after {delivery.after}"
                f"), found that another one has opened it since; nothing of {delivery.position} was delivered by this "
                "one"
            )

    # --- what went wrong --------------------------------------------------------------------------

    def _not_as_staged(
        self, connection: psycopg.Connection[Any], target: Target, change: str, wanted: int, done: int
    ) -> TargetChangedError | errors.DataError:
        key = None if change == INSERT else connection.execute(target.unmatched(change)).fetchone()
        if key is None:  # nothing is amiss but what the target did
            return left_out()
        return TargetChangedError(
            f"{self}: expected to {change} {wanted} rows of {target}, found {done} that were there, for instance "
            f"{named(target.key, key)}; others have changed rows that were delivered. Put them back as they were, or "
            f"have the target compared with the table: airflow-barrier sink redeliver {self._key[0]} {self._key[1]} "
            "--reason ..."
        )

    def _blamed(self, error: psycopg.Error) -> Target | None:
        """The target that the server names: what a constraint says at the end may be of any of them."""
        name = f"{error.diag.schema_name}.{error.diag.table_name}"
        return next((target for target in self._targets.values() if target.target == name), None)

    def _row_refused(self, error: psycopg.Error, target: Target, delivery: Delivery) -> RowRefusedError:
        """The error once more, naming the row."""
        said, detail = _of_a_row(error), error.diag.message_detail
        if detail is not None and detail.startswith("Key "):
            said = f"{said}: {detail.rstrip('.')}"
        elif (refused := self._refused(error, target, delivery)) is not None:
            said = f"{said}, in the row with {named(list(refused), list(refused.values()))}"
        mend = "Widen the column, drop the constraint or the trigger"
        if isinstance(error, (errors.UniqueViolation, errors.ForeignKeyViolation, errors.ExclusionViolation)):
            mend = "Make the constraint DEFERRABLE if it holds once all of the barrier is there, drop it"
        return RowRefusedError(
            f"{self}: expected {target} to take every row of {delivery.position} of {target.table}, found one that it "
            f"refuses: {said}. Nothing of this barrier was delivered. {mend}, or correct the row by a revision; then "
            "clear the task"
        )

    def _refused(self, error: psycopg.Error, target: Target, delivery: Delivery) -> dict[str, Any] | None:
        """The key, or else all columns, of the row that the target refuses: it is given fewer and fewer, for nothing.

        None: each row by itself is fine, and which one collides with which the server has said.
        """
        with self._transaction(keep=False) as connection:

            def is_refused(batch: pa.RecordBatch) -> bool:
                former = delivery.former and {target.table: Part(batch.slice(0, 0))}  # all else stays
                try:
                    with connection.transaction():
                        part = replace(delivery, tables={target.table: Part(batch)}, former=former)
                        for _ in self._apply(connection, target, part):
                            pass
                        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                except psycopg.Error as found:
                    return isinstance(found, type(error))
                return False

            row = find_refused(delivery.tables[target.table], is_refused)
        return row if row is None or not target.key else {column: row[column] for column in target.key}

    @contextmanager
    def _transaction(self, keep: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """One transaction, rolled back unless ``keep``; what the server says of a row is raised as it is.

        What is set holds for the transaction alone: behind a pooler the session is somebody else's before and after it.
        """
        connection = self._connection
        assert connection is not None
        try:
            with connection.transaction(force_rollback=not keep):
                connection.execute(
                    "SELECT set_config('lock_timeout', %s, true), "
                    "set_config('idle_in_transaction_session_timeout', %s, true), "
                    "set_config('application_name', %s, true), set_config('TimeZone', 'UTC', true), "
                    # what COPY is sent; without the second, a NULL in an array is a text
                    "set_config('client_encoding', 'UTF8', true), set_config('array_nulls', 'on', true), "
                    # or COMMIT is answered before it is durable; the others are stronger
                    "set_config('synchronous_commit', "
                    "replace(current_setting('synchronous_commit'), 'off', 'on'), true)",
                    (f"{_LOCK}s", f"{_IDLE}s", self._application),
                )
                yield connection
        except psycopg.Error as error:
            raise self._ours(error) from None
        except BarrierError:
            raise
        except Exception as error:
            # A pooler that has lost its session says so beside what the server says. Of one answer too many psycopg
            # makes errors of any kind.
            if not connection.closed:
                raise
            raise self._unavailable("the end of the session") from error

    def _ours(self, error: psycopg.Error) -> Exception:
        """The error in our words, or as it is if it is about a row, or about a ledger that another one made."""
        if _is_raised(error) or isinstance(error, errors.ProgramLimitExceeded):  # a value too long for an index
            return error
        if isinstance(error, (errors.DuplicateTable, errors.DuplicateObject)):
            return error
        if isinstance(error, errors.LockNotAvailable):
            return SinkUnavailableError(
                f"{self}: expected no lock to be held longer than {_LOCK} s, found one: {message_of(error)}; "
                f"{self._holders()}; it is waited for again by the next try"
            )
        if isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure)):
            return SinkUnavailableError(
                f"{self}: expected to be the only writer of the rows that it delivers, found another one in the way: "
                f"{message_of(error)}; nothing was delivered, and the next try does it again"
            )
        if isinstance(error, errors.InsufficientPrivilege):
            return SinkRefusedError(
                f"{self}: expected that {self._credentials.login} may do what a delivery takes, found: "
                f"{message_of(error)}; grant it"
            )
        assert self._connection is not None
        if isinstance(error, psycopg.OperationalError) or self._connection.closed:
            return self._unavailable(message_of(error))
        if (error.sqlstate or "").startswith(_OF_NO_ROW):
            return SinkRefusedError(
                f"{self}: expected the database to do what a delivery takes, found: {message_of(error)}; nothing was "
                "delivered. Mend that, then clear the task"
            )
        return error

    def _unavailable(self, found: str) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self}: expected PostgreSQL at {self._where} to answer, found: {found}; whether this was delivered its "
            "ledger says to the next try"
        )

    def _holders(self) -> str:
        """Return the sessions that work in these tables, for a person to look at."""
        assert self._connection is not None
        with suppress(psycopg.Error):
            rows = self._connection.execute(
                """
                SELECT DISTINCT a.pid, a.application_name, a.usename, coalesce(a.state, 'its state is not shown')
                FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                WHERE l.relation = ANY(%s::oid[]) AND a.pid <> pg_backend_pid() LIMIT 5
                """,
                ([target.oid for target in self._targets.values()],),
            ).fetchall()
            if rows:
                return "; ".join(
                    f"process {pid} ({name or 'no name'}, {user}, {state})" for pid, name, user, state in rows
                )
        return "no session is seen that works in its targets"


def copy(
    connection: psycopg.Connection[Any],
    name: sql.Composable,
    columns: Sequence[str],
    rows: Iterable[pa.RecordBatch],
    arrays: Container[str],
) -> int:
    """COPY batch by batch; returns how many rows. ``arrays``: those of the table's columns that are arrays there.

    Raises DataError, as for a row that is refused, if not all of them arrived.
    """
    sent = 0
    with connection.cursor() as cursor:
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            name, sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with cursor.copy(statement) as stream:
            for batch in rows:
                stream.write(csv_of(batch, arrays))
                sent += batch.num_rows
        if cursor.rowcount != sent:
            raise left_out()  # safety: loaded-as-sent
    return sent


def _record_of(row: Sequence[Any]) -> LedgerRecord:
    names = ("topology", "sink", "incarnation", "place", "targets", "format")
    return LedgerRecord.from_json(dict(zip(names, row, strict=True)))


def _forget(ledger: sql.Identifier, other: LedgerRecord, target: str) -> str:
    statement = sql.SQL("UPDATE {} SET targets = targets - {} WHERE topology = {} AND sink = {}")
    said = statement.format(ledger, target, other.topology, other.sink).as_string()
    return f"; if {other} delivers to it no more, empty {target}, and then have the ledger forget it: {said}"


def _targets_of(record: LedgerRecord) -> str:
    return json.dumps(record.to_json()["targets"])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _of_a_row(error: psycopg.Error) -> str:
    """Return what the server says of a row, without the row: its own messages quote values behind a colon, and those
    that somebody's code raises, anywhere.
    """
    primary = error.diag.message_primary
    if _is_raised(error):
        return f"{type(error).__name__} ({error.sqlstate}), which a trigger raises; what it says is in the server's log"
    return str(error) if primary is None else primary.partition(":")[0]


def _is_raised(error: psycopg.Error) -> bool:
    """Return True if PL/pgSQL's RAISE or ASSERT said so, in whatever words and by whatever SQLSTATE."""
    return error.diag.source_function in ("exec_stmt_raise", "exec_stmt_assert")
