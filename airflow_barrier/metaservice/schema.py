"""The tables of the MetaService, as SQLAlchemy Core. How a database gets them stands in ``migrations/``.

All names begin with ``barrier_``, because the embedded database also holds Iceberg's catalog tables.

The key column ``line`` says where a row belongs: 0 is what stands, r > 0 what revision r stages, and -r what it
replaced when it was published. ``computed_in`` is the revision that computed it, which never changes (0: none).
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.secrets import without_secrets


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite has no such type: there it is text of fixed form, which sorts as time does."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(TIMESTAMP(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(timezone.utc)
        # The database's own clock writes milliseconds; Python 3.10 parses three or six digits, nothing between.
        # Parsed with its zone it takes an eighth of what it takes to replace that afterwards.
        return datetime.fromisoformat(value + "+00:00")


class Line(TypeDecorator[str]):
    """Text on one line: what no database, log or terminal holds well is escaped, in what is asked for as well.

    Names have been refused before if they hold such characters; reasons, actors and keys come from anywhere, such as
    the message of an error, and a NUL in one must not keep PostgreSQL from writing down that something failed.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else one_line(value)


class Reason(Line):
    """The reason for a failure or an act: others' errors stand in it, which may quote passwords."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return super().process_bind_param(None if value is None else without_secrets(value), dialect)


class Key(Line):
    """A key also asked for by how it begins: it sorts by its characters on every database, whatever its locale."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())


class DatabaseNow(FunctionElement[datetime]):
    """The database's clock at this statement: workers' clocks disagree, and delays are differences of these times."""

    type = UtcTime()
    inherit_cache = True


@compiles(DatabaseNow, "sqlite")
def _sqlite_now(element: DatabaseNow, compiler: Any, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(DatabaseNow, "postgresql")
def _postgresql_now(element: DatabaseNow, compiler: Any, **kw: Any) -> str:
    return "clock_timestamp()"


class DatabaseLater(FunctionElement[datetime]):
    """The database's clock, and so many seconds more: ``DatabaseLater(bindparam("seconds"))``."""

    type = UtcTime()
    inherit_cache = True


@compiles(DatabaseLater, "sqlite")
def _sqlite_later(element: DatabaseLater, compiler: Any, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {compiler.process(element.clauses, **kw)} || ' seconds')"


@compiles(DatabaseLater, "postgresql")
def _postgresql_later(element: DatabaseLater, compiler: Any, **kw: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)})"


metadata = MetaData()

# SQLite counts up only INTEGER keys by itself.
_Id = BigInteger().with_variant(Integer(), "sqlite")
# Written as SQL text, so that the planners see that a query asks for what these partial indexes hold.
NOT_ABORTED = text("state <> 'ABORTED'")
#: Maintenance barriers, which have none of their own, aside.
ONE_A_TIMESTAMP = text("state <> 'ABORTED' AND kind <> 'MAINTENANCE'")
UNCOMMITTED = text("state IN ('OPEN', 'PRECOMMIT', 'COMMITTING', 'BLOCKED')")
THINNED = text("thinned_at IS NOT NULL AND expired_at IS NULL")
READABLE = text("state = 'COMMIT' AND expiring_at IS NULL")
UNTRIMMED = text("trimmed_at IS NULL AND (expired_at IS NOT NULL OR state = 'ABORTED')")
_PUBLISHING = text("state IN ('COMMITTING', 'BLOCKED')")
REVISION_UNDER_WAY = text("state IN ('STAGING', 'COMMITTING')")
#: The same in a query beside barriers, which have states too.
REVISION_UNDER_WAY_OF = text("barrier_revision.state IN ('STAGING', 'COMMITTING')")
IDLE = text("idle_session IS NOT NULL")
_LIVE = text("state IN ('REQUESTED', 'RUNNING', 'CLOSED', 'PROCESSED')")


def _json(name: str, nullable: bool = False) -> Column[Any]:
    return Column(name, JSON(none_as_null=True), nullable=nullable)


def _time(name: str, nullable: bool = True) -> Column[datetime]:
    return Column(name, UtcTime, nullable=nullable)


def _of_barrier() -> ForeignKeyConstraint:
    key = ["topology", "line", "barrier_id"]
    return ForeignKeyConstraint(key, [f"barrier_barrier.{column}" for column in key])


#: One row. A topology begins with this incarnation, and gets another one whenever it is recovered.
service = Table(
    "barrier_service",
    metadata,
    Column("service_id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", Line, nullable=False),
    _time("created_at", nullable=False),
)

