"""A person corrects history from the command line: plans it, begins it, looks at it, publishes it or gives it up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_barrier.cli.main import main, parser
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.revisions import Revision, RevisionState
from tests.cli.deployed import CONN_ID, Said, as_json, environment_of, run
from tests.crash import shopping
from tests.revising.growing import DAY, GrowingShop, declare
from tests.revising.world import RevisedShop
from tests.support.cases import cases
from tests.support.kept import Kept

SHOPPING, RECEIPTS, AMOUNTS, PRICES = (f"shop.{name}" for name in ("shopping", "receipts", "amounts", "prices"))
#: The epochs of barriers 3 and 4 are the data of these days.
DAYS = ("--from", "2040-01-04", "--to", "2040-01-05")
#: Those of 2 and 3.
FIRST_DAYS = ("--from", "2040-01-03", "--to", "2040-01-04")
#: `load` writes both, so what is corrected in one of them takes the other one along.
REUSED = ("--reuse", SHOPPING, "--reuse", RECEIPTS)


def revise(action: str, *arguments: str) -> Said:
    return run("revision", action, "shop", *arguments)


def check_backfill(line: str, first: datetime, number: str) -> None:
    """Airflow's own command line understands what a person is told to type."""
    _, command, words = line.partition("airflow backfill create ")
    assert command, line
    asked = vars(get_parser().parse_args(["backfill", "create", *shlex.split(words)]))
    expected = {
        "dag_id": "shopping_dag",
        "from_date": first,
        "to_date": first + timedelta(days=1),
        "reprocess_behavior": "completed",
        "dag_run_conf": f'{{"barrier_revision": {number}}}',
    }
    assert {name: asked[name] for name in expected} == expected


@pytest.fixture
def shop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[RevisedShop]:
    """Barriers 1 to 3 are COMMIT."""
    with RevisedShop.in_kept(kept) as shop:
        for name, value in environment_of(shop.shop.settings).items():
            monkeypatch.setenv(name, value)
        shop.days(1, 3)
        yield shop


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RevisedShop]:
    """Barriers 1 to 5 are COMMIT, the first is about to be expired, and 6 is OPEN. For tests that change nothing."""
    folder = tmp_path_factory.mktemp("history")
    settings = Settings.embedded(str(folder))
    with pytest.MonkeyPatch.context() as patched, RevisedShop.on(str(folder), settings) as shop:
        for name, value in environment_of(settings).items():
            patched.setenv(name, value)
        shop.days(1, 5)
        shop.day(6, ["open", "load"])
        assert shop.deployment.meta.expiry.expire("shop", [1], "test") == [1]
        yield shop
        assert shop.deployment.meta.revisions.newest("shop", 1) == []


# --- plan -----------------------------------------------------------------------------------------


def test_a_plan_says_what_would_be_done(history: RevisedShop) -> None:
    told = revise("plan", "--from", "2040-01-05", "--job", "price", "--json").json
    assert set(told) == {"plan", "owners", "readers", "backfills", "command"}
    plan = told["plan"]
    assert [each["barrier_id"] for each in plan["barriers"]] == [4, 5, 6]
    assert [each["barrier_id"] for each in plan["window"]] == [4]
    assert (plan["head"]["barrier_id"], plan["predecessor"]["barrier_id"]) == (5, 3)
    assert plan["tables"] == [
        {"table": PRICES, "job": "price", "owner": "shopping_dag", "rows": 15, "epoch_rows": 6},
    ]
    assert plan["untouched"] == [AMOUNTS, RECEIPTS, SHOPPING]
    assert told["owners"] == ["shopping_dag"]
    (backfill,) = told["backfills"]
    assert backfill["dag_id"] == "shopping_dag"
    assert backfill["first"] == backfill["last"] == "2040-01-06T00:00:00.000000+00:00"


