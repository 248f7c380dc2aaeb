"""What `dags/shopping_reporting.py` delivers, read by plain clients: tables in PostgreSQL, or files without it."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psycopg

from demo.local_airflow import free_port
from demo.local_postgresql import LocalPostgreSQL, LocalPostgreSQLError, binary
from demo.oracle import Rows, compare

if TYPE_CHECKING:
    from airflow_barrier.protocol.records import Barrier
    from demo.places import Places

#: As `dags/shopping_reporting.py` names it.
SINK = "reports"
_PAIR = '"userId" bigint, "itemId" bigint, PRIMARY KEY ("userId", "itemId")'
#: target -> the table that is delivered to it, and its columns
Targets = Mapping[str, tuple[str, str]]
#: The first two columns are the key.
_TARGETS: Targets = {
    "amounts": ("user_item_amount", f'{_PAIR}, "totalAmount" bigint, purchases bigint'),
    "prices": ("user_item_price", f'{_PAIR}, "totalPrice" numeric(18, 2), purchases bigint'),
    "averages": ("user_item_avg_price", f'{_PAIR}, "avgPrice" numeric(18, 5)'),
}
#: Each pair of customer and item, joined over the three tables, and how many of them contradict themselves.
_QUESTION = """
    SELECT count(*), count(*) FILTER (WHERE
        a.purchases IS DISTINCT FROM p.purchases
        OR v."avgPrice" IS DISTINCT FROM round(p."totalPrice" / nullif(a."totalAmount", 0), 5)
        OR v."itemId" IS NULL
    )
    FROM amounts a FULL JOIN prices p USING ("userId", "itemId") FULL JOIN averages v USING ("userId", "itemId")
"""
_USER = "reports"
#: Computed anew, in order: a barrier, and what each table must hold at it.
Expected = Sequence[tuple["Barrier", Mapping[str, Rows]]]


@dataclass(frozen=True)
class Delivered:
    """``differences`` says where what was delivered is not what it must be, of ``rows`` that were compared."""

    where: str
    rows: int
    differences: tuple[str, ...]


class Reports(Protocol):
    """Where the tables are delivered to."""

    @property
    def environment(self) -> dict[str, str]:
        """For Airflow: by which the DAG finds it."""
        ...

    @property
    def url(self) -> str | None:
        """By which a client of PostgreSQL reads it; None: it is no database."""
        ...

    def check(self, expected: Expected) -> Delivered:
        """Compare what was delivered, once all of it was."""
        ...


class InPostgreSQL:
    """Tables in a database, whose user owns them and nothing more."""

    def __init__(self, server: LocalPostgreSQL, password: str, targets: Targets = _TARGETS) -> None:
        self.server = server
        self._password, self._targets = password, targets

    @property
    def url(self) -> str:
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self.server.port}/{_USER}"

    @property
    def environment(self) -> dict[str, str]:
        connection = {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": _USER,
            "password": self._password,
            "schema": _USER,
        }
        return {"AIRFLOW_CONN_REPORTING": json.dumps(connection)}

    def create(self) -> None:
        """The database and its tables, empty."""
        self.server.run(
            f"CREATE ROLE {_USER} LOGIN PASSWORD '{self._password}'", f"CREATE DATABASE {_USER} OWNER {_USER}"
        )
        with psycopg.connect(self.url) as connection:
            for target, (_, columns) in self._targets.items():
                connection.execute(f"CREATE TABLE {target} ({columns})")

    def check(self, expected: Expected) -> Delivered:
        barrier, tables = expected[-1]
        rows, differences = 0, []
        with psycopg.connect(self.url) as connection:
            for target, (table, _) in self._targets.items():
                found = Counter(connection.execute(f"SELECT * FROM {target}").fetchall())
                rows += found.total()
                if difference := compare(target, tables[table], found):
                    differences.append(f"PostgreSQL after {barrier}: {difference}")
        return Delivered("PostgreSQL", rows, tuple(differences))


@dataclass(frozen=True)
class Joined:
    """How many rows a join of three tables had, and how many of them contradicted themselves."""

    rows: int
    contradictions: int

    @property
    def empty(self) -> bool:
        return not self.rows

    @property
    def torn(self) -> bool:
        return self.contradictions > 0


def join(url: str, question: str = _QUESTION) -> Joined | None:
    """Ask three tables by one query of PostgreSQL's own, which knows nothing of barriers. None: it is away."""
    try:
        with psycopg.connect(url) as connection:
            return Joined(*(connection.execute(question).fetchone() or (0, 0)))
    except psycopg.OperationalError:
        return None


class InFiles:
    """A folder for each table, in it one for each barrier, with its changes."""

    url = None

    def __init__(self, folder: Path, targets: Collection[str] = tuple(_TARGETS)) -> None:
        self._folder, self._targets = folder, targets

    @property
    def environment(self) -> dict[str, str]:
        return {"SHOPPING_REPORTS": str(self._folder)}

    def check(self, expected: Expected) -> Delivered:
        rows, differences = 0, []
        for target in self._targets:
            table, _ = _TARGETS[target]
            found: dict[tuple[object, ...], tuple[object, ...]] = {}
            for barrier, tables in expected:
                self._apply(target, barrier, found)
                rows += len(found)
                if difference := compare(target, tables[table], Counter(found.values())):
                    differences.append(f"files up to {barrier}: {difference}")
        return Delivered(f"files in {self._folder}", rows, tuple(differences))

    def _apply(self, target: str, barrier: Barrier, rows: dict[tuple[object, ...], tuple[object, ...]]) -> None:
        import pyarrow.parquet as pq

        for file in sorted((self._folder / target / f"b{barrier.barrier_id:08}.r00000").glob("part-*.parquet")):
            changes = pq.read_table(file, partitioning=None)
            for change, *row in zip(*(column.to_pylist() for column in changes.columns), strict=True):
                if change == "delete":
                    rows.pop(tuple(row[:2]), None)
                else:
                    rows[tuple(row[:2])] = tuple(row)


@contextmanager
def local_reports(places: Places) -> Iterator[Reports]:
    """A PostgreSQL of one's own as long as the block lasts, where its server is installed, else a folder."""
    try:
        binary("initdb")
    except LocalPostgreSQLError:
        yield InFiles(places.run / "reports")
        return
    with postgresql_reports(_TARGETS) as reports:
        yield reports


@contextmanager
def postgresql_reports(targets: Targets) -> Iterator[InPostgreSQL]:
    """A PostgreSQL of one's own as long as the block lasts."""
    with LocalPostgreSQL(free_port(), secrets.token_urlsafe(12), fsync="off", log_min_messages="fatal") as server:
        server.start()
        reports = InPostgreSQL(server, secrets.token_urlsafe(12), targets)
        reports.create()
        yield reports
