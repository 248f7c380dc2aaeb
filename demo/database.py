"""`python -m demo.database`: a shop's database in the lake, and from there into another database.

Four clerks write orders and their items in transactions, some of which they roll back; each twenty seconds a barrier
takes what is committed. Both databases and a task get SIGKILL meanwhile. Readers look on that ask orders, items and
customers at once, and at the end everything is recomputed from what the clerks have written. The exit code is 0 only if
every claim on the last screen holds.

    python -m demo.database --barriers 4 --kill      # shorter, and without kills
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.sources.postgresql.database import position
from airflow_barrier.spark.connect import connect_session, stop_session
from demo import clerks
from demo.cast import DAGS, local_airflow, local_spark, pollers
from demo.killing import aftermath
from demo.local_airflow import free_port
from demo.local_postgresql import LocalPostgreSQL
from demo.local_spark import CATALOG
from demo.orders import TABLES, TARGETS
from demo.outages import Outages, Planned
from demo.places import Places
from demo.progress import TOPOLOGY, barriers_of, delivered_barriers, reads_of
from demo.reports import SINK, postgresql_reports
from demo.running import DemoFailedError, console, keep, run_demo, say_where, show
from demo.screen import Claim, delivered_claim, equality_claim, killed_claim, outages_claim, times_claim, unbroken_claim
from demo.verify import committed_barriers, verify
from demo.watch import look_on_deliveries, start_writer

if TYPE_CHECKING:
    from airflow_barrier.protocol.records import Barrier

_BARRIERS = 8
_CLERKS = 4
_EVERY = timedelta(seconds=20)
#: Until Airflow is up.
_LATER = timedelta(seconds=30)
#: Between the last transaction and the last barrier: longer than the clerks wait for a server.
_MARGIN = timedelta(seconds=5)
#: who is killed, and at which barrier
_KILLS = {"source": 3, "worker": 5, "sink": 6}
#: Seconds that the source is away: a barrier's time comes meanwhile.
_AWAY = 25.0
#: a run that takes longer is stuck
_PATIENCE = 10 * 60
_LOOKERS = {
    "lake": "A reader at repeatable read never saw an order without its items, or a customer without the order",
    "orders": "A plain client of the other database never saw one either",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="A database's changes, whole transactions over all tables.")
    parser.add_argument("--barriers", type=int, default=_BARRIERS)
    parser.add_argument("--kill", nargs="*", choices=[*_KILLS], default=[*_KILLS], help="default: all of them, once")
    parser.add_argument("--clerks", type=int, default=_CLERKS, help="clients that write to the database")
    arguments = parser.parse_args()
    if late := [name for name in arguments.kill if _KILLS[name] > arguments.barriers]:
        parser.error(f"expected a barrier at which to kill {', '.join(late)}, found {arguments.barriers} barriers")
    return run_demo(partial(_run, arguments.barriers, arguments.clerks, arguments.kill))


def _run(wanted: int, count: int, kills: Collection[str], places: Places, stack: ExitStack, began: float) -> int:
    console.print("Starting two PostgreSQLs and Spark; the first time it downloads its jars.")
    options = {"fsync": "off", "log_min_messages": "fatal", "wal_level": "logical"}
    server = stack.enter_context(LocalPostgreSQL(free_port(), secrets.token_urlsafe(12), **options))
    server.start()
    password = secrets.token_urlsafe(12)
    shop = clerks.open_shop(server, password)
    before = clerks.Shop.now(shop)
    reports = stack.enter_context(postgresql_reports(TARGETS))
    spark = stack.enter_context(local_spark(places))
    deployment = Deployment.connect(places.settings())
    stack.callback(deployment.close)
    _create_tables(spark.url)

    first = datetime.now(timezone.utc).replace(microsecond=0) + _LATER
    last = first + (wanted - 1) * _EVERY
    connection = {
        "conn_type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "login": clerks.USER,
        "password": password,
        "schema": clerks.USER,
    }
    environment = {
        "AIRFLOW_CONN_SHOP": json.dumps(connection),
        "SHOPPING_FROM": first.isoformat(),
        "SHOPPING_UNTIL": last.isoformat(),
        **reports.environment,
    }
    victim = (first + (_KILLS["worker"] - 1) * _EVERY).isoformat() if "worker" in kills else "never"
    airflow = local_airflow(
        places, spark, environment, f"shopping_database {TOPOLOGY}.items {victim}", DAGS / "shopping_database"
    )
    stack.callback(airflow.stop)
    airflow.start()
    say_where(airflow)

    writer = start_writer(places, "demo.clerks", [(last - _MARGIN).isoformat(), str(count)], {"SHOP_URL": shop})
    stack.callback(writer.kill)
    planned = [
        each
        for kill, each in {
            "source": Planned("the source", server, _KILLS["source"], SINK, _AWAY),
            "sink": Planned("the other database", reports.server, _KILLS["sink"], SINK),
        }.items()
        if kill in kills
    ]
    servers, deadline = Outages(planned), began + _PATIENCE
    with pollers(places, _LOOKERS, {"REPORTS_URL": reports.url}):
        killed = look_on_deliveries(deployment, airflow, places, writer, servers, wanted, [SINK], [*_LOOKERS], deadline)
        time.sleep(2)  # of what was delivered last there is a read, too
    if killed is None and "worker" in kills:
        raise DemoFailedError("expected one task to be held and killed, found none that was")

    console.print("Recomputing every table at every barrier from what the clerks have written.")
    written, commits = clerks.written(places), clerks.commits(server)
    barriers = committed_barriers(deployment)
    positions = [_position(deployment, barrier) for barrier in barriers]
    expected = list(zip(barriers, clerks.replay(before, written, commits, positions), strict=True))
    ids = [barrier.barrier_id for barrier in barriers_of(deployment.meta)]
    verdict = [
        _written(written, commits, positions),
        equality_claim(verify(deployment, expected), wanted, "what the clerks have committed"),
        delivered_claim(reports.check(expected), delivered_barriers(deployment.meta, SINK) == ids),
        *(unbroken_claim(title, reads_of(places, side)) for side, title in _LOOKERS.items()),
        *([killed_claim(aftermath(deployment, killed))] if killed else []),
        outages_claim(servers.over, [each.name for each in planned]),
        times_claim(barriers_of(deployment.meta), wanted, f"every {_EVERY.total_seconds():.0f} seconds"),
    ]
    show(verdict, began)
    if os.environ.get("KEEP"):
        keep(airflow)
    return 0 if all(claim.holds for claim in verdict) else 1


def _create_tables(spark_url: str) -> None:
    session = connect_session(spark_url)
    session.sql(f"CREATE NAMESPACE {CATALOG}.shop")
    for table, columns in TABLES.items():
        session.sql(f"CREATE TABLE {CATALOG}.shop.{table} ({columns}) USING iceberg")
    stop_session(session)


def _position(deployment: Deployment, barrier: Barrier) -> int:
    """Where the barrier's cut ends in the log of the source."""
    return position(deployment.meta.cuts.of(TOPOLOGY, barrier.barrier_id)["shop"].end["lsn"])


def _written(written: Sequence[clerks.Written], commits: Iterable[tuple[int, int]], positions: Sequence[int]) -> Claim:
    numbers = {change.xid for change in written}
    done = [lsn for lsn, xid in commits if xid in numbers]
    read = sum(lsn <= positions[-1] for lsn in done)
    refused = sum(change.rolled_back for change in written)
    told = (
        f"{len(done):,} transactions were committed, {read:,} of them before the newest barrier's position",
        f"{refused:,} were rolled back, with totals that nobody may see",
    )
    return Claim(read > 0 and refused > 0, "Orders written to a database, in transactions with their items", told)


if __name__ == "__main__":
    sys.exit(main())
