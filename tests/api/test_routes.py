"""What the routes tell, to whom, on each kind of database."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import delete

from airflow_barrier.api import upkeep
from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import Job
from airflow_barrier.sources.files import Files
from tests.api.asking import Asking
from tests.api.scene import HOSTILE, SECRET, age, declared, everything, joining, opened
from tests.metaservice.world import World
from tests.support.runs import run_of


@pytest.fixture
def shop(meta: MetaService) -> World:
    return declared(meta)


def cells(grid: dict[str, Any]) -> dict[str, list[str]]:
    return {row["table"]: row["cells"] for row in grid["rows"]}


def test_a_barrier_from_opening_to_commit(shop: World, asking: Asking) -> None:
    assert asking.told("shop")["health"] == "empty"
    assert cells(asking.told("shop/grid")) == {
        "veiled.prices": [], "shop.orders": [], "shop.ratio": [], "shop.rest": []
    }  # fmt: skip
    opened(shop, 1)
    assert set(map(tuple, cells(asking.told("shop/grid")).values())) == {("pending",)}
    shop.process(1, "load")
    shop.start(1, "veiled_load")
    shop.meta.attempts.start(shop.request(1, "ratio").attempt_id)  # it learns what it waits for
    told = asking.told("shop/grid")
    assert cells(told) == {
        "veiled.prices": ["running"], "shop.orders": ["processed"], "shop.ratio": ["waiting"], "shop.rest": ["waiting"]
    }  # fmt: skip
    assert {note["table"]: (note["summary"], note["tries"]) for note in told["notes"]} == {
        "veiled.prices": ("running", 1),
        "shop.ratio": ("waits for veiled.prices at barrier 1 (job veiled_load)", 1),
        "shop.rest": ("waits for veiled.prices at barrier 1 (job veiled_load)", 1),
    }
    assert (told["repeatable_read"], told["read_committed"]) == (0, 0)


def test_all_routes_answer(shop: World, asking: Asking) -> None:
    shop.committed(1)
    opened(shop, 2)
    for path in ("", "/grid", "/barriers", "/barriers/1", "/barriers/0", "/sources", "/sinks", "/leases", "/revisions"):
        asking.told(f"shop{path}")
    assert asking.get("").json() == {"deployments": [{"deployment": "prod"}], "failed": []}
    assert asking.get("/prod/topologies").json()["topologies"][0]["readable"]["barrier_id"] == 1


def test_what_is_to_be_known_of_a_source_is_told(shop: World, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = Files("/landing", name="landing", format="csv", schema="id INT").declare()
    lake = World(shop.meta, "lake", ())
    lake.declare([Job("load", "shop", outlets=("lake.rows",), externals=(landing,))], "shop")
    lake.open(1, cuts=[Cut("landing", None, {"overwritten": "1 file is not as it was"})])
    (told,) = asking.told("lake/sources")["sources"]
    assert (told["barrier_id"], told["behind"], told["note"]) == (1, 0, "1 file is not as it was")
    lake.process(1, "load")
    lake.open(2, cuts=[Cut("landing", None, {"overwritten": "2 files are not as they were"})])
    for seconds, barrier_id in ((3_600, 1), (0, 2)):
        monkeypatch.setattr(upkeep, "_ASKED_EVERY", seconds)
        (told,) = asking.told("lake/sources")["sources"]
        assert told["barrier_id"] == barrier_id, "a source is asked once in some seconds"


def test_topologies_of_a_dag(shop: World, asking: Asking) -> None:
    shop.committed(1)
    limited = asking.may_read("ada", "shop")

    def found(dag: str, user: str = "admin") -> list[str]:
        told = asking.get("/prod/topologies", user, dag=dag).json()
        return [each["topology"] for each in told["topologies"]]

    assert (found("shop"), found("secret"), found("nothing")) == (["shop"], ["shop"], [])
    # that a DAG is in it is not told to who may not read the DAG
    assert (found("shop", limited), found("secret", limited)) == (["shop"], [])


def test_sinks_to_which_nothing_is_delivered(shop: World, asking: Asking) -> None:
    shop.committed(1)
    limited, deliveries = asking.may_read("ada", "shop", "exports"), shop.meta.deliveries
    for dag, name in (("exports", "crm"), ("secret", SECRET)):  # the one has no job here
        deliveries.register("shop", SinkDeclaration(name, dag, "files", {"shop.orders": "x"}), "me")
        deliveries.failed("shop", name, HOSTILE, "task")

    def found(user: str = "admin") -> tuple[str, list[str]]:
        told = asking.told("shop", user)
        listed, *_ = asking.get("/prod/topologies", user).json()["topologies"]
        assert (listed["health"], listed["failing"]) == (told["health"], told["failing"])
        return told["health"], told["failing"]

    assert (found(), found(limited)) == (("failing", sorted([SECRET, "crm"])), ("failing", ["crm"]))
    deliveries.pause("shop", "crm", "ada", "moving")
    assert (found(), found(limited)) == (("failing", [SECRET]), ("ok", []))


def test_who_is_late_and_what_failed(shop: World, asking: Asking) -> None:
    opened(shop, 1)
    shop.process_all(1)
    opened(shop, 2)
    shop.start(2, "load")
    failed = shop.start(2, "veiled_load")
    shop.meta.attempts.abort(failed.attempt_id, HOSTILE, "test")
    young = asking.told("shop")
    assert (young["health"], young["late"]) == ("failing", [])
    assert [failed["job"] for failed in young["failed"]] == ["veiled_load"]
    age(shop, 1, 7200)
    age(shop, 2, 3600)
    told = asking.told("shop")
    assert told["health"] == "failing"
    assert {late["job"]: (late["barrier_id"], late["tables"]) for late in told["late"]} == {
        "load": (2, ["shop.orders"])
    }
    grid = asking.told("shop/grid")
    assert {table: each[-1] for table, each in cells(grid).items()} == {
        "veiled.prices": "failed", "shop.orders": "late", "shop.ratio": "pending", "shop.rest": "pending"
    }  # fmt: skip
    reasons = {note["table"]: note["summary"] for note in grid["notes"]}
    assert reasons == {"veiled.prices": f"failed: {one_line(HOSTILE)}", "shop.orders": "running"}
    states = {table["table"]: table["state"] for table in asking.told("shop/barriers/2")["tables"]}
    assert states["shop.orders"] == "late"


def test_unchanged_aborted_and_trimmed(shop: World, asking: Asking) -> None:
    shop.committed(1)
    opened(shop, 2)
    for job in ("load", "veiled_load", "ratio"):
        shop.process(2, job, unchanged=job == "load")
    shop.commit(2)
    opened(shop, 3)
    shop.abort(3)
    told = asking.told("shop/grid")
    assert cells(told)["shop.orders"] == ["written", "unchanged", "aborted"]
    assert cells(told)["shop.ratio"] == ["written", "written", "aborted"]
    assert (told["repeatable_read"], told["read_committed"]) == (2, 2)
    with shop.meta._db.transaction(write=True) as connection:
        rows = schema.table_progress.c
        connection.execute(delete(schema.table_progress).where(rows.topology == "shop", rows.barrier_id == 2))
    assert cells(asking.told("shop/grid"))["shop.orders"] == ["written", "written", "aborted"]
    assert [barrier["reason"] for barrier in told["barriers"]] == [None, None, "bad input"]


def test_a_blocked_barrier(shop: World, asking: Asking) -> None:
    opened(shop, 1)
    shop.process_all(1)
    shop.begin_commit(1)
    shop.meta.publishing.block("shop", 1, f"{SECRET}.prices moved to 99", "commit")
    opened(shop, 2)
    grid, detail = asking.told("shop/grid"), asking.told("shop/barriers/1")
    assert set(map(tuple, cells(grid).values())) == {("blocked", "pending")}
    assert {note["summary"] for note in grid["notes"]} == {f"{SECRET}.prices moved to 99"}
    assert all(note["barrier_id"] == 1 and note["since"] for note in grid["notes"])
    assert {table["state"] for table in detail["tables"]} == {"blocked"}
    assert (detail["state"], detail["reason"]) == ("BLOCKED", f"{SECRET}.prices moved to 99")
    assert asking.told("shop")["health"] == "blocked"
    # who may not read all of its DAGs is not told whose table it was
    reader = asking.may_read("reader", "shop")
    grid, detail = asking.told("shop/grid", reader), asking.told("shop/barriers/1", reader)
    assert {note["summary"] for note in grid["notes"]} == {"somebody else changed a table of the barrier"}
    assert detail["reason"] is None
    assert SECRET not in f"{grid}{detail}{asking.told('shop', reader)}{asking.told('shop/barriers', reader)}"


def test_a_maintenance_barrier(shop: World, asking: Asking) -> None:
    shop.committed(1)
    opening = Upkeep(
        "shop", ["shop.orders"], run_of("upkeep/tonight"), "upkeep/tonight", "g1", max_open=4, actor="test"
    )
    barrier = shop.meta.maintenance.open(opening)
    assert barrier is not None
    reader = asking.may_read("reader", "shop")
    told = asking.told("shop/grid")
    assert [each["kind"] for each in told["barriers"]] == ["EPOCH", "MAINTENANCE"]
    assert {table: at[1] for table, at in cells(told).items()} == {
        "veiled.prices": "pending", "shop.orders": "waiting", "shop.ratio": "pending", "shop.rest": "pending"
    }  # fmt: skip
    compacted = shop.start(2, "compaction of shop.orders")
    shop.close(compacted)
    shop.meta.attempts.report(compacted.attempt_id, "test")
    assert cells(asking.told("shop/grid", reader))["shop.orders"] == ["written", "processed"]
    shop.meta.maintenance.carry("shop", 2, "test")
    shop.commit(2)
    for user in ("admin", reader):
        rows = cells(asking.told("shop/grid", user))
        assert (rows["shop.orders"], rows["shop.ratio"]) == (["written", "written"], ["written", "unchanged"])
        detail = asking.told("shop/barriers/2", user)
        tables = {table["table"]: (table["state"], table["unchanged_since"]) for table in detail["tables"]}
        assert tables["shop.orders"] == ("written", None)
        assert tables["shop.ratio"] == ("unchanged", 1)
        assert ("veiled.prices" in tables, detail["dag_id"]) == (user == "admin", "upkeep" if user == "admin" else None)


def test_how_many_barriers_a_reader_holds_up(shop: World, asking: Asking) -> None:
    for day in (1, 2, 3):
        shop.committed(day)
    for barrier_id in (1, 2, 2, 3):
        shop.meta.answers.resolve("shop", Level.REPEATABLE_READ, at=barrier_id, hold=Hold("ada", 600))
    shop.meta.answers.resolve("shop", Level.READ_UNCOMMITTED, hold=Hold("eve", 600))
    assert [lease["holds_up"] for lease in asking.told("shop/leases")["leases"]] == [0, 0, 0, 0, 0]
    opened(shop, 4)
    shop.process_all(4)
    shop.meta.publishing.begin("shop", 4, dict.fromkeys(shop.tables(4)), "test", (1, 2))
    assert [lease["holds_up"] for lease in asking.told("shop/leases")["leases"]] == [1, 1, 1, 0, 0]


def test_pages_of_barriers_and_tables_join_up(shop: World, asking: Asking) -> None:
    for day in range(1, 6):
        shop.committed(day)
    pages, before = [], None
    while not pages or before is not None:
        told = asking.told("shop/barriers", limit=2, **({} if before is None else {"before": before}))
        pages.append([barrier["barrier_id"] for barrier in told["barriers"]])
        before = told["before"]
    assert pages == [[5, 4], [3, 2], [1]]
    first = asking.told("shop/grid", limit=2, tables=3)
    rest = asking.told("shop/grid", limit=2, tables=3, after=first["after"])
    assert [*cells(first), *cells(rest)] == ["veiled.prices", "shop.orders", "shop.ratio", "shop.rest"]
    assert (rest["after"], first["before"]) == (None, 4)
    assert [each["barrier_id"] for each in asking.told("shop/grid", limit=2, before=4)["barriers"]] == [2, 3]


def test_what_a_run_is_about(shop: World, asking: Asking) -> None:
    """Whatever its id: here it begins as another's, and holds what databases sort and match in ways of their own."""
    mine, others = "2026-01-01T00:00:00+00:00_%", ("2026-01-01T00:00:00+00:00_%/x", "2026-01-01T00:00:00+00:00_%0", "a")
    shop.open(1, run=run_of(f"shop/{mine}"))
    shop.open(2, run=run_of(f"secret/{mine}"))
    shop.request(1, "load", key=f"shop/{mine}/shop.load/-1")
    shop.request(2, "load", key=f"shop/{mine}/shop.load/3")
    for number, other in enumerate(others):
        shop.request(2, "veiled_load", key=f"shop/{other}/shop.load/-1", generation=f"g{number}")

    def told(dag: str, run: str, user: str = "admin") -> Any:
        return asking.get(f"/v1/dags/{dag}/runs/{quote(run)}", user)

    both = told("shop", mine).json()
    assert [(each["barrier_id"], each["state"], each["opened"], each["tasks"]) for each in both["barriers"]] == [
        (2, "OPEN", False, [{"task_id": "shop.load", "map_index": 3, "job": "load"}]),
        (1, "OPEN", True, [{"task_id": "shop.load", "map_index": -1, "job": "load"}]),
    ]
    assert {(each["deployment"], each["topology"]) for each in both["barriers"]} == {("prod", "shop")}
    assert told("shop", "b").json() == told("nothing", mine).json() == {"barriers": [], "revisions": []}
    # who may read the run's DAG, and one of the topology's
    asking.may_read("upkeep", "upkeep", "nothing")
    assert told("shop", mine, asking.may_read("ada", "shop")).json() == both
    assert told("shop", mine, asking.may_read("eve", "secret")).status_code == 404
    assert told("upkeep", mine, "upkeep").json() == {"barriers": [], "revisions": []}


