"""Another team's DAG joins from the next barrier on, and the commit waits for it."""

from __future__ import annotations

import httpx
import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting
from tests.support.waiting import patience

NAMESPACE = "joined"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_member_takes_part_and_a_page_shows_it_to_who_may_read_it(counting: Counting) -> None:
    """One story, since the pages are those of the barriers that the member was missing from and took part in."""
    a_member_takes_part_from_the_next_barrier_on(counting)
    a_page_shows_what_the_user_may_read(counting)
    who_may_read_none_of_its_dags_learns_nothing(counting)
    the_api_tells_the_same(counting)


def a_member_takes_part_from_the_next_barrier_on(counting: Counting) -> None:
    counting.create("events", "mirror")
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


def a_page_shows_what_the_user_may_read(counting: Counting) -> None:
    page = counting.airflow.page
    shown = {user: page(user, "barrier_default/joined/2") for user in ("admin", "viewer", "only_joined")}
    assert {user: answer.status_code for user, answer in shown.items()} == dict.fromkeys(shown, 200)
    assert shown["viewer"].text == shown["admin"].text
    for text in ("joined.events", "joined.mirror", "opened by joined/scheduled__", "Readers"):
        assert text in shown["admin"].text
    assert "joined.events" in shown["only_joined"].text
    assert "Of 1 more DAGs, which you may not read, nothing is shown." in shown["only_joined"].text
    for text in ("mirror", "joined/scheduled__", "Readers"):
        assert text not in shown["only_joined"].text
    # of a barrier without that other DAG there is nothing to hide
    assert page("only_joined", "barrier_default/joined/1").text == page("admin", "barrier_default/joined/1").text


def who_may_read_none_of_its_dags_learns_nothing(counting: Counting) -> None:
    page = counting.airflow.page
    paths = (
        "barrier_default/joined/2", "barrier_default/joined/99", "barrier_default/joined/revision/1",
        "barrier_default/nothing/1", "spark_default/joined/2", "nothing/joined/2",
    )  # fmt: skip
    told = {path: page("only_catchup", path) for path in paths}
    assert {path: answer.status_code for path, answer in told.items()} == dict.fromkeys(paths, 404)
    assert len({answer.text for answer in told.values()}) == 1
    assert {page("admin", path).text for path in paths[1:]} == {told[paths[0]].text}
    assert page("admin", f"barrier_default/joined/{2**64}").status_code == 422
    assert httpx.get(f"{counting.airflow.url}/barrier/{paths[0]}", timeout=patience()).status_code == 401


def the_api_tells_the_same(counting: Counting) -> None:
    def told(user: str, path: str) -> httpx.Response:
        return counting.airflow.page(user, f"v1/deployments{path}")

    topology = "/barrier_default/topologies/joined"
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
    url = f"{counting.airflow.url}/barrier/v1/deployments"
    for path in ("", topology, "/barrier_default/events"):
        assert httpx.get(url + path, timeout=patience()).status_code == 401