#: The row that every change of a topology's barriers locks first.
topology = Table(
    "barrier_topology",
    metadata,
    Column("name", Line, primary_key=True),
    Column("version", Integer, nullable=False),
    _time("created_at", nullable=False),
    # it stands in the stamp of every snapshot that is staged for the topology
    Column("incarnation", Line, nullable=False),
    # how often somebody has locked it: those who wait look again once it has grown
    Column("changes", BigInteger, nullable=False, server_default="0"),
)

topology_version = Table(
    "barrier_topology_version",
    metadata,
    Column("topology", Line, ForeignKey("barrier_topology.name"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    _json("definition"),
    Column("digest", Line, nullable=False),
    _time("created_at", nullable=False),
)

#: What one DAG declares; a topology is the union of its fragments.
fragment = Table(
    "barrier_fragment",
    metadata,
    Column("topology", Line, ForeignKey("barrier_topology.name"), primary_key=True),
    Column("owner", Line, primary_key=True),
    _json("jobs"),
    _time("registered_at", nullable=False),
)

#: Jobs that a person has taken out, and that their DAG's runs must not register again. ``job`` "": all of the DAG's.
withdrawn = Table(
    "barrier_withdrawn",
    metadata,
    Column("topology", Line, ForeignKey("barrier_topology.name"), primary_key=True),
    Column("owner", Line, primary_key=True),
    Column("job", Line, primary_key=True),
    _time("at", nullable=False),
    Column("actor", Line, nullable=False),
    Column("reason", Reason, nullable=False),
    _json("jobs"),
)

table_claim = Table(
    "barrier_table_claim",
    metadata,
    Column("table_name", Line, primary_key=True),
    Column("topology", Line, ForeignKey("barrier_topology.name"), nullable=False),
)

barrier = Table(
    "barrier_barrier",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("barrier_id", BigInteger, primary_key=True, autoincrement=False),
    _time("timestamp", nullable=False),
    Column("state", Line, nullable=False),
    Column("predecessor", BigInteger),
    Column("topology_version", Integer, nullable=False),
    Column("kind", Line, nullable=False),
    # The run that opened it; of the baseline, which no run opened, empty.
    Column("run_dag_id", Line, nullable=False),
    Column("run_id", Line, nullable=False),
    Column("run_kind", Line, nullable=False),
    _time("run_logical_date"),
    Column("timestamp_from", Line, nullable=False),
    _time("opened_at", nullable=False),
    _time("precommit_at"),
    _time("committing_at"),
    _time("commit_at"),
    _time("aborted_at"),
    # Retention: the tag policy keeps it no longer; no lease is granted any more; its tags are gone; its details too.
    _time("thinned_at"),
    _time("expiring_at"),
    _time("expired_at"),
    _time("trimmed_at"),
    # How often work that counted at this barrier was rolled back: an answer of before is out of date.
    Column("rollbacks", Integer, nullable=False, server_default="0"),
    Column("computed_in", Integer, nullable=False, server_default="0"),
    Column("reason", Reason),
    Column("max_open", Integer),
    ForeignKeyConstraint(
        ["topology", "topology_version"], ["barrier_topology_version.topology", "barrier_topology_version.version"]
    ),
    # Holds what is in flight only. An index over all states would tempt planners to sort the whole history by it.
    Index(
        "barrier_barrier_uncommitted",
        "topology",
        "line",
        "barrier_id",
        sqlite_where=UNCOMMITTED,
        postgresql_where=UNCOMMITTED,
    ),
    # These as well: what is to expire, what can be read, which retention keeps few, and what is to be trimmed.
    Index(
        "barrier_barrier_thinned",
        "topology",
        "line",
        "barrier_id",
        sqlite_where=THINNED,
        postgresql_where=THINNED,
    ),
    Index(
        "barrier_barrier_readable",
        "topology",
        "line",
        "barrier_id",
        sqlite_where=READABLE,
        postgresql_where=READABLE,
    ),
    Index(
        "barrier_barrier_untrimmed",
        "topology",
        "line",
        "barrier_id",
        sqlite_where=UNTRIMMED,
        postgresql_where=UNTRIMMED,
    ),
    Index("barrier_barrier_by_run", "topology", "line", "run_dag_id", "run_id", "barrier_id"),
    Index(
        "barrier_barrier_by_time",
        "topology",
        "line",
        "timestamp",
        "barrier_id",
        sqlite_where=NOT_ABORTED,
        postgresql_where=NOT_ABORTED,
    ),
    # Two rules that hold whatever the code does: one barrier a timestamp, one publisher a topology.
    Index(  # safety: one-barrier-a-timestamp
        "barrier_barrier_one_a_timestamp",
        "topology",
        "line",
        "timestamp",
        unique=True,
        sqlite_where=ONE_A_TIMESTAMP,
        postgresql_where=ONE_A_TIMESTAMP,
    ),
    Index(  # safety: one-publisher-index
        "barrier_barrier_one_publisher",
        "topology",
        unique=True,
        sqlite_where=_PUBLISHING,
        postgresql_where=_PUBLISHING,
    ),
)

cut = Table(
    "barrier_cut",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("barrier_id", BigInteger, primary_key=True, autoincrement=False),
    Column("source", Line, primary_key=True),
    _json("start_position", nullable=True),
    _json("end_position"),
    # None: it is put off.
    _time("made_at"),
    _of_barrier(),
    Index("barrier_cut_by_source", "topology", "line", "source", "barrier_id"),
)

#: Its key says that an item is in the cut of one barrier only; an abort deletes the rows, which frees the items.
cut_item = Table(
    "barrier_cut_item",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("source", Line, primary_key=True),
    Column("item", Text, primary_key=True),  # safety: item-in-one-cut-key
    Column("barrier_id", BigInteger, nullable=False),
    _of_barrier(),
    Index("barrier_cut_item_by_barrier", "topology", "line", "barrier_id", "source"),
)

#: What the tables of a job held already when it joined, at the first barrier that has it.
job_start = Table(
    "barrier_job_start",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("barrier_id", BigInteger, primary_key=True, autoincrement=False),
    Column("job", Line, primary_key=True),
    _json("start_from", nullable=True),
    _json("baseline"),
    _json("previous"),
    _json("externals"),
    _of_barrier(),
)

#: One row per table and barrier: the map that readers follow. Rows at barrier 0 are the baseline.
table_progress = Table(
    "barrier_table_progress",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("barrier_id", BigInteger, primary_key=True, autoincrement=False),
    Column("table_name", Line, primary_key=True),
    Column("job", Line),
    Column("state", Line, nullable=False),
    Column("snapshot_id", BigInteger),
    Column("attempt_id", BigInteger),
    Column("carried_from", BigInteger),
    Column("expected_snapshot", BigInteger),
    # What a person decided about a table that moved after the decision to commit: whose snapshot stands, and which
    # one is set aside for it.
    Column("decision", Line),
    Column("set_aside", BigInteger),
    _time("processed_at"),
    _time("written_at"),
    _of_barrier(),
)

attempt = Table(
    "barrier_attempt",
    metadata,
    Column("attempt_id", _Id, primary_key=True),
    Column("topology", Line, nullable=False),
    Column("line", Integer, nullable=False),
    Column("barrier_id", BigInteger, nullable=False),
    Column("job", Line, nullable=False),
    Column("state", Line, nullable=False),
    Column("request_key", Key, nullable=False),
    Column("generation", Line, nullable=False),
    Column("incarnation", Line, nullable=False),
    _time("requested_at", nullable=False),
    _time("started_at"),
    _time("closed_at"),
    _time("processed_at"),
    _time("ended_at"),
    _json("waited_for"),
    _json("inputs"),
    _json("previous"),
    _json("bases"),
    _json("staged"),
    Column("reason", Reason),
    Column("computed_in", Integer, nullable=False, server_default="0"),
    # what its task ran
    _json("code"),
    # of one that failed: which try that was, of how many, and from when on there is another one
    Column("tried", Integer),
    Column("tries", Integer),
    _time("again_at"),
    # known to its worker and its driver; of none no file is believed. Not for views, audit or logs
    Column("nonce", Line, nullable=False, server_default=""),
    # the connection of the Spark Connect server that it runs on, and its session there; and the one that it has left
    # for another attempt: a session is in one of these places only
    Column("server", Line),
    Column("session", Line),
    Column("idle_session", Line),
    _of_barrier(),
    Index("barrier_attempt_by_job", "topology", "line", "barrier_id", "job", "attempt_id"),
    Index("barrier_attempt_by_request", "request_key"),
    Index(  # safety: one-live-attempt
        "barrier_attempt_one_live",
        "topology",
        "line",
        "barrier_id",
        "job",
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    ),
    Index(
        "barrier_attempt_idle_session",
        "topology",
        "server",
        "attempt_id",
        sqlite_where=IDLE,
        postgresql_where=IDLE,
    ),
    # An attempt's number is its fencing token: it must not come back after a row was deleted.
    sqlite_autoincrement=True,
)

#: Barriers computed again, and how far that is. Its barriers, tables and attempts are in line ``revision``.
revision = Table(
    "barrier_revision",
    metadata,
    Column("topology", Line, ForeignKey("barrier_topology.name"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("state", Line, nullable=False),
    Column("mode", Line, nullable=False),
    Column("first_barrier", BigInteger, nullable=False),
    Column("predecessor", BigInteger, nullable=False),
    Column("window_end", BigInteger, nullable=False),
    _json("tables"),
    _json("jobs"),
    _json("changed"),
    _json("corrections"),
    _json("reused"),
    _json("recut"),
    Column("topology_version", Integer, nullable=False),
    _time("gated_at"),
    Column("head", BigInteger),
    Column("last", BigInteger),
    _json("expected"),
    Column("actor", Line, nullable=False),
    Column("reason", Reason),
    _time("created_at", nullable=False),
    _time("committing_at"),
    _time("commit_at"),
    _time("cancelled_at"),
    ForeignKeyConstraint(
        ["topology", "topology_version"], ["barrier_topology_version.topology", "barrier_topology_version.version"]
    ),
    # one at a time, whatever the code does
    Index(  # safety: one-revision-under-way
        "barrier_revision_one_under_way",
        "topology",
        unique=True,
        sqlite_where=REVISION_UNDER_WAY,
        postgresql_where=REVISION_UNDER_WAY,
    ),
)

#: Runs of DAGs that compute a barrier of a revision: asked for by a person, or woken by us.
revision_run = Table(
    "barrier_revision_run",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("dag_id", Line, primary_key=True),
    Column("run_id", Line, primary_key=True),
    Column("barrier_id", BigInteger, nullable=False),
    Column("clear_number", Integer),
    _time("arrived_at"),
    ForeignKeyConstraint(["topology", "revision"], ["barrier_revision.topology", "barrier_revision.revision"]),
    Index("barrier_revision_run_by_run", "dag_id", "run_id"),
)

#: Entries on barriers as a whole. In a query as it stands here, not as a parameter: or the index is of no use to it.
OF_BARRIERS = "kind = 'barrier'"

audit = Table(
    "barrier_audit",
    metadata,
    Column("audit_id", _Id, primary_key=True),
    _time("at", nullable=False),
    Column("topology", Line, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("barrier_id", BigInteger),
    Column("kind", Line, nullable=False),
    Column("subject", Line, nullable=False),
    Column("event", Line, nullable=False),
    Column("state_before", Line),
    Column("state_after", Line),
    Column("actor", Line, nullable=False),
    _json("detail"),
    Index("barrier_audit_by_barrier", "topology", "barrier_id", "audit_id"),
    Index("barrier_audit_by_topology", "topology", "audit_id"),
    # a barrier has a handful of these among thousands of its tables'
    Index(
        "barrier_audit_of_barriers",
        "topology",
        "barrier_id",
        sqlite_where=text(OF_BARRIERS),
        postgresql_where=text(OF_BARRIERS),
    ),
    sqlite_autoincrement=True,
)

#: A reader's hold on barriers. As long as the row is there they are held: who takes a lease for dead deletes it first.
lease = Table(
    "barrier_lease",
    metadata,
    Column("lease_id", _Id, primary_key=True),
    Column("topology", Line, nullable=False),
    Column("line", Integer, nullable=False),
    Column("barrier_id", BigInteger, nullable=False),
    Column("through_id", BigInteger, nullable=False),
    # the sum of these barriers' rollbacks when it was granted
    Column("rollbacks", BigInteger, nullable=False),
    Column("holder", Line, nullable=False),
    _time("granted_at", nullable=False),
    _time("expires_at", nullable=False),
    _of_barrier(),
    Index("barrier_lease_by_barrier", "topology", "line", "barrier_id"),
    Index("barrier_lease_by_end", "topology", "line", "expires_at"),
    sqlite_autoincrement=True,
)

#: A system that tables are delivered to, and what its ledger was last heard to say. Changed under the topology's lock
#: wherever expiry goes by it.
sink = Table(
    "barrier_sink",
    metadata,
    Column("topology", Line, ForeignKey("barrier_topology.name"), primary_key=True),
    Column("name", Line, primary_key=True),
    Column("owner", Line, nullable=False),
    _json("definition"),
    Column("state", Line, nullable=False),
    Column("barrier_id", BigInteger),
    Column("revision", Integer),
    _time("delivered_at"),
    Column("deliverer", Line),
    Column("error", Reason),
    _time("failed_at"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("hold_seconds", Integer, nullable=False),
    Column("remedy", Line),
    _time("created_at", nullable=False),
    # let go of: it holds nothing, and belongs to no DAG
    _time("released_at"),
)

#: What sinks were delivered, until their barriers are trimmed.
delivery = Table(
    "barrier_delivery",
    metadata,
    Column("topology", Line, primary_key=True),
    Column("sink", Line, primary_key=True),
    Column("barrier_id", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("first_barrier", BigInteger, nullable=False),
    Column("inserted", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("deleted", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("actor", Line, nullable=False),
    _time("delivered_at", nullable=False),
    # the task that has told Airflow
    Column("announced_by", Line),
    ForeignKeyConstraint(["topology", "sink"], ["barrier_sink.topology", "barrier_sink.name"]),
)