def test_the_revisions_that_a_run_is_part_of(shop: World, asking: Asking) -> None:
    shop.committed(1)
    revision = shop.revise(1, "veiled_load").revision
    shop.meta.revisions.bind_run("shop", revision, 1, "shop", "r", None)
    shop.meta.revisions.bind_run("shop", revision, 0, "shop", "later", None)
    shop.request(1, "veiled_load", key="shop/r/shop.load/-1", line=revision)
    expected = {"deployment": "prod", "topology": "shop", "revision": revision}
    for run, barrier_id in (("r", 1), ("later", None)):
        assert asking.get(f"/v1/dags/shop/runs/{run}").json() == {
            "barriers": [], "revisions": [{**expected, "barrier_id": barrier_id}]
        }  # fmt: skip


def test_what_a_revision_waits_for(shop: World, asking: Asking) -> None:
    shop.committed(1)
    revision = shop.revise(1, "ratio").revision
    shop.committed(2)
    first, second = asking.told(f"shop/revisions/{revision}")["missing"]
    assert (first["barrier_id"], first["tables"], first["why"]) == (
        1, ["shop.ratio (job ratio)", "shop.rest (job ratio)"], ""
    )  # fmt: skip
    assert (second["barrier_id"], second["tables"], second["why"]) == (2, [], "was opened since")


