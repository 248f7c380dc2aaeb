"""One session in the database of a source: what its server is like, its slot, and what it has to give."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import BarrierError, SourceDataError, SourceUnavailableError
from airflow_barrier.sources.postgresql.pgoutput import Relation, RelationColumn
from airflow_barrier.systems.postgresql import address_of, arguments_of, message_of, no_entry

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: Seconds to wait for somebody else's lock; and that a new slot, and a copy, may wait for transactions that are open.
_LOCK, _OPEN = 30, 120
#: Messages, or copied rows, that come over at once.
_FETCHED = 5_000
#: Numbers of types from here on are of those that somebody made.
_FIRST_OF_USERS = 16_384
#: How the server says that decoding has all transactions from there on.
_CONSISTENT = re.compile(r"logical decoding found consistent point at ([0-9A-F]+/[0-9A-F]+)")
ALL_ROWS = sql.SQL("")


@dataclass(frozen=True)
class Server:
    """``system``: the identifier that a database system and its standbys share. ``timeline``: a failover and a restore
    begin another one. ``written``: up to where the log is on disk.
    """

    system: str
    timeline: int
    written: int

    @property
    def history(self) -> str:
        """The name of its log, which tells it from all others."""
        return f"{self.system}.{self.timeline}"


@dataclass(frozen=True)
class Slot:
    """``confirmed``: before which nothing can be had any more. ``status``: the server's `wal_status`; ``held``: bytes
    of log that it keeps for the slot, ``left``: how many more it may be until the slot is lost, None: any.
    """

    name: str
    plugin: str
    database: str
    confirmed: int
    status: str
    held: int
    left: int | None


class Database:
    """A context manager: a session in autocommit, with the forms of values that :mod:`.types` reads."""

    def __init__(self, what: str, credentials: Credentials) -> None:
        self._what = what
        self._at = credentials
        self._connection: psycopg.Connection[Any] | None = None
        self._ancestors: dict[int, Mapping[int, int]] = {}

    def __str__(self) -> str:
        return f"{self._what}, {address_of(self._at)}"

    def __enter__(self) -> Self:
        try:
            self._connection = psycopg.connect(**arguments_of(self._at), autocommit=True)
            self._connection.execute(
                "SELECT set_config(name, value, false) FROM (VALUES ('TimeZone', 'UTC'), ('DateStyle', 'ISO'), "
                "('IntervalStyle', 'postgres'), ('bytea_output', 'hex'), ('extra_float_digits', '1'), "
                "('statement_timeout', '0'), ('search_path', ''), ('idle_in_transaction_session_timeout', '0'), "
                "('synchronous_commit', 'local'), ('lock_timeout', %s)) AS form (name, value)",
                (f"{_LOCK}s",),
            )
        except psycopg.Error as error:
            raise SourceUnavailableError(no_entry(self._what, self._at, error)) from None
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    @property
    def _session(self) -> psycopg.Connection[Any]:
        assert self._connection is not None
        return self._connection

    def rows(self, query: sql.Composed | str, arguments: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._said():
            return self._session.execute(query, arguments).fetchall()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn the server's errors into ours, which quote no row."""
        try:
            yield
        except psycopg.Error as error:
            raise self._error(error) from None

    def _error(self, error: psycopg.Error) -> BarrierError:
        found = message_of(error)
        if isinstance(error, errors.ObjectInUse):
            return SourceUnavailableError(
                f"{self}: expected the slot for itself, found: {found}. Each slot has one reader: see who else reads "
                "it (pg_stat_replication, pg_stat_activity); it is tried again"
            )
        if isinstance(error, errors.QueryCanceled):
            return SourceUnavailableError(
                f"{self}: expected an answer in time, found: {found}. A new slot waits for all transactions that are "
                "open (pg_stat_activity, by xact_start): end the oldest; it is tried again"
            )
        if isinstance(error, errors.InsufficientPrivilege):
            return SourceDataError(f"{self}: expected {self._at.login} to have the rights, found: {found}; grant them")
        if isinstance(error, (errors.ObjectNotInPrerequisiteState, errors.UndefinedObject, errors.UndefinedTable)):
            return SourceDataError(f"{self}: expected slot, publication and tables as declared, found: {found}")
        return SourceUnavailableError(f"{self}: expected PostgreSQL to answer, found: {found}; it is tried again")

    def lock(self, name: str) -> None:
        """Be the only one who takes changes out of the slot, or for the folder, of that name, as long as the session
        lasts. Who has just ended is waited for: the server gives up its lock a moment later.
        """
        with self._said():
            try:
                self._session.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (name,))
            except errors.LockNotAvailable:
                raise SourceUnavailableError(
                    f"{self}: expected {name} for itself, found that another task takes its changes out, for {_LOCK} s "
                    "at least; it is tried again"
                ) from None

    # --- the server, and what is in it ------------------------------------------------------------

    def server(self) -> Server:
        # the name of the file that is written has the timeline of now; the control file has it of the last checkpoint
        ((system, file, written),) = self.rows(
            "SELECT system_identifier::text, pg_walfile_name(pg_current_wal_lsn()), pg_current_wal_flush_lsn()::text "
            "FROM pg_control_system()"
        )
        return Server(system, int(file[:8], 16), position(written))

    def shared(self, server: Server, history: str) -> int | None:
        """Return up to where the log of ``history`` is the server's log, too. None: it is of another system, or of a
        timeline that the server's does not come from.
        """
        if history == server.history:
            return server.written
        system, _, timeline = history.rpartition(".")
        if system != server.system:
            return None
        if server.timeline not in self._ancestors:
            self._ancestors[server.timeline] = self._ancestors_of(server.timeline)
        return self._ancestors[server.timeline].get(int(timeline))

    def _ancestors_of(self, timeline: int) -> Mapping[int, int]:
        """The timelines that a timeline comes from, and the position at which its log left the log of each."""
        if timeline == 1:
            return {}
        try:
            with (
                psycopg.connect(**arguments_of(self._at), autocommit=True, replication="database") as session,
                session.cursor() as cursor,
            ):
                cursor.execute(f"TIMELINE_HISTORY {timeline}")
                found = cursor.pgresult.get_value(0, 1) if cursor.pgresult else None
        except psycopg.Error as error:
            raise SourceUnavailableError(
                f"{self}: expected {self._at.login} to learn by a replication connection (TIMELINE_HISTORY) where "
                f"timeline {timeline} comes from, since another server has taken over, found: {message_of(error)}; see "
                "max_wal_senders and pg_hba.conf, or have the source begin anew: airflow-barrier source resnapshot"
            ) from None
        lines = [line.partition("#")[0].split() for line in (found or b"").decode(errors="replace").splitlines()]
        return {int(words[0]): position(words[1]) for words in lines if words}

    def consistent_from(self, slot: str, publication: str, until: int) -> int | None:
        """Return the position from which the slot has all transactions, None: no such position up to ``until``.

        Decoding begins with the snapshot that the server saved for the slot. A slot that was copied comes without it,
        and then the server leaves out, silently, what was open until it has a snapshot of its own. It tells where that
        is in a message only.
        """
        told: list[str] = []

        def hear(message: errors.Diagnostic) -> None:
            told.extend(_CONSISTENT.findall(message.message_primary or ""))

        self.rows("SELECT set_config('client_min_messages', 'log', false)")
        self._session.add_notice_handler(hear)
        for _ in self.messages(slot, publication, until, None):
            pass
        self._session.remove_notice_handler(hear)
        self.rows("SELECT set_config('client_min_messages', 'notice', false)")
        return position(told[-1]) if told else None

    def slot(self, name: str) -> Slot | None:
        """None: there is none of that name."""
        rows = self.rows(
            "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, "
            "pg_current_wal_lsn() - restart_lsn, safe_wal_size "
            "FROM pg_replication_slots WHERE slot_name = %(name)s",
            {"name": name},
        )
        if not rows:
            return None
        ((plugin, database, confirmed, status, held, left),) = rows
        found = position(confirmed) if confirmed else 0
        return Slot(name, plugin or "", database or "", found, status or "lost", int(held or 0), left)

    def relation(self, table: str) -> tuple[Relation, str]:
        """The table with the columns that its changes have, as it is now, and its kind in pg_class. Raises
        SourceDataError.
        """
        rows = self.rows(
            """
            SELECT c.relreplident, c.relkind, a.attname, a.atttypid, a.atttypmod,
                CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false
                    ELSE coalesce(a.attnum = ANY (i.indkey), false) END
            FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            LEFT JOIN pg_index i ON i.indrelid = c.oid
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
            WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND c.relkind IN ('r', 'p')
            ORDER BY a.attnum
            """,
            dict(zip(("schema", "name"), table.split(".", 1), strict=True)),
        )
        if not rows:
            raise SourceDataError(  # safety: changes-can-be-had
                f"{self}: expected table {table}, found none; correct the declaration"
            )
        columns = tuple(RelationColumn(name, key, oid, modifier) for _, _, name, oid, modifier, key in rows)
        return Relation(table, rows[0][0], columns), rows[0][1]

    def base_type(self, oid: int, modifier: int) -> tuple[int, int]:
        """The type that a domain stands on; another one itself."""
        while oid >= _FIRST_OF_USERS:
            rows = self.rows(
                "SELECT typbasetype, typtypmod FROM pg_type WHERE oid = %(oid)s AND typtype = 'd'", {"oid": oid}
            )
            if not rows:
                break
            ((oid, modifier),) = rows
        return oid, modifier

    def make_slot(self, name: str) -> None:
        """Its changes begin once the transactions that are open now have ended."""
        self.rows("SELECT set_config('statement_timeout', %(limit)s, false)", {"limit": f"{_OPEN}s"})
        self.rows("SELECT pg_create_logical_replication_slot(%(name)s, 'pgoutput')", {"name": name})
        self.rows("SELECT set_config('statement_timeout', '0', false)")
        log.info("%s: made slot %s", self, name)

    def make_publication(self, name: str, tables: Sequence[str]) -> None:
        with self._said():
            self._session.execute(create_publication(name, tables))
        log.info("%s: made publication %s for %s", self, name, ", ".join(tables))

    def drop_slot(self, name: str) -> None:
        self.rows(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %(name)s",
            {"name": name},
        )
        log.info("%s: dropped slot %s", self, name)

    def drop_publication(self, name: str) -> None:
        with self._said():
            self._session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))

    def advance(self, slot: str, to: int) -> None:
        """Let the server drop what is before ``to``. Nothing, if somebody else has let go of more."""
        confirmed = self.slot(slot)
        if confirmed is not None and confirmed.confirmed < to:
            self.rows("SELECT pg_replication_slot_advance(%(slot)s, %(to)s::pg_lsn)", {"slot": slot, "to": lsn(to)})

    # --- what it has to give ----------------------------------------------------------------------

    def messages(self, slot: str, publication: str, until: int, most: int | None) -> Generator[bytes, None, None]:
        """The slot's messages, as long as commits stand before ``until``; about ``most`` of them, up to a commit. The
        slot stays where it is.
        """
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(until)s::pg_lsn, %(most)s, "
            "'proto_version', '1', 'publication_names', %(publication)s)"
        )
        publication = '"' + publication.replace('"', '""') + '"'
        told = {"slot": slot, "until": lsn(until), "most": most, "publication": publication}
        with self._said(), self._session.transaction(), self._session.cursor("changes", binary=True) as cursor:
            cursor.itersize = _FETCHED
            cursor.execute(query, told)
            for (data,) in cursor:
                yield data

    def wait_settled(self) -> None:
        """Wait until the transactions that are being committed have ended.

        One of them may be before the slot already, by where its commit stands in the log, and still be in no snapshot:
        between the two it waits for the disk, or a standby. So each that is open now is waited for, but for those that
        are seen to do nothing.
        """
        end = monotonic() + _OPEN
        # a number of its own: a snapshot ends at the last transaction that has ended, before those that are open
        ((following,),) = self.rows("SELECT pg_current_xact_id()::text::bigint")
        query = """
            SELECT xid FROM (SELECT pg_snapshot_xip(pg_current_snapshot())::text::bigint AS xid) AS open
            WHERE xid < %(following)s AND NOT EXISTS (
                SELECT FROM pg_stat_activity
                WHERE backend_xid::text::bigint = xid %% 4294967296 AND state LIKE 'idle in transaction%%'
            )
            """
        while found := self.rows(query, {"following": following}):
            if monotonic() > end:
                raise SourceUnavailableError(
                    f"{self}: expected the transactions that were open when its tables were to be copied to end within "
                    f"{_OPEN} s, found that {len(found)} are not, such as {found[0][0]}: see pg_stat_activity, by "
                    f"xact_start, and end the oldest. GRANT pg_read_all_stats TO {self._at.login}, and those that do "
                    "nothing are not waited for. It is tried again"
                )
            sleep(0.02)

    @contextmanager
    def snapshot(self) -> Iterator[tuple[str, int]]:
        """A transaction that sees the database as it is now: its snapshot, and a position of the log behind all that it
        sees.
        """
        with self._said(), self._session.transaction():
            self._session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            row = self._session.execute(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
            ).fetchone()
            assert row is not None
            yield row[0], position(row[1])

    def copied(
        self, table: str, columns: Sequence[str], where: sql.Composable, *, only: bool
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a table that ``where`` names, values as text."""
        query = sql.SQL("COPY (SELECT {} FROM {} {} {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL("ONLY" if only else ""), identifier(table), where
        )
        with self._said(), self._session.cursor() as cursor, cursor.copy(query) as copy:
            yield from copy.rows()

    def write(self, until: int) -> None:
        """Have the log up to there on disk: of what is not nothing can be read."""
        if self.server().written >= until:
            return
        # a commit takes all along that stands before it, and nothing else does for seconds where nobody commits
        self.rows("SELECT pg_logical_emit_message(true, 'airflow_barrier', '')")


def lsn(at: int) -> str:
    """A position of the log as PostgreSQL writes it.

    >>> lsn(0x1925C10), position("0/1925C10") == 0x1925C10
    ('0/1925C10', True)
    """
    return f"{at >> 32:X}/{at & 0xFFFFFFFF:X}"


def position(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def identifier(table: str) -> sql.Identifier:
    """The quoted name of ``schema.table``."""
    return sql.Identifier(*table.split(".", 1))


def create_publication(name: str, tables: Sequence[str]) -> sql.Composed:
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
        sql.Identifier(name), sql.SQL(", ").join(map(identifier, tables))
    )
