"""A sink comes back with a table more, and a file that was read is overwritten: what a person sees, does and gets."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.protocol.revisions import RevisionState
from tests.delivering.feed import Reporting
from tests.support.airflow import LONG, REPORTING
from tests.support.counting import Counting
from tests.support.postgresql import PostgreSQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "tills"
CORRECTED = 2


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches("coordinator/delivering.py", "sinks/postgresql/__init__.py", "sources/files/cuts.py")
def test_a_sink_gets_a_table_more_and_a_file_is_overwritten(
    counting: Counting,
    spark: SparkSession,
    postgresql: PostgreSQL,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporting, airflow = Reporting(postgresql.url(REPORTING)), counting.airflow
    for name, connection in airflow.connections.items():
        monkeypatch.setenv(name, connection)
    counting.create_by(spark, "sales")
    counting.create("totals")
    reporting.run("CREATE TABLE sales (k integer PRIMARY KEY, n bigint)")
    airflow.unpause(NAMESPACE)
    first = day_of(counting, 1, {1: 10, 2: 20})
    before = written(reporting, "sales")
    assert [row[1:] for row in before] == [(1, 10), (2, 20)]

    # one target is renamed and another one is new: it comes with the next barrier, not before
    reporting.run("ALTER TABLE sales RENAME TO sold")
    reporting.run("CREATE TABLE totals (k integer, n bigint PRIMARY KEY)")
    (airflow.folder / "tills-wide").touch()
    airflow.clear(NAMESPACE, first, counting.task("deliver_shop"))
    airflow.wait_for_run(NAMESPACE, first)
    assert written(reporting, "totals") == []
    second = day_of(counting, 2, {3: 5, 4: 7})
    told = airflow.log(NAMESPACE, second, counting.task("deliver_shop"))
    assert "tills.totals whole: public.sold: 2 inserted; public.totals: 2 inserted" in told
    after = written(reporting, "sold")
    assert after[:2] == before, "rows that were there have not been written again"
    assert [row[1:] for row in after[2:]] == [(3, 5), (4, 7)]
    assert delivered(reporting, "totals") == [(1, 12), (1, 30)]
    assert notes(counting) == []

    # a file that was read is overwritten: the day that is cut next says so, and so do status and API
    land(counting, CORRECTED, {3: 6, 9: 8})
    third = day_of(counting, 3, {5: 100})
    assert delivered(reporting, "sold") == [(1, 10), (2, 20), (3, 5), (4, 7), (5, 100)]
    (note,) = notes(counting)
    assert note.startswith("1 files are not as they were when an epoch was cut of them")
    assert f"date=2025-01-0{CORRECTED}/sales.csv" in note
    assert note in airflow.log(NAMESPACE, third, counting.task("start"))
    assert main(["status", NAMESPACE]) == 0
    assert note in " ".join(capsys.readouterr().out.split())

    # a person does what is said there, with the day, and what that says in turn
    (said,) = re.findall(r"airflow-barrier (revision plan \w+ --recut \w+) with the days", note)
    plan = asked(capsys, *shlex.split(said), "--from", str(CORRECTED))
    begun = asked(capsys, *shlex.split(plan["command"])[1:])
    for each in begun["backfills"]:
        airflow.command(*shlex.split(each["command"])[1:])
    revisions, number = counting.deployment.meta.revisions, begun["revision"]["revision"]
    airflow.until(lambda: revisions.get(NAMESPACE, number).state is RevisionState.COMMIT, "the swap")
    for run in airflow.run_ids(NAMESPACE)[:3]:
        airflow.wait_for_run(NAMESPACE, run)
    corrected = [(1, 10), (2, 20), (3, 6), (5, 100), (9, 8)]
    assert rows_of(counting, "sales") == corrected
    assert rows_of(counting, "totals") == [(1, 14), (1, 30), (1, 100)]

    # the sink has the same by the next delivery, and the file is told once
    day_of(counting, 4, {6: 1000})
    assert rows_of(counting, "sales") == delivered(reporting, "sold") == sorted([*corrected, (6, 1000)])
    assert rows_of(counting, "totals") == delivered(reporting, "totals") == [(1, 14), (1, 30), (1, 100), (1, 1000)]
    assert written(reporting, "sold")[:2] == before
    assert notes(counting) == []


def land(counting: Counting, day: int, rows: dict[int, int]) -> None:
    """A day's file, written elsewhere and moved in."""
    folder = counting.airflow.folder / "tills" / f"date=2025-01-0{day}"
    elsewhere = counting.airflow.folder / "sales.csv"
    elsewhere.write_text("".join(f"{k},{n}\n" for k, n in rows.items()))
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere.replace(folder / "sales.csv")


def day_of(counting: Counting, day: int, rows: dict[int, int]) -> str:
    """A day's file lands, and its run is done."""
    airflow = counting.airflow
    land(counting, day, rows)
    run: str = airflow.until(lambda: airflow.run_ids(NAMESPACE)[day - 1 :], f"the run of day {day}")[0]
    airflow.wait_for_run(NAMESPACE, run)
    return run


def written(reporting: Reporting, target: str) -> list[tuple[Any, ...]]:
    """A target's rows, each with the transaction that wrote it."""
    return reporting.run(f"SELECT xmin::text, k, n FROM {target} ORDER BY k, n")


def delivered(reporting: Reporting, target: str) -> list[tuple[Any, ...]]:
    return reporting.run(f"SELECT k, n FROM {target} ORDER BY k, n")


def rows_of(counting: Counting, table: str) -> list[tuple[int, int]]:
    """What every reader of the table sees."""
    rows = counting.deployment.tables.load(f"{NAMESPACE}.{table}").scan().to_arrow().to_pylist()
    return sorted((row["k"], row["n"]) for row in rows)


def notes(counting: Counting) -> list[str]:
    """What our API tells of sources that somebody has to see to."""
    airflow = counting.airflow
    told = airflow.api.get(f"{airflow.barriers}/barrier_default/topologies/{NAMESPACE}/sources").raise_for_status()
    return [source["note"] for source in told.json()["sources"] if source["note"]]


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command of ours answers to a program."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