def test_nothing_is_told_of_other_dags(shop: World, asking: Asking) -> None:
    """Whatever is asked of a topology, no name of theirs is in the answer, and the same questions tell an admin."""
    revision = everything(shop)
    user = asking.may_read("reader", "shop")
    at = "/v1/deployments/{deployment}/topologies/{topology}"
    routes = {path for path, of in asking.app.openapi()["paths"].items() if path.startswith(at) and "get" in of}
    names = {"deployment": "prod", "topology": "shop", "revision": revision.revision}
    told_to_admin = set()
    for route in routes:
        for path in {route.format(**names, barrier_id=number) for number in range(4)}:
            assert SECRET not in asking.get(path, user).text, path
            if SECRET in asking.get(path).text:
                told_to_admin.add(route)
    assert told_to_admin == routes - {f"{at}/barriers/{{barrier_id}}/decisions"}, "no barrier here is BLOCKED"
    told = asking.told("shop", user)
    assert (told["dags"], told["tables"], told["hidden_dags"]) == (["shop"], 3, 1)
    assert SECRET not in asking.get("/prod/topologies", user).text
    detail = asking.told("shop/barriers/2", user)
    (waiting,) = (each for each in detail["attempts"] if each["job"] == "ratio")
    assert waiting["waits_for"] == ["tables of other DAGs"]
    assert (detail["dag_id"], detail["hidden_dags"]) == (None, 1)


