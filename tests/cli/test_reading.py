"""`query`, `lease` and `expiry plan`: what readers get, who holds what, what would go."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_barrier.cli.commands import query
from airflow_barrier.cli.frame import say
from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from tests.cli.deployed import Deployed, deploy, run
from tests.metaservice.test_metadata import SEEDS_QUERY
from tests.support.cases import cases
from tests.support.shop import AMOUNT, PRICE

SQL = "SELECT amount, count(*) AS n FROM shop.user_item_amount GROUP BY amount ORDER BY amount"


def test_a_query_in_each_format(deployed: Deployed, tmp_path: Path) -> None:
    rows = [{"amount": 1, "n": 1}, {"amount": 2, "n": 1}]
    assert run("query", "shopping", SQL, "--json").json == rows
    assert run("query", "shopping", SQL, "--format", "json").json == rows
    told = run("query", "shopping", SQL, "--format", "csv")
    assert list(csv.DictReader(io.StringIO(told.out))) == [{"amount": "1", "n": "1"}, {"amount": "2", "n": "1"}]
    assert "reading shopping at barrier 2" in told.err
    assert run("query", "shopping", SQL).out.split() == ["amount", "n", "1", "1", "2", "1"]
    file = tmp_path / "rows"
    assert run("query", "shopping", SQL, "--format", "parquet", "--output", str(file)).out == ""
    assert pq.read_table(file).to_pylist() == rows
    run("query", "shopping", SQL, "--format", "json", "--output", str(file))
    assert json.loads(file.read_text()) == rows
    run("query", "shopping", SQL, "--format", "csv", "--output", str(file))
    assert file.read_text() == told.out
    run("query", "shopping", SQL, "--output", str(file))
    assert file.read_text() == run("query", "shopping", SQL).out
    assert deployed.meta.leases.of("shopping") == []


def test_a_query_at_a_barrier_of_the_past(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("query", "shopping", SQL, "--barrier", "1", "--json").json == [{"amount": 1, "n": 1}]
    first = deployed.meta.barriers.get("shopping", 1).timestamp.isoformat()
    assert run("query", "shopping", SQL, "--at", first, "--json").json == [{"amount": 1, "n": 1}]
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS seven;"))
    assert run("query", "shopping", "-", "--json").json == [{"seven": 7}]


UNANSWERED = (
    (["SELECT * FROM shop.nothing"], 1, "expected a query that DuckDB can run, found that Catalog Error: Table"),
    (["SELEC 1"], 1, "expected a query"),
    (["SELECT * FROM shop.shopping WHERE"], 1, "expected a query, found"),
    (["SELECT * FROM __META_JOB"], 1, "'__META_JOB': expected one of __META_ETL_SOURCE"),
    (["SELECT CAST('x' AS INT)"], 1, "expected a query that DuckDB can run, found that Conversion Error"),
    (["DROP VIEW shop.user_item_amount"], 1, "consistent reading changes nothing"),
    ([SQL, "--format", "parquet"], 1, "expected --output FILE"),
    ([SQL, "--barrier", "77"], 1, "77"),
    ([SQL, "--barrier", "3"], 75, "expected COMMIT to read it at repeatable_read, found OPEN"),
    ([SQL, "--barrier", "5"], 1, "aborted"),
    ([SQL, "--at", "2020-01-01"], 1, "expected a time from its first barrier on"),
    ([SQL, "--not-older-than", "5"], 75, "expected an answer not older than 0:05:00, found barrier 2"),
    ([SQL, "--wait", "5"], 1, "expected wait=... with not_older_than=..."),
    (["SELECT 1 AS a, 2 AS a", "--json"], 1, "expected columns of different names, found 'a' more than once"),
    ([SQL, "--json", "--format", "csv"], 1, "--json: expected no other --format and no --output beside it, found"),
    ([SQL, "--json", "--output", "rows"], 1, "for a file there is --format json"),
    ([SQL, "--format", "csv", "--output", "missing/rows"], 1, "--output missing/rows: expected a file in a folder"),
    ([SQL, "--format", "json", "--output", "/dev/full"], 1, "--output /dev/full: expected a file that can be"),
)


def test_a_query_that_has_no_answer(deployed: Deployed) -> None:
    with cases() as case:
        for arguments, code, message in UNANSWERED:
            with case(arguments):
                told = run("query", "shopping", *arguments)
                assert (told.code, told.out) == (code, "")
                assert message in told.err
                assert deployed.meta.leases.of("shopping") == []


def test_a_query_waits_for_newer_data(deployed: Deployed) -> None:
    began = time.monotonic()
    told = run("query", "shopping", SQL, "--not-older-than", "5", "--wait", "0.02")
    assert (told.code, told.out) == (75, "")
    assert time.monotonic() - began > 1.2
    assert "wait for the next barrier" in told.err


@pytest.mark.parametrize("layout", ["csv", "json", "table"])
@pytest.mark.parametrize("sql", [SQL, "SELECT CAST('x' AS INT)"], ids=["read", "failed"])
def test_a_lease_that_is_lost_is_tried_again_and_prints_nothing(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, layout: str, sql: str
) -> None:
    def interrupt(message: str) -> None:
        say(message)
        for lease in deployed.meta.leases.of("shopping"):
            deployed.meta.leases.end("shopping", lease.lease_id, "test")

    monkeypatch.setattr(query, "say", interrupt)  # which it does once it has resolved
    told = run("query", "shopping", sql, "--format", layout)
    assert (told.code, told.out) == (75, "")
    assert "expected it to live, found that it has ended" in told.err


@pytest.mark.parametrize("layout", ["csv", "json", "parquet"])
def test_a_query_that_fails_leaves_a_file_as_it_was(deployed: Deployed, tmp_path: Path, layout: str) -> None:
    file = tmp_path / "rows"
    file.write_text("yesterday's")
    late = "SELECT CAST(CASE WHEN n = 2900000 THEN 'x' ELSE '1' END AS INT) FROM range(3000000) t(n)"
    assert run("query", "shopping", late, "--format", layout, "--output", str(file)).code == 1
    assert file.read_text() == "yesterday's"


def test_values_are_exact_in_csv(deployed: Deployed) -> None:
    values = (
        "sum(n::BIGINT) AS s, 12345678901234567.89::DECIMAL(20, 2) AS amount, 1.50::DECIMAL(9, 2) AS price, "
        "NULL AS nothing, '' AS empty, 'a,\"é' AS text, true AS yes"
    )
    told = run("query", "shopping", f"SELECT {values} FROM range(3) t(n)", "--format", "csv")
    assert told.out == ('s,amount,price,nothing,empty,text,yes\n3,12345678901234567.89,1.50,,"","a,""é",true\n')


def test_values_are_exact_in_json(deployed: Deployed) -> None:
    values = (
        "1.50::DECIMAL(9, 2) AS price, TIMESTAMP '2026-01-05 00:00:00' AS here, DATE '2026-01-05' AS day, "
        "'NaN'::DOUBLE AS nan, MAP {'k': [1, NULL]} AS m, '\\x00\\xFF'::BLOB AS b, INTERVAL 1 HOUR AS hour"
    )
    assert run("query", "shopping", f"SELECT {values}", "--json").json == [
        {
            "price": "1.50",
            "here": "2026-01-05T00:00:00.000000",
            "day": "2026-01-05",
            "nan": "NaN",
            "m": {"k": [1, None]},
            "b": "AP8=",
            "hour": 3600.0,
        }
    ]


def test_a_barrier_that_expired_is_named_with_the_oldest_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = deploy(Settings.embedded(str(tmp_path)))
    for name, value in deployed.environment.items():
        monkeypatch.setenv(name, value)
    assert deployed.meta.expiry.expire("shopping", [1], "test") == [1]
    for command in (["query", "shopping", SQL, "--barrier", "1"], ["snapshots", "shopping", "1"]):
        told = run(*command)
        assert (told.code, told.out) == (1, "")
        assert "barrier 1 of shopping (2026-01-06" in told.err
        assert "found one that expired on" in told.err
        assert "the oldest that can still be read is barrier 2 of shopping" in told.err
    deployed.shop.deployment.close()


def test_nothing_is_held_for_longer_than_a_week(deployed: Deployed) -> None:
    told = run("snapshots", "shopping", "--hold", "604801")
    assert (told.code, told.out) == (1, "")
    assert "expected more than 0 and at most 604800 seconds (7 days) to live, found 604801.0" in told.err
    assert deployed.meta.leases.of("shopping") == []


def test_metadata_is_queried_beside_the_tables(deployed: Deployed) -> None:
    assert run("query", "shopping", SEEDS_QUERY + " ORDER BY 1", "--json").json == [
        {"table_name": AMOUNT},
        {"table_name": PRICE},
    ]
    sql = (
        f"SELECT version, sum(amount) AS n FROM __META_TABLE_VERSION, {AMOUNT} WHERE table_name = '{AMOUNT}' GROUP BY 1"
    )
    assert run("query", "shopping", sql, "--json").json == [{"version": 2, "n": 3}]
    (row,) = run("query", "shopping", "SELECT * FROM __META_BARRIER WHERE barrier_id = 2", "--json").json
    assert row["timestamp"] == "2026-01-07T00:00:00.000000+00:00"


def test_leases(deployed: Deployed) -> None:
    meta = deployed.meta
    for at in (1, 2):
        meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=at, hold=Hold(f"reader of {at}", 600))
    first, second = meta.leases.of("shopping")
    told = run("lease", "list", "shopping", "--json").json["leases"]
    assert [(each["lease_id"], each["holder"]) for each in told] == [
        (first.lease_id, "reader of 1"),
        (second.lease_id, "reader of 2"),
    ]
    assert run("lease", "list", "shopping", "1", "--json").json == {"leases": told[:1]}
    shown = run("lease", "list", "shopping").out
    assert "reader of 1" in shown
    done = run("lease", "release", "shopping", str(first.lease_id), "--reason", "ada has left", "--json").json
    assert (done["changed"], done["states"]) == (True, {f"lease {first.lease_id}": "ended"})
    assert meta.leases.of("shopping") == [second]
    run("lease", "release", "shopping", str(second.lease_id), "--reason", "he, too")
    assert meta.leases.of("shopping") == []
    ended = [entry for entry in meta.audit.newest("shopping") if entry.kind == "lease"][-2:]
    assert [entry.subject for entry in ended] == [str(first.lease_id), str(second.lease_id)]
    assert [entry.actor.partition(" (airflow-barrier): ")[2] for entry in ended] == ["ada has left", "he, too"]


def test_leases_of_what_is_not_there(deployed: Deployed) -> None:
    why = ["--reason", "over"]
    with cases() as case:
        for arguments, message in (
            (["list", "nowhere"], "topology 'nowhere': expected one that a DAG has registered, found only: shopping"),
            (
                ["list", "shopping", "99"],
                "barrier 99 of shopping: expected one that was opened, found",
            ),
            (["release", "shopping", "999", *why], "lease 999: expected one that lives and holds barriers of shopping"),
            (["release", "nowhere", "1", *why], "topology 'nowhere': expected one that a DAG has registered"),
        ):
            with case(arguments):
                told = run("lease", *arguments)
                assert (told.code, told.out) == (1, "")
                assert message in told.err


def test_expire_only_says_what_would_go(deployed: Deployed) -> None:
    told = run("expiry", "plan", "shopping", "--keep", "1", "--json").json
    assert [(each["barrier"]["barrier_id"], each["keep"]) for each in told["barriers"]] == [(1, False), (2, True)]
    assert {each["reason"] for each in told["barriers"]} == {
        "beyond the newest barrier, and nobody holds it",
        "among the newest 1",
    }
    assert not told["tables"][AMOUNT][0]["keep"]
    shown = run("expiry", "plan", "shopping", "--keep", "1").out
    assert "1 barriers and" in shown
    assert "tag policy" not in shown
    capped = run("expiry", "plan", "shopping", "--keep", "100").out
    assert "expected to keep the newest 100 barriers, found that the connection's tag policy (newest=31)" in capped
    young = run("expiry", "plan", "shopping", "--keep", "1", "--keep-days", "1", "--json").json
    assert all(each["keep"] for each in young["barriers"])
    assert [barrier.barrier_id for barrier in deployed.meta.answers.readable("shopping")] == [1, 2]


def test_expiry_refuses_to_keep_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--keep", "0"], []):
        with pytest.raises(SystemExit) as ended:
            run("expiry", "plan", "shopping", *arguments)
        assert ended.value.code == 2


def test_how_long_is_a_number_from_0_on(capsys: pytest.CaptureFixture[str]) -> None:
    with cases() as case:
        for arguments in (
            ["query", "shopping", SQL, "--not-older-than"],
            ["query", "shopping", SQL, "--not-older-than", "5", "--wait"],
            ["expiry", "plan", "shopping", "--keep", "1", "--keep-days"],
        ):
            for number in ("nan", "inf", "-1", "1e300", "few"):
                with case([*arguments, number]):
                    with pytest.raises(SystemExit) as ended:
                        main([*arguments, number])
                    assert ended.value.code == 2
                    assert f"{arguments[-1]}: expected a number of " in capsys.readouterr().err