def test_a_plan_is_readable_and_names_the_command_that_begins_it(history: RevisedShop) -> None:
    said = revise("plan", *DAYS, "--accept-pause", "--conn-id", CONN_ID)
    assert (said.code, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert [SHOPPING, "load", "shopping_dag", "15", "9"] in lines
    assert ["3", *(2 * ["2040-01-05", "00:00:00"]), "COMMIT", "its", "own", "run,", "in", "a", "backfill"] in lines
    assert ["6", *(2 * ["2040-01-08", "00:00:00"]), "OPEN", "our", "cascade"] in lines
    for text in (
        "incremental revision of shop, on top of barrier 2 of shop",
        "stay as they are: none",
        "purchases, read again up to the stored positions",
        "until it is published: what they see now, whole, at every level",
        "each barrier from 3 to 5 as computed again",
    ):
        assert text in said.out
    (backfill,) = (line for line in said.out.splitlines() if "airflow backfill" in line)
    check_backfill(backfill, datetime(2040, 1, 5, tzinfo=timezone.utc), "N")
    (command,) = (line for line in said.out.splitlines() if line.startswith("  airflow-barrier revision run"))
    words = shlex.split(command)[1:]
    again = vars(parser().parse_args(words))
    asked = vars(parser().parse_args(["revision", "plan", "shop", *DAYS, "--accept-pause"]))
    assert again.pop("command").name == "run"
    same = asked.keys() - {"command", "conn_id", "json"}
    assert {name: again[name] for name in same} == {name: asked[name] for name in same}
    assert again["conn_id"] == CONN_ID


def test_corrections_are_for_each_day_of_the_window(history: RevisedShop) -> None:
    statement = "DELETE FROM shop.shopping WHERE id IN (SELECT id FROM shop.receipts WHERE id = 21)"
    told = revise("plan", *DAYS, "--sql", SHOPPING, statement, *REUSED, "--json").json["plan"]
    corrections = told["wanted"]["corrections"]
    assert [(each["barrier_id"], each["table"]) for each in corrections] == [(3, SHOPPING), (4, SHOPPING)]
    for each in corrections:
        then = {
            row.table: row.snapshot_id for row in history.deployment.meta.barriers.progress("shop", each["barrier_id"])
        }
        assert each["correction"]["kind"] == "sql"
        assert "{target:shop.shopping}" in each["correction"]["statement"]
        assert each["correction"]["reads"] == {RECEIPTS: then[RECEIPTS]}
    inputs = [(each["job"], each["kind"], each["barriers"]) for each in told["inputs"]]
    assert inputs == [("amount", "cut", [3, 4, 5, 6]), ("load", "correction", [3, 4]), ("load", "reused", [5, 6])]
    assert told["changed"] == ["load"]


def test_a_file_is_for_one_day(history: RevisedShop) -> None:
    given = ("--file", SHOPPING, "s3://mended/day.csv", "csv", *REUSED)
    (correction,) = revise("plan", *DAYS, *given, "--at", "4", "--json").json["plan"]["wanted"]["corrections"]
    assert correction["barrier_id"] == 4
    assert correction["correction"]["uri"] == "s3://mended/day.csv"
    assert correction["correction"]["options"] == {"header": True}
    refused = revise("plan", *DAYS, *given)
    assert (refused.code, refused.out) == (1, "")
    assert "choose it with --at" in refused.err


REFUSED = (
    (["--from", "2039-01-01"], "expected days within its history, which is committed from barrier 1 "),
    (["--from", "2050-01-01"], "to barrier 5 of shop (2040-01-07 00:00:00+0000), found 2050-01-01"),
    (["--from", "6"], "expected days within its history"),  # it is open
    (["--from", "2040-01-04", "--to", "2040-01-03"], "expected days within its history"),
    (["--from", "2", "--to", "2040-01-04"], "name both the same way"),
    (["--from", "2040-01-02"], "has expired; begin with barrier 3 "),
    (["--from", "2"], "found that it has expired; begin one barrier later, or compute the tables anew (--full)"),
    ([], "say --from"),
    (["--from", "3", "--table", "shop.nothing"], "expected a table that one of its jobs writes"),
    (["--from", "3", "--reuse", "shop.nothing"], "expected a table that one of its jobs writes"),
    (["--from", "3", "--sql", "shop.nothing", "DELETE FROM shop.nothing"], "expected a table that one of its"),
    (["--from", "3", "--job", "nobody"], "nobody"),
    (
        ["--from", "3", "--max-replay-barriers", "2"],
        "expected to replay at most 2 barriers (max_replay_barriers), found 4",
    ),
    (["--from", "3", "--reuse", RECEIPTS], f"none of {SHOPPING} at barrier 3"),
    (["--from", "3", "--sql", SHOPPING, "DROP TABLE shop.shopping"], "expected DELETE, UPDATE, MERGE or INSERT"),
    (["--from", "3", "--sql", SHOPPING, f"DELETE FROM {PRICES}"], "found one that changes shop.prices"),
    (["--from", "3", "--file", SHOPPING, "x.orc", "orc"], "expected format 'parquet', 'csv' or 'json'"),
    (["--from", "3", "--at", "3"], "found --at without --sql or --file"),
    (
        ["--from", "3", "--sql", SHOPPING, f"DELETE FROM {SHOPPING}", "--at", "4"],
        "which are barriers 3 to 3, found 4",
    ),
)


def test_what_cannot_be_revised_is_refused_with_what_would_work(history: RevisedShop) -> None:
    with cases() as case:
        for arguments, message in REFUSED:
            with case(arguments):
                said = revise("plan", *arguments)
                assert (said.code, said.out) == (1, "")
                assert message in said.err


def test_what_is_refused_is_not_begun(history: RevisedShop) -> None:
    for arguments in (["--from", "2050-01-01"], ["--from", "2"], ["--from", "3", "--table", "shop.nothing"]):
        planned, begun = revise("plan", *arguments), revise("run", *arguments, "--reason", "r")
        assert begun == planned
        assert begun.code == 1
    assert history.deployment.meta.revisions.newest("shop", 1) == []


def test_input_that_is_gone_is_refused_with_what_can_serve_instead(shop: RevisedShop) -> None:
    for file in shop.shop.landing.glob("*/*.parquet"):
        file.unlink()
    assert revise("plan", "--from", "3", "--job", "price").code == 0  # which does not read them
    refused = revise("plan", "--from", "3")
    assert (refused.code, refused.out) == (1, "")
    assert "--reuse shop.shopping --reuse shop.receipts" in refused.err
    assert revise("plan", "--from", "3", "--reuse", SHOPPING, "--reuse", RECEIPTS).code == 0


def test_a_source_is_cut_anew(shop: RevisedShop) -> None:
    shop.file(2).unlink()
    for name in "abcd":
        shop.deliver(2, shop.landed[2][:1], f"{name}.parquet")
    refused = revise("plan", "--from", "2", "--recut", "rates")
    assert (refused.code, refused.out) == (1, "")
    assert "say what replaces the epoch (--sql, --file)" in refused.err
    assert "(--recut purchases)" in revise("plan", "--from", "2").err
    day = "date=2040-01-03"
    told = revise("plan", "--from", "2", "--recut", "purchases", "--json").json
    (anew,) = told["plan"]["recuts"]
    assert (anew["barrier_id"], anew["leaving"]) == (2, [f"{day}/part.parquet"])
    assert anew["joining"] == [f"{day}/{name}.parquet" for name in "abcd"]
    assert "--recut purchases" in told["command"]
    said = revise("plan", "--from", "2", "--recut", "purchases").out
    for text in ("cut anew", f"{day}/part.parquet", "c.parquet and 1 more", "purchases cut anew, as it is now"):
        assert text in " ".join(said.split()), said
    begun = revise("run", "--from", "2", "--recut", "purchases", "--reason", "delivered again", "--json").json
    assert begun["revision"]["recut"] == ["purchases"]
    assert "cut anew: purchases" in revise("status", "1").out
    assert revise("run", "1", "--recut", "purchases").code == 2


def test_nowhere_is_no_topology(history: RevisedShop) -> None:
    for arguments in (["plan", "--from", "3"], ["status"], ["run", "--from", "3", "--reason", "r"]):
        said = run("revision", arguments[0], "nowhere", *arguments[1:])
        assert (said.code, said.out) == (1, "")
        assert "found only: shop" in said.err


def test_wrong_usage(history: RevisedShop, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["plan", "--from", "yesterday"],
        ["plan", "--from", "3", "--max-replay-barriers", "0"],
        ["plan", "--from", "3", "--file", SHOPPING, "x"],
        ["cancel", "--reason", "r"],
        ["cancel", "1"],
        ["status", "1", "--limit", "1"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["revision", arguments[0], "shop", *arguments[1:]])
        assert ended.value.code == 2
        assert "usage: airflow-barrier revision" in capsys.readouterr().err
    assert revise("run", "--from", "3").code == 2
    assert revise("run", "1", "--from", "3").code == 2


# --- run, status, cancel --------------------------------------------------------------------------


def test_a_revision_from_its_beginning_to_its_publish(shop: RevisedShop) -> None:
    meta = shop.deployment.meta
    assert revise("status").out == "no revision was begun yet\n"
    shop.correct(2, shop.landed[2][:1])
    begun = revise("run", *FIRST_DAYS, "--reason", "ticket 19", "--json")
    assert begun.code == 0
    assert begun.json["revision"] == as_json(meta.revisions.get("shop", 1))
    (asked,) = begun.json["backfills"]
    check_backfill(asked["command"], datetime(2040, 1, 4, tzinfo=timezone.utc), "1")

    (listed,) = revise("status", "--json").json["revisions"]
    assert (listed["state"], listed["changed"], listed["reason"]) == ("STAGING", ["amount", "load"], "ticket 19")
    told = revise("status", "1", "--json").json
    assert told.items() >= listed.items()
    assert [each["barrier_id"] for each in told["barriers"]] == told["awaited"] == [2, 3]
    assert len(told["missing"]) == 2
    said = revise("status", "1").out
    for text in ("STAGING", "because amount, load changed: ticket 19", "gate open", f"{PRICES}: PENDING", "has come"):
        assert text in said
    assert "revision 1 is STAGING, barriers from 2 on are computed again: ticket 19\n" in run("status", "shop").out

    second = revise("run", "--from", "3", "--reason", "another")
    assert (second.code, second.out) == (1, "")
    assert "found revision 1 of shop (STAGING" in second.err
    assert "airflow-barrier revision cancel shop 1" in second.err

    meta.revisions.bind_run("shop", 1, 3, "shopping_dag", "scheduled__3", 1)
    shop.replay(meta.revisions.get("shop", 1), 2)
    unfinished = revise("run", "1")
    assert unfinished.code == 75
    assert "missing: barrier 3 of shop" in unfinished.out
    assert "airflow backfill" not in unfinished.out  # both days have come
    assert "shopping_dag/scheduled__3: came" in revise("status", "1").out

    shop.replay(meta.revisions.get("shop", 1), 3)
    assert "all is computed; to publish it: airflow-barrier revision run" in revise("status", "1").out
    for _ in range(2):
        published = revise("run", "1", "--json")
        assert published.code == 0
        assert published.json["revision"]["state"] == "COMMIT"
    assert shop.at() == shop.mains() == shop.expected(3)
    assert "published: barriers 2 to 3" in revise("status", "1").out
    assert revise("status", "1", "--json").json["last"] == 3
    told = {number: run("snapshots", "shop", "2", "--revision", str(number)).out for number in (0, 1)}
    assert told[1] == run("snapshots", "shop", "2").out
    assert all(f"barrier_shop_b2_r{number}" in said for number, said in told.items())
    late = revise("cancel", "1", "--reason", "no", "--yes")
    assert (late.code, late.out) == (1, "")
    assert "the decision to publish it is durable" in late.err


def test_a_decided_revision_is_rolled_forward_and_not_cancelled(
    shop: RevisedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = shop.begin(2, changed=["price"])
    shop.replay_all(revision)

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("airflow_barrier.coordinator.revisions.publish._roll_forward", dies)
        assert revise("run", "1").code == 130
    assert shop.deployment.meta.revisions.get("shop", 1).state is RevisionState.COMMITTING
    assert "found COMMITTING" in revise("cancel", "1", "--reason", "no", "--yes").err
    assert "decided, at barrier 3" in revise("status", "1").out
    assert revise("run", "1").out.startswith("revision 1 of shop is COMMIT\n")


def test_cancel_asks_before(shop: RevisedShop) -> None:
    shop.begin(3)
    unasked = revise("cancel", "1", "--reason", "the wrong day")
    assert (unasked.code, unasked.out) == (2, "")
    assert "expected --yes" in unasked.err
    assert shop.deployment.meta.revisions.get("shop", 1).state is RevisionState.STAGING
    told = revise("cancel", "1", "--reason", "the wrong day", "--yes", "--json").json
    assert (told["changed"], told["states"]) == (True, {"revision 1": "CANCELLED"})
    again = revise("cancel", "1", "--reason", "the wrong day")
    assert again.out == "revision 1 of shop was cancelled before; nothing to do\n"
    assert "CANCELLED" in revise("status").out
    for arguments in (["cancel", "2", "--reason", "r"], ["status", "2"]):
        said = revise(*arguments)
        assert (said.code, said.out) == (1, "")
        assert "found revisions up to 1" in said.err
    ended = revise("run", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "found CANCELLED" in ended.err


def test_several_backfills_of_one_dag_are_created_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DAG of the job that joins opened the second day, and has no run of the first, which another DAG opened."""
    monkeypatch.setattr(shopping, "_run_key", lambda day: f"{'old' if day == 1 else 'shopping_dag'}/scheduled__{day}")
    settings = Settings.embedded(str(tmp_path))
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    growing = GrowingShop(str(tmp_path), settings)
    growing.create()
    growing.declare("load", "amount")
    with closing(Deployment.connect(settings)) as deployment:
        shop = RevisedShop(growing, deployment, {})
        for day in (1, 2):
            shop.day(day, DAY)
        declare(shop)
        one_by_one = "create each when the one before it has ended"
        begun = revise("run", "--from", "1", "--to", "2", "--job", "price", "--reason", "new")
        assert backfilled(begun) == ["old", "shopping_dag"]
        assert one_by_one not in begun.out
        again = revise("run", "1")
        assert backfilled(again) == ["old", "shopping_dag", "shopping_dag"]
        assert one_by_one in again.out


def backfilled(said: Said) -> list[str]:
    """The DAGs that backfills are printed for."""
    words = [shlex.split(line) for line in said.out.splitlines() if "airflow backfill create" in line]
    return [each[each.index("--dag-id") + 1] for each in words]


def test_keys_are_promised() -> None:
    """They are the fields' names. Another name for one breaks scripts."""
    names = "topology revision state mode first_barrier window_end tables jobs changed gated created_at actor reason"
    assert set(names.split()) <= {field.name for field in fields(Revision)}