def test_a_revision_by_which_a_job_joins(shop: World, asking: Asking) -> None:
    shop.committed(1)
    joining(shop)
    told = asking.told("shop/revisions/1")
    assert (told["jobs"], told["tables"], told["reason"]) == (["mean"], ["stats.mean"], "new")
    assert [(each["barrier_id"], each["tables"]) for each in told["missing"]] == [(1, ["stats.mean (job mean)"])]
    assert (told["awaited"], told["barriers"][0]["jobs"], told["hidden_dags"]) == ([1], {"mean": "not started"}, 0)
    assert asking.told("shop/revisions")["revisions"][0].items() <= told.items()
    told = asking.told("shop/revisions/1", asking.may_read("reader", "shop"))
    assert (told["jobs"], told["tables"], told["reason"], told["missing"], told["hidden_dags"]) == ([], [], None, [], 1)


def test_every_route_asks_who_it_is(shop: World, asking: Asking) -> None:
    shop.committed(1)
    values = {
        "deployment": "prod",
        "topology": "shop",
        "barrier_id": "1",
        "revision": "1",
        "lease_id": "1",
        "dag_id": "shop",
        "run_id": "r",
    }
    routes = [
        (method.upper(), path.removeprefix("/v1/deployments").format(**values))
        for path, methods in asking.app.openapi()["paths"].items()
        for method in methods
    ]
    assert {method for method, _ in routes} == {"GET", "POST"}
    body = {"reason": "a test", "table": "shop.orders", "decision": "keep-ours"}
    for method, path in routes:
        sent = {"json": body} if method == "POST" else {}
        assert asking.request(method, path, None, **sent).status_code == 401, path
        told = asking.request(method, path, "nobody", **sent)
        if path == "":
            assert told.json() == {"deployments": [], "failed": []}
            continue
        # as if there was nothing of that name
        other = asking.request(method, path.replace("prod", "dev"), "nobody", **sent)
        assert (told.status_code, told.text) == (other.status_code, other.text) == (404, other.text), path


