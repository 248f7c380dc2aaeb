"""Another team's DAG joins from the next barrier on, and the commit waits for it."""

from __future__ import annotations

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError

from airflow_barrier.links.barrier import URL_PREFIX
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from tests.support.airflow import LONG
from tests.support.counting import Counting
from tests.support.waiting import patience

NAMESPACE = "joined"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_member_takes_part_and_who_may_read_it_is_told_so(counting: Counting) -> None:
    """One story, since what is told is of the barriers that the member was missing from and took part in."""
    a_member_takes_part_from_the_next_barrier_on(counting)
    a_user_is_told_what_they_may_read(counting)
    who_may_read_none_of_its_dags_learns_nothing(counting)
    all_routes_tell_the_same(counting)
    who_may_edit_all_of_its_dags_acts(counting)
    engines_read_it_by_a_token_of_airflows(counting)


def a_member_takes_part_from_the_next_barrier_on(counting: Counting) -> None:
    airflow = counting.airflow
    hold = counting.tell("hold", "load", 1)
    airflow.unpause("joined")
    airflow.until(lambda: counting.states() == {1: "OPEN"}, "the first barrier")

    airflow.unpause("joined_later")
    airflow.until(lambda: len(airflow.runs("joined_later")) == 2, "both runs of the member")
    first, second = airflow.run_ids("joined_later")
    mirror = counting.task("mirror")
    # barrier 1 was opened without it; barrier 2 is not open yet
    airflow.wait_for_task("joined_later", first, mirror, "skipped")
    # Airflow's own line has the reason aside, and its UI folds that line away
    assert "Skipped: barrier 1 of joined" in airflow.log("joined_later", first, mirror)
    airflow.wait_for_task("joined_later", second, mirror, "deferred")
    hold.unlink()

    airflow.wait_for_runs("joined", 2)
    airflow.wait_for_run("joined_later", second)
    assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    assert set(counting.table_states(1)) == {"joined.events"}
    assert counting.table_states(2) == {"joined.events": "WRITTEN", "joined.mirror": "WRITTEN"}
    # its table was empty, so it began with all that its inlet held
    assert counting.published("events") == counting.published("mirror") == 11


def a_user_is_told_what_they_may_read(counting: Counting) -> None:
    told = counting.airflow.told
    joined = "/barrier_default/topologies/joined"
    counting.deployment.meta.answers.resolve("joined", Level.REPEATABLE_READ, hold=Hold("report of ada", 600))
    shown = {user: told(user, f"{joined}/barriers/2") for user in ("admin", "viewer", "only_joined")}
    assert {user: answer.status_code for user, answer in shown.items()} == dict.fromkeys(shown, 200)
    everything, some = shown["admin"].json(), shown["only_joined"].json()
    # who may only read is offered nothing to do
    assert [each["action"] for each in everything["actions"]] == ["revise"]
    assert shown["viewer"].json() == {**everything, "actions": []}
    assert [table["table"] for table in everything["tables"]] == ["joined.events", "joined.mirror"]
    assert (everything["dag_id"], everything["hidden_dags"]) == ("joined", 0)
    assert [table["table"] for table in some["tables"]] == ["joined.events"]
    assert (some["dag_id"], some["hidden_dags"]) == ("joined", 1)
    assert "mirror" not in shown["only_joined"].text
    holders = {
        user: [lease["holder"] for lease in told(user, f"{joined}/leases").json()["leases"]]
        for user in ("admin", "only_joined")
    }
    assert holders == {"admin": ["report of ada"], "only_joined": [None]}
    # of a barrier without that other DAG there is nothing to hide
    first = told("only_joined", f"{joined}/barriers/1").json(), told("admin", f"{joined}/barriers/1").json()
    assert first[0] == {**first[1], "actions": []}


def who_may_read_none_of_its_dags_learns_nothing(counting: Counting) -> None:
    told = counting.airflow.told
    there = "/barrier_default/topologies/joined"
    paths = (
        f"{there}/barriers/2", f"{there}/barriers/99", f"{there}/revisions/1",
        "/barrier_default/topologies/nothing/barriers/1", "/spark_default/topologies/joined/barriers/2",
        "/nothing/topologies/joined/barriers/2",
    )  # fmt: skip
    answers = {path: told("only_catchup", path) for path in paths}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 404)
    assert len({answer.text for answer in answers.values()}) == 1
    assert {told("admin", path).text for path in paths[1:]} == {answers[paths[0]].text}
    assert told("admin", f"{there}/barriers/{2**64}").status_code == 422
    assert httpx.get(f"{counting.airflow.barriers}{paths[0]}", timeout=patience()).status_code == 401


def all_routes_tell_the_same(counting: Counting) -> None:
    told, topology = counting.airflow.told, "/barrier_default/topologies/joined"
    assert {"deployment": "barrier_default"} in told("admin", "").json()["deployments"]
    whole, part = told("viewer", f"{topology}/grid").json(), told("only_joined", f"{topology}/grid").json()
    assert {row["table"]: row["cells"] for row in whole["rows"]} == {
        "joined.events": ["written", "written"], "joined.mirror": ["absent", "written"]
    }  # fmt: skip
    assert ([row["table"] for row in part["rows"]], part["hidden_dags"]) == (["joined.events"], 1)
    for path in ("", "/grid", "/barriers/2", "/sources", "/sinks", "/leases", "/revisions"):
        answer = told("only_joined", topology + path)
        assert (answer.status_code, "mirror" in answer.text) == (200, False), path
        assert told("only_catchup", topology + path).status_code == 404, path
    assert told("admin", "/spark_default/topologies").status_code == 404
    for path in ("", topology, "/barrier_default/events"):
        assert httpx.get(counting.airflow.barriers + path, timeout=patience()).status_code == 401


def engines_read_it_by_a_token_of_airflows(counting: Counting) -> None:
    airflow = counting.airflow

    def catalog(user: str) -> RestCatalog:
        token = airflow.login_of(user)["Authorization"].removeprefix("Bearer ")
        uri = f"{airflow.url}{URL_PREFIX}/iceberg/barrier_default"
        return RestCatalog("pinned", uri=uri, warehouse="joined@RepeatableRead", token=token)

    whole, part = catalog("viewer"), catalog("only_joined")
    assert whole.list_tables("joined") == [("joined", "events"), ("joined", "mirror")]
    assert whole.load_table("joined.mirror").scan().to_arrow()["n"].to_pylist() == [11]
    assert part.list_tables("joined") == [("joined", "events")]
    with pytest.raises(NoSuchTableError):
        part.load_table("joined.mirror")
    with pytest.raises(RESTError, match="expected something of jobs whose DAGs you may read, found none"):
        catalog("only_catchup")


def who_may_edit_all_of_its_dags_acts(counting: Counting) -> None:
    asked, topology = counting.airflow.asked, "/barrier_default/topologies/joined"
    meta = counting.deployment.meta
    (lease,) = meta.leases.of("joined")
    release = f"{topology}/leases/{lease.lease_id}/release"
    refused = {user: asked(user, release, "done").status_code for user in ("viewer", "only_joined", "only_catchup")}
    assert refused == {"viewer": 403, "only_joined": 403, "only_catchup": 404}
    assert asked("admin", f"{topology}/barriers/2/abort", "done").status_code == 409  # it is COMMIT
    assert meta.leases.of("joined") == [lease]
    assert asked("admin", release, "ada has left").status_code == 200
    assert meta.leases.of("joined") == []
    assert meta.audit.newest("joined")[-1].actor == "admin (Airflow): ada has left"
