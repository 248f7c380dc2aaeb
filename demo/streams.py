"""`python -m demo.streams`: the shopping topology from a topic of Kafka to a topic, a PostgreSQL and files.

Tills send purchases in transactions, some of which they abort; each half minute a barrier takes what is committed. The
broker, a task and PostgreSQL get SIGKILL meanwhile. Plain clients look on from outside, and at the end everything is
recomputed from what the tills committed. The exit code is 0 only if every claim on the last screen holds.

    python -m demo.streams --barriers 4 --kill      # shorter, and without kills
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.spark.connect import connect_session, stop_session
from demo import tills, topic
from demo.cast import DAGS, create_tables, local_airflow, local_spark, pollers
from demo.killing import aftermath
from demo.landing import land
from demo.local_airflow import free_port
from demo.local_kafka import LocalKafka
from demo.local_spark import CATALOG
from demo.oracle import Rows, recompute_lines
from demo.outages import Outages, Planned
from demo.places import Places
from demo.progress import TOPOLOGY, barriers_of, delivered_barriers, reads_of
from demo.reports import SINK, InFiles, InPostgreSQL, local_reports
from demo.running import DemoFailedError, console, keep, run_demo, say_where, show
from demo.screen import Claim, delivered_claim, equality_claim, killed_claim, outages_claim, times_claim, unbroken_claim
from demo.verify import committed_barriers, verify
from demo.watch import look_on_deliveries, start_writer

if TYPE_CHECKING:
    from airflow_barrier.protocol.records import Barrier

_DAYS = 3
_BARRIERS = 8
_EVERY = timedelta(seconds=30)
#: Until Airflow is up.
_LATER = timedelta(seconds=30)
LETTERS = "shop.garbled_lines"
#: Between the last purchase and the last barrier: longer than an outage.
_MARGIN = timedelta(seconds=20)
#: who is killed, and at which barrier
_KILLS = {"broker": 3, "worker": 5, "PostgreSQL": 6}
#: a run that takes longer is stuck
_PATIENCE = 10 * 60
Expected = Sequence[tuple["Barrier", dict[str, Rows]]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Events in and out by Kafka, each exactly once.")
    parser.add_argument("--barriers", type=int, default=_BARRIERS)
    parser.add_argument("--kill", nargs="*", choices=[*_KILLS], default=[*_KILLS], help="default: all of them, once")
    arguments = parser.parse_args()
    if late := [name for name in arguments.kill if _KILLS[name] > arguments.barriers]:
        parser.error(f"expected a barrier at which to kill {', '.join(late)}, found {arguments.barriers} barriers")
    return run_demo(partial(_run, arguments.barriers, arguments.kill))


def _run(wanted: int, kills: Collection[str], places: Places, stack: ExitStack, began: float) -> int:
    console.print(f"{land(places.landing, _DAYS):,} lines are to be sent: {_DAYS} days of a grocery chain's purchases.")
    console.print("Starting Kafka, PostgreSQL and Spark; the first time they download their jars.")
    broker = stack.enter_context(LocalKafka(free_port(), free_port(), places.ivy / "catalogs"))
    broker.start()
    broker.create_topic(tills.TOPIC, tills.PARTITIONS)
    broker.create_topic(topic.TOPIC)
    reports = stack.enter_context(local_reports(places))
    database = reports if isinstance(reports, InPostgreSQL) else None
    files = InFiles(places.run / "files", ["averages"])
    spark = stack.enter_context(local_spark(places))
    deployment = Deployment.connect(places.settings())
    stack.callback(deployment.close)
    session = connect_session(spark.url)
    create_tables(session)
    session.sql(
        f"CREATE TABLE {CATALOG}.{LETTERS} (topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, reason STRING) USING iceberg"
    )
    stop_session(session)

    first = datetime.now(timezone.utc).replace(microsecond=0) + _LATER
    last = first + (wanted - 1) * _EVERY
    environment = {
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.address}}
        ),
        "STREAMS_FROM": first.isoformat(),
        "STREAMS_UNTIL": last.isoformat(),
        "STREAMS_FILES": str(places.run / "files"),
        **(database.environment if database else {}),
    }
    victim = (first + (_KILLS["worker"] - 1) * _EVERY).isoformat() if "worker" in kills else "never"
    airflow = local_airflow(
        places, spark, environment, f"shopping_streams {TOPOLOGY}.amount {victim}", DAGS / "shopping_streams"
    )
    stack.callback(airflow.stop)
    airflow.start()
    say_where(airflow)

    sender = start_writer(places, "demo.tills", (broker.address, (last - _MARGIN).isoformat()), {})
    stack.callback(sender.kill)
    planned = []
    if "broker" in kills:
        planned.append(Planned("the broker", broker, _KILLS["broker"], topic.TOPIC))
    if database and "PostgreSQL" in kills:
        planned.append(Planned("PostgreSQL", database.server, _KILLS["PostgreSQL"], SINK))
    sides = ["barrier", "topic", *(["reports"] if database else [])]
    sinks = [topic.TOPIC, "files", *([SINK] if database else [])]
    servers, deadline = Outages(planned), began + _PATIENCE
    with pollers(places, sides, {"TOPIC_BROKER": broker.address, "REPORTS_URL": (database and database.url) or ""}):
        killed = look_on_deliveries(deployment, airflow, places, sender, servers, wanted, sinks, sides, deadline)
        time.sleep(2)  # of what was delivered last there is a read, too
    if killed is None and "worker" in kills:
        raise DemoFailedError("expected one task to be held and killed, found none that was")

    console.print("Recomputing every table at every barrier from what the tills have committed.")
    sent = tills.sent(places)
    expected = list(_expectations(deployment, places, sent))
    delivered = {sink: delivered_barriers(deployment.meta, sink) for sink in sinks}
    ids = [barrier.barrier_id for barrier in barriers_of(deployment.meta)]
    outside = {topic.TOPIC: topic.check_topic(broker.address, expected), "files": files.check(expected)}
    if database:
        outside[SINK] = database.check(expected)
    verdict = [
        _sent(sent, _lines_at(deployment, sent, expected)),
        equality_claim(verify(deployment, expected), wanted, "what the tills have committed"),
        _letters(deployment, sent, expected),
        *(delivered_claim(outside[sink], delivered[sink] == ids) for sink in sinks),
        *(unbroken_claim(_LOOKERS[side], reads_of(places, side)) for side in sides),
        *([killed_claim(aftermath(deployment, killed))] if killed else []),
        outages_claim(servers.over, [each.name for each in planned]),
        times_claim(barriers_of(deployment.meta), wanted, f"every {_EVERY.total_seconds():.0f} seconds"),
    ]
    show(verdict, began)
    if os.environ.get("KEEP"):
        keep(airflow)
    return 0 if all(claim.holds for claim in verdict) else 1


def _expectations(
    deployment: Deployment, places: Places, sent: Sequence[tills.Sent]
) -> Iterator[tuple[Barrier, dict[str, Rows]]]:
    """Of each committed barrier, what the lines that were committed before its offsets amount to."""
    products = sorted((places.landing / "products").rglob("*.parquet"))
    for barrier in committed_barriers(deployment):
        yield barrier, recompute_lines(tills.lines_before(sent, _ends(deployment, barrier)), products)


def _ends(deployment: Deployment, barrier: Barrier) -> dict[str, int]:
    ends: dict[str, int] = deployment.meta.cuts.of(TOPOLOGY, barrier.barrier_id)["shopping"].end["offsets"]
    return ends


def _lines_at(deployment: Deployment, sent: Sequence[tills.Sent], expected: Expected) -> int:
    """How many committed records stand before where the newest barrier ends."""
    ends = _ends(deployment, expected[-1][0])
    return len(tills.lines_before(sent, ends)) + len(tills.garbled_before(sent, ends))


# --- the last screen ------------------------------------------------------------------------------


def _sent(sent: Sequence[tills.Sent], read: int) -> Claim:
    committed = [each for each in sent if each.committed]
    aborted = [each for each in sent if not each.committed]
    lines = sum(len(each.records) for each in committed)
    refused = sum(len(each.records) for each in aborted)
    told = (
        f"{lines:,} lines in {len(committed)} committed transactions, {read:,} of them before the newest barrier's end",
        f"{refused:,} lines in {len(aborted)} aborted transactions, of which nothing may be in any table",
    )
    return Claim(lines == read > 0 and refused > 0, "Purchases sent to a topic, in transactions", told)


def _letters(deployment: Deployment, sent: Sequence[tills.Sent], expected: Expected) -> Claim:
    """The table of dead letters at each barrier against what no job could have decoded."""
    table, found, wrong = deployment.tables.load(LETTERS), 0, []
    for barrier, _ in expected:
        snapshot = table.snapshot_by_name(barrier.tag)
        assert snapshot is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        places = [(row["partition"], row["offset"]) for row in rows]
        found = len(places)
        if sorted(places) != sorted(tills.garbled_before(sent, _ends(deployment, barrier))):
            wrong.append(f"{barrier} has {found} letters")
    return Claim(
        found > 0 and not wrong,
        "What does not decode is in the table of dead letters, at the barrier of its offset, once",
        (f"{found} of the records are no lines", *wrong[:3]),
    )


_LOOKERS = {
    "barrier": "A reader at repeatable read never saw two barriers in five tables",
    "topic": "A consumer of the topic never saw half a barrier",
    "reports": "A plain client of PostgreSQL that joins three tables never saw two barriers",
}


if __name__ == "__main__":
    sys.exit(main())