@pytest.mark.parametrize("name", ["%00", "a%00b", "%ED%A0%80", "..", "'; DROP", "x" * 4000, "%F0%9F%90%8E", "\u202e"])
def test_odd_names_are_not_there(shop: World, asking: Asking, name: str) -> None:
    for path in (f"/{name}/topologies", f"/prod/topologies/{name}", f"/prod/topologies/{name}/grid", f"/{name}/events"):
        assert asking.get(path).status_code == 404, path
    assert asking.get(f"/prod/topologies/shop/grid?after={name}").status_code == 200
    assert asking.get(f"/prod/topologies?after={name}").status_code == 200


def test_numbers_that_no_database_has(shop: World, asking: Asking) -> None:
    shop.committed(1)
    here = "/prod/topologies/shop"
    for number in (2**63, -1, "1e3", "x", "%00"):
        for path in (f"/barriers/{number}", f"/revisions/{number}", f"/grid?before={number}", f"/grid?limit={number}"):
            assert asking.get(here + path).status_code == 422, path
    assert asking.get(f"{here}/revisions/{2**31}").status_code == 422
    assert asking.get(f"{here}/barriers/{2**63 - 1}").status_code == 404
    assert asking.get(f"{here}/revisions/{2**31 - 1}").status_code == 404
    assert asking.get(f"{here}/grid?before={2**63 - 1}").status_code == 200
