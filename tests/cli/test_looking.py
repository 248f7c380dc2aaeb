"""What commands that look say, to programs and to persons: the same as the MetaService."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.protocol.codec import digest, encode
from airflow_barrier.protocol.leases import Lease
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, RunRef, TableProgress
from tests.cli.deployed import CONN_ID, Deployed, as_json, run
from tests.support.shop import AMOUNT, PRICE, SHOPPING


def test_status(deployed: Deployed) -> None:
    meta = deployed.meta
    (told,) = run("status", "--json").json
    assert set(told) == {
        "topology",
        "version",
        "health",
        "committed",
        "committed_timestamp",
        "age",
        "objective",
        "precommitted",
        "uncommitted",
        "revision",
        "failed",
        "late",
        "open",
        "sources",
        "sinks",
    }
    assert (told["topology"], told["version"], told["committed"], told["precommitted"]) == ("shopping", 1, 2, 2)
    assert told["uncommitted"] == {SHOPPING: 3, AMOUNT: 2, PRICE: 2}
    assert datetime.fromisoformat(told["committed_timestamp"]) == meta.barriers.get("shopping", 2).timestamp
    assert [each["barrier"] for each in told["open"]] == as_json(meta.barriers.uncommitted("shopping"))
    assert told["open"][0]["tables"] == as_json(meta.barriers.progress("shopping", 3))
    assert [(job["job"], job["attempt"] and job["attempt"]["state"]) for job in told["open"][0]["jobs"]] == [
        ("amount", None),
        ("load", "PROCESSED"),
        ("price", "RUNNING"),
    ]
    assert [(job["job"], job["done"], job["waits_for"]) for job in told["open"][1]["jobs"]] == [
        ("amount", False, ["load", "amount at barrier 3"]),
        ("load", False, []),
        ("price", False, ["load", "price at barrier 3"]),
    ]


def test_barrier_list(deployed: Deployed) -> None:
    meta = deployed.meta
    told = run("barrier", "list", "shopping", "--json").json
    assert [each["barrier_id"] for each in told["barriers"]] == [5, 4, 3, 2, 1, 0]
    assert told["before"] is None
    newest, aborted_at = told["barriers"][0], meta.barriers.get("shopping", 5).aborted_at
    assert (newest["state"], newest["reason"]) == ("ABORTED", "landed twice")
    assert datetime.fromisoformat(newest["aborted_at"].replace("Z", "+00:00")) == aborted_at
    chosen = run("barrier", "list", "shopping", "--state", "commit", "--state", "ABORTED", "--limit", "2", "--json")
    assert [(each["barrier_id"], each["state"]) for each in chosen.json["barriers"]] == [(5, "ABORTED"), (2, "COMMIT")]
    assert chosen.json["before"] == 2
    assert run("barrier", "list", "shopping", "--state", "BLOCKED", "--json").json["barriers"] == []
    assert run("barrier", "list", "shopping", "--state", "BLOCKED").out == "no such barrier\n"


def test_what_proves_a_file_is_shown_to_nobody(deployed: Deployed) -> None:
    nonces = [attempt.nonce for attempt in deployed.meta.attempts.of("shopping", 3)]
    assert all(nonces)
    for command in (("barrier", "show", "shopping", "3"), ("status", "shopping")):
        for out in (run(*command).out, run(*command, "--json").out):
            assert not [nonce for nonce in nonces if nonce in out]


def test_barrier_show(deployed: Deployed) -> None:
    meta = deployed.meta
    told = run("barrier", "show", "shopping", "3", "--json").json
    assert set(told) == {"barrier", "tables", "attempts", "cuts", "failed", "late", "expected"}
    assert told["barrier"] == as_json(meta.barriers.get("shopping", 3))
    assert told["tables"] == as_json(meta.barriers.progress("shopping", 3))
    assert told["attempts"] == as_json(meta.attempts.of("shopping", 3))
    assert told["cuts"] == as_json(list(meta.cuts.of("shopping", 3).values()))
    (ready,) = (row for row in told["tables"] if row["table"] == SHOPPING)
    held_up = [*told["late"], *told["expected"]]  # as it happens: a minute after it could have begun a job is late
    assert sorted((each["job"], each["dag"], each["tables"], each["since"], each["why"]) for each in held_up) == [
        ("amount", "shopping_dag", [AMOUNT], ready["processed_at"], "not started"),
        ("price", "shopping_dag", [PRICE], ready["processed_at"], "running"),
    ]


def test_who_waits_for_others_holds_up_nothing(deployed: Deployed) -> None:
    # `load` could have begun barrier 4 once it was open; the others wait for it, and for barrier 3
    told = run("barrier", "show", "shopping", "4", "--json").json
    (held_up,) = [*told["late"], *told["expected"]]
    assert (held_up["job"], held_up["since"]) == ("load", told["barrier"]["opened_at"])
    for ended in ("2", "5"):
        told = run("barrier", "show", "shopping", ended, "--json").json
        assert [*told["failed"], *told["late"], *told["expected"]] == []


@pytest.mark.parametrize(
    ("arguments", "level", "barriers"),
    [
        ([], Level.REPEATABLE_READ, {SHOPPING: 2, AMOUNT: 2, PRICE: 2}),
        (["--level", "ReadCommitted"], Level.READ_COMMITTED, {SHOPPING: 2, AMOUNT: 2, PRICE: 2}),
        (["--level", "read_uncommitted"], Level.READ_UNCOMMITTED, {SHOPPING: 3, AMOUNT: 2, PRICE: 2}),
    ],
)
def test_snapshots_of_a_level(deployed: Deployed, arguments: list[str], level: Level, barriers: dict[str, int]) -> None:
    told = run("snapshots", "shopping", *arguments, "--json").json
    found = deployed.meta.answers.resolve("shopping", level)
    resolved = as_json(replace(found, tables={}))
    tables = [
        {**table._asdict(), "tag": "barrier_shopping_b2_r0" if table.barrier_id == 2 else None}
        for table in found.tables.values()
    ]
    assert {table["table"]: table["barrier_id"] for table in tables} == barriers
    assert datetime.fromisoformat(told["resolved_at"]) <= found.resolved_at
    assert told == {**resolved, "resolved_at": told["resolved_at"], "tables": tables}


def test_snapshots_are_of_the_connections_level(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    (variable,) = deployed.environment
    connection = json.loads(deployed.environment[variable])
    connection["extra"]["consistency"] = "ReadUncommitted"
    monkeypatch.setenv(variable, json.dumps(connection))
    assert run("snapshots", "shopping", "--json").json["level"] == "read_uncommitted"
    assert run("snapshots", "shopping", "--level", "repeatable read", "--json").json["level"] == "repeatable_read"


def test_a_database_alone_is_read_at_repeatable_read(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = deployed.settings
    if settings.metaservice_password is not None:
        monkeypatch.setenv("AIRFLOW_BARRIER_PASSWORD", settings.metaservice_password)
    assert main(["snapshots", "shopping", "--metaservice-url", settings.metaservice_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["level"] == "repeatable_read"


def test_snapshots_of_a_barrier_bear_its_tag(deployed: Deployed) -> None:
    by_id, by_time = (["1"], ["--at", "2026-01-06 23:59:59"])
    told = run("snapshots", "shopping", *by_id, "--json").json["tables"]
    assert run("snapshots", "shopping", *by_time, "--json").json["tables"] == told
    assert set(told[0]) == {"table", "snapshot_id", "barrier_id", "revision", "tag"}
    for each in told:
        refs = deployed.shop.deployment.tables.load(each["table"]).metadata.refs
        assert refs[each["tag"]].snapshot_id == each["snapshot_id"]


def test_snapshots_are_held_for_who_asks(deployed: Deployed) -> None:
    told = run("snapshots", "shopping", "1", "--hold", "600", "--json").json
    (lease,) = deployed.meta.leases.of("shopping", 1)
    assert told["lease"] == as_json(lease)
    assert lease.holder.endswith(" (airflow-barrier)")
    assert (lease.expires_at - lease.granted_at).total_seconds() == pytest.approx(600, abs=1)
    assert run("snapshots", "shopping", "1", "--hold", "0").code == 1
    assert ": lease 2 of " in run("snapshots", "shopping", "1", "--hold", "1").out


def test_delay(deployed: Deployed) -> None:
    meta = deployed.meta
    told = run("delay", "shopping", "--window", "90d", "--objective", "1h", "--json").json
    barriers = [meta.barriers.get("shopping", number) for number in (1, 2)]
    assert [point["barrier_id"] for point in told["points"]] == [1, 2]
    assert [point["seconds"] for point in told["points"]] == [
        (each.commit_at - each.timestamp).total_seconds() for each in barriers if each.commit_at
    ]
    assert (told["barriers"], told["looked_into"], told["objective"], told["missed"]) == (2, 2, 3600, 1)
    assert sum(share["share"] for share in told["blame"]) == pytest.approx(1)
    assert {share["job"] for share in told["blame"]} <= {"load", "amount", "price", None}
    one = run("delay", "shopping", "--barrier", "1", "--json").json
    assert sum(table["parts"]["spark"] for table in one["tables"]) > 0
    path = one["critical_path"]
    assert [each["end"] for each in path[:-1]] == [each["begin"] for each in path[1:]]
    assert run("delay", "shopping", "--barrier", "3", "--json").json["critical_path"][-1]["job"] in {"amount", "price"}
    said = run("delay", "shopping", "--window", "90d", "--objective", "1h").out
    assert said.startswith("shopping: 2 barriers became readable in 90 d\n")
    assert "readers had something older than 1 h before 1 of 2 barriers" in said
    assert "critical" not in run("delay", "shopping", "--barrier", "1").err
    assert run("delay", "shopping", "--table", "shop.nobody").code == 1
    with pytest.raises(SystemExit):
        run("delay", "shopping", "--window", "soon")
    # everything was committed a whole command ago
    assert "Ask for a longer --window" in run("delay", "shopping", "--window", "0.001s").out


def test_topologies(deployed: Deployed) -> None:
    meta = deployed.meta
    (told,) = run("topology", "list", "--json").json["topologies"]
    assert (told["deployment"], told["topology"], told["version"]) == (CONN_ID, "shopping", 1)
    assert (told["dags"], told["tables"], told["open"]) == (["shopping_dag"], 3, 2)
    assert told["readable"]["barrier_id"] == 2
    told = run("topology", "show", "shopping", "--json").json
    topology = meta.topologies.get("shopping")
    assert told["digest"] == digest(topology)
    assert told["jobs"] == [{**encode(job), "start_from": None, "freshness": None} for job in topology.jobs]
    assert told["tables"] == [
        {
            "table": table,
            "writer": topology.writer(table).name,
            "dag": "shopping_dag",
            "readers": [job.name for job in topology.readers(table)],
            "root": False,
        }
        for table in (SHOPPING, AMOUNT, PRICE)
    ]
    assert run("topology", "show", "shopping", "--version", "1", "--json").json == told


def test_the_database(deployed: Deployed) -> None:
    told = run("database", "check", "--json").json
    assert set(told) == {"schema_version", "message"}
    assert told["schema_version"] in told["message"]


@pytest.mark.parametrize(
    ("record", "keys"),
    [
        (
            Barrier,
            "topology barrier_id computed_in timestamp state predecessor topology_version kind run timestamp_from",
        ),
        (Barrier, "opened_at precommit_at committing_at commit_at aborted_at expiring_at expired_at reason"),
        (TableProgress, "table job state snapshot_id attempt_id carried_from processed_at written_at"),
        (Attempt, "attempt_id job state requested_at started_at closed_at processed_at ended_at waited_for reason"),
        (RunRef, "dag_id run_id kind logical_date"),
        (Cut, "source start end items"),
        (Lease, "lease_id topology line barrier_id through_id holder granted_at expires_at"),
    ],
)
def test_keys_are_promised(record: type, keys: str) -> None:
    """They are the fields' names. Another name for one breaks scripts."""
    assert set(keys.split()) <= {field.name for field in fields(record)}


# --- for a person ---------------------------------------------------------------------------------


def test_text_says_the_same(deployed: Deployed) -> None:
    said = run("status").out
    for text in (
        " · readers have barrier 2 of 2026-01-07 00:00:00 UTC, ",
        "repeatable read:  barrier 2\n",
        "read committed:   barrier 2\n",
        "read uncommitted: each table at its own, from barrier 2 to barrier 3\n",
        "1 of 3 tables",
        "\n    price: running\n",
        "\n    load: not started\n    2 more jobs wait for these or for barrier 3\n",
    ):
        assert text in said
    listed = run("barrier", "list", "shopping").out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["5", "4", "3", "2", "1", "0"]
    shown = run("barrier", "show", "shopping", "3").out
    assert f"  {PRICE} holds up barrier 3 (job price of DAG shopping_dag: running) (since " in shown
    assert "landed twice" in run("barrier", "show", "shopping", "5").out
    snapshots = run("snapshots", "shopping").out
    assert "barrier_shopping_b2_r0" in snapshots
    assert SHOPPING in run("topology", "show", "shopping").out
    assert "shopping_dag" in run("topology", "list").out


def test_what_is_piped_is_plain_and_whole(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")  # of some terminal that nobody looks at
    for command in (["status"], ["barrier", "show", "shopping", "2"], ["snapshots", "shopping"]):
        said = run(*command)
        assert "\x1b" not in said.out
        assert "…" not in said.out
        assert not [line for line in said.out.splitlines() if line != line.rstrip()], "nothing is filled up with blanks"
    for table, one in deployed.meta.answers.resolve("shopping", Level.REPEATABLE_READ).tables.items():
        (line,) = (line for line in said.out.splitlines() if line.startswith(f"{table} "))
        assert line.split() == [table, str(one.snapshot_id), "2", "barrier_shopping_b2_r0"]


# --- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "nowhere"], "found only: shopping"),
        (["barrier", "list", "nowhere"], "found only: shopping"),
        (["barrier", "show", "shopping", "9"], "found barriers up to 4"),
        (["snapshots", "shopping", "9"], "found barriers up to 4"),
        (["topology", "show", "shopping", "--version", "7"], "found versions up to 1"),
    ],
)
def test_a_refusal_is_exit_code_1_and_nothing_on_standard_output(
    deployed: Deployed, arguments: list[str], message: str
) -> None:
    for more in ([], ["--json"]):
        said = run(*arguments, *more)
        assert (said.code, said.out) == (1, "")
        assert message in said.err.splitlines()[-1]


@pytest.mark.parametrize(("barrier", "code", "message"), [(3, 75, "OPEN"), (5, 1, "landed twice")])
def test_snapshots_of_a_barrier_that_no_reader_gets(deployed: Deployed, barrier: int, code: int, message: str) -> None:
    said = run("snapshots", "shopping", str(barrier))
    assert (said.code, said.out) == (code, "")
    assert message in said.err


def test_wrong_usage_is_exit_code_2(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["barrier"],
        ["barrier", "show", "shopping", "three"],
        ["barrier", "list", "shopping", "--limit", "0"],
        ["barrier", "list", "shopping", "--state", "DONE"],
        ["snapshots", "shopping", "2", "--at", "2026-01-05"],
        ["snapshots", "shopping", "--at", "yesterday"],
        ["snapshots", "shopping", "--level", "committed"],
        ["status", "--conn-id", CONN_ID, "--metaservice-url", deployed.settings.metaservice_url],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "usage: airflow-barrier" in capsys.readouterr().err
