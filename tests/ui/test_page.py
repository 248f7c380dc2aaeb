"""The page in Airflow's UI, in a real browser beside a real Airflow whose DAG runs meanwhile."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import duckdb
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_barrier.api import events
from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.staging import close
from airflow_barrier.links.barrier import DAG_ROUTE, RUN_ROUTE, TASK_ROUTE, URL_PREFIX, BarrierLink
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.operators.commit import table_asset
from airflow_barrier.plugins import bundle
from airflow_barrier.plugins.barrier import BarrierPlugin
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import BarrierBlockedError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.revisions import Revision, RevisionMode
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.reading.duckdb_views import load_extension
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.counting import Counting
from tests.support.waiting import patience
from tests.ui.by_hand import begun, opened, staged
from tests.ui.looking import act, cell, log_in, navigation, nothing_grave, tab, watched

NAMESPACE = "paged"
#: Where an engine reads that knows no REST catalog.
BY_TAG = "your own catalog, by tag"
#: Connections of a test whose databases do not answer (tests/support/vault.py).
UNANSWERED = "vault_wrong_password cannot be asked just now"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_the_page_shows_a_barrier_while_it_advances(counting: Counting, browser: Browser, ui: Path) -> None:
    """One story, since all of it is about one barrier, which is held up until the page shows that it runs."""
    counting.create("events", "totals")
    hold = counting.tell("hold", "load", 2)
    counting.airflow.unpause("paged")
    threads = ThreadPoolExecutor(1)
    try:
        counting.airflow.until(lambda: counting.attempts(2, "load") == ["RUNNING"], "the second barrier's first job")
        with browser.new_context() as context:
            asked, broken = watched(context)
            page = log_in(context, counting.airflow)
            # rights are looked at each minute, which the rest of the story does not wait for
            stream = threads.submit(a_stream_ends_with_its_login, counting.airflow)
            the_navigation_leads_to_a_topology(page, ui)
            cells_change_without_a_reload(page, hold)
            a_cell_leads_to_its_barrier_and_back(page, ui)
            the_delay_of_a_window(page, ui)
            the_graph_leads_to_who_took_the_time(page, ui)
            what_was_computed_again(page, ui, counting)
            who_reads_and_what_goes_in_and_out(page, ui, counting, asked)
            what_a_person_does(page, ui, counting)
            engines_connect_as_the_page_says(page, ui, counting)
            # one page: each that is seen has a stream, and a browser has six connections to a host
            the_address_alone_leads_there(page, counting.airflow)
            a_task_links_there(page, counting)
            a_dag_has_a_tab(page, counting.airflow, ui)
            of_several_deployments_each_has_its_say(page, counting.airflow, ui)
            a_run_and_a_task_have_tabs(page, counting, ui)
            a_run_that_worked_for_several_barriers_lists_them(page, counting, ui)
            a_run_that_tried_nothing_has_a_tab(page, counting, ui)
            the_dashboard_has_a_tile(page, counting.airflow, ui)
            a_table_leads_to_its_asset(page, counting.airflow)
        everybody_gets_the_bundle_and_keeps_it(counting.airflow)
        stream.result(patience(events.RIGHTS + 30))
    finally:
        hold.unlink(missing_ok=True)
        threads.shutdown(wait=False)
    assert broken == []
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(counting.airflow.url).netloc}


def a_stream_ends_with_its_login(airflow: AirflowUnderTest) -> None:
    login, url = airflow.login_of("admin"), f"{airflow.barriers}/barrier_default/events"
    end = monotonic() + patience(events.RIGHTS + 30)
    with httpx.stream("GET", url, headers=login, timeout=patience()) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: change"
        assert httpx.get(f"{airflow.url}/api/v2/auth/logout", headers=login, timeout=patience()).is_redirect
        for _ in lines:
            assert monotonic() < end
    assert httpx.get(url, headers=login, timeout=patience()).status_code == 403


def the_navigation_leads_to_a_topology(page: Page, ui: Path) -> None:
    navigation(page).get_by_role("link", name="Barriers").click()
    card = page.get_by_role("listitem").filter(has_text="paged")
    expect(card).to_contain_text("Barrier 1")
    nothing_grave(page, ui)
    card.get_by_role("link", name="paged", exact=True).click()
    expect(cell(page, "paged.events", 1)).to_have_class(re.compile("written"))
    expect(cell(page, "paged.events", 2)).to_have_class(re.compile("running"))
    expect(page.get_by_role("table").get_by_role("link", name="paged", exact=True)).to_have_attribute(
        "href", re.compile("/dags/paged$")
    )
    nothing_grave(page, ui)


def cells_change_without_a_reload(page: Page, hold: Path) -> None:
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    page.evaluate("globalThis.hereBefore = true")
    hold.unlink()
    for table in ("paged.events", "paged.totals"):
        expect(cell(page, table, 2)).to_have_attribute("aria-label", re.compile("readable by everybody"))
    expect(page.get_by_role("definition").filter(has_text=re.compile("2 · "))).to_be_visible()
    assert page.evaluate("globalThis.hereBefore")


def a_cell_leads_to_its_barrier_and_back(page: Page, ui: Path) -> None:
    cell(page, "paged.totals", 1).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()
    its_time_is_somebodys(page)
    page.get_by_role("combobox", name="Engine").select_option(BY_TAG)
    expect(page.get_by_label(f"Trino SQL for {BY_TAG}", exact=True)).to_contain_text(
        "FOR VERSION AS OF 'barrier_paged_b2_r0'"
    )
    expect(page.get_by_role("link", name=re.compile("paged: scheduled__2025-01-0"))).to_have_attribute(
        "href", re.compile("/dags/paged/runs/scheduled__2025-01-0")
    )
    nothing_grave(page, ui)
    page.go_back()
    expect(cell(page, "paged.events", 2)).to_be_visible()


def its_time_is_somebodys(page: Page) -> None:
    """Of a barrier that was caught up with: it was opened long after its timestamp."""
    expect(page.get_by_text("Critical path: load, sum, commit. It was opened")).to_be_visible()
    bars = page.get_by_role("region", name="Where its time went").get_by_role("listitem")
    expect(bars.filter(has_text=re.compile("load: .*ran .*; on the critical path"))).to_be_visible()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="paged.totals", exact=True)).first
    expect(row.get_by_role("cell")).to_have_text(["sum", *[re.compile(r"\d+ s$")] * 4])


def the_delay_of_a_window(page: Page, ui: Path) -> None:
    tab(page, "Delay").click()
    expect(page.get_by_role("img", name="Seconds from timestamp to readable of 2 barriers")).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="none is declared")).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="is what readers have")).to_be_visible()
    ranking = page.get_by_role("region", name="Who took the time").get_by_role("listitem")
    expect(ranking.filter(has_text=re.compile(r"^load.*%, ran"))).to_be_visible()
    nothing_grave(page, ui)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("rowheader", name="2", exact=True)).to_be_visible()
    page.get_by_role("link", name="1 d", exact=True).click()
    page.get_by_role("combobox", name="Table").select_option("paged.events")
    expect(page.get_by_role("heading", name="Who took the time that held up paged.events")).to_be_visible()
    expect(page).to_have_url(re.compile("view=delay&window=1&table=paged.events$"))
    page.go_back()
    expect(page.get_by_role("heading", name="Who took the time", exact=True)).to_be_visible()


def the_graph_leads_to_who_took_the_time(page: Page, ui: Path) -> None:
    tab(page, "Graph").click()
    load, total = (page.get_by_role("group", name=f"job {job}", exact=True) for job in ("load", "sum"))
    expect(load).to_contain_text(re.compile(r"[0-9] %, .*paged\.events"))
    expect(total).to_contain_text("paged.totals")
    expect(page.locator(".graph path")).to_have_count(1)
    nothing_grave(page, ui)
    page.get_by_text("As a table").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="sum", exact=True))
    expect(row.get_by_role("cell").nth(1)).to_have_text("paged.events")
    # by keys alone, from column to column
    load.get_by_role("link").first.focus()
    for _ in range(2):  # its table, the next job
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Who took the time that held up paged.totals")).to_be_visible()
    page.go_back()
    page.get_by_label("Filter").fill("nothing of that name")
    expect(page.get_by_text("No job, table, DAG, source or sink has that in its name")).to_be_visible()
    expect(total).to_have_count(0)


def what_was_computed_again(page: Page, ui: Path, counting: Counting) -> None:
    tab(page, "Revisions").click()
    expect(page.get_by_text("Nothing was computed again yet: once input or code was corrected")).to_be_visible()
    revised(counting, barrier=2, predecessor=1, reason="the sums were wrong")
    # the stream says so, and the list is asked for anew
    row = page.get_by_role("row").filter(has_text="the sums were wrong")
    expect(row).to_contain_text("STAGING")
    nothing_grave(page, ui)
    row.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("heading", name="Revision 1")).to_contain_text("STAGING")
    expect(page.get_by_role("region", name="What is missing")).to_contain_text("paged.totals (job sum)")
    expect(page.get_by_role("row").filter(has_text="sum: not started")).to_be_visible()
    nothing_grave(page, ui)


def who_reads_and_what_goes_in_and_out(page: Page, ui: Path, counting: Counting, asked: list[str]) -> None:
    meta = counting.deployment.meta
    tab(page, "Readers").click()
    expect(page.get_by_text("Nobody holds a barrier now")).to_be_visible()
    meta.answers.resolve("paged", Level.REPEATABLE_READ, at=1, hold=Hold("report of ada", 600))
    tab(page, "Deliveries").click()
    expect(page.get_by_text("Nothing is delivered")).to_be_visible()
    sink = SinkDeclaration("sums", "paged", "postgresql", {"paged.totals": "sums"}, {"conn_id": "reporting"})
    meta.deliveries.register("paged", sink, "test")
    meta.deliveries.failed("paged", "sums", "nobody lets us in", "test")
    # brokers are asked by who opens the tab, and by nobody else
    assert not [url for url in asked if urlsplit(url).path.endswith("/sources")]
    tab(page, "Sources").click()
    expect(page.get_by_text("No job reads from outside")).to_be_visible()
    tab(page, "Deliveries").click()
    expect(page.get_by_text("sums fails: nobody lets us in")).to_be_visible()
    nothing_grave(page, ui)
    tab(page, "Readers").click()
    expect(page.get_by_role("row").filter(has_text="report of ada")).to_contain_text("none so far")
    expect(page.get_by_text("1 reader keeps barriers from being expired; the oldest is barrier 1.")).to_be_visible()
    nothing_grave(page, ui)


def what_a_person_does(page: Page, ui: Path, counting: Counting) -> None:
    """As whoever is logged in; the audit has their name."""
    a_lease_is_released(page)
    a_barrier_is_aborted_by_the_keyboard_alone(page, ui, counting)
    page.goto(counting.airflow.page("paged", "revision=1"))
    act(page, "Cancel revision 1", "the wrong day", "readers have seen nothing of it")
    expect(page.get_by_role("heading", name="Revision 1")).to_contain_text("CANCELLED")
    a_blocked_barrier_is_led_out(page, ui, counting)
    audit = {entry.event: entry.actor for entry in counting.deployment.meta.audit.newest("paged")}
    assert {event: audit[event] for event in ("aborted", "released", "cancelled", "adopt-theirs", "commit")} == {
        "aborted": "admin (Airflow)",
        "released": "admin (Airflow): ada has left",
        "cancelled": "admin (Airflow)",
        "adopt-theirs": "admin (Airflow)",
        "commit": "admin (Airflow): ticket 18",
    }


def a_lease_is_released(page: Page) -> None:
    act(page, "Release lease", "ada has left", "its reader will be told")
    expect(page.get_by_text("Nobody holds a barrier now")).to_be_visible()


def a_barrier_is_aborted_by_the_keyboard_alone(page: Page, ui: Path, counting: Counting) -> None:
    opened(counting, "paged", 4)
    page.goto(counting.airflow.page("paged", "barrier=3"))
    button = page.get_by_role("button", name="Abort barrier 3")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Abort barrier 3")
    expect(dialog).to_contain_text("Gives up barrier 3; its epoch joins the next barrier's.")
    expect(dialog.get_by_role("textbox", name="Why")).to_be_focused()
    nothing_grave(page, ui)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("landed twice")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Aborted barrier 3")).to_be_focused()
    expect(page.get_by_role("heading", name="Barrier 3")).to_contain_text("ABORTED")
    expect(button).to_have_count(0)
    nothing_grave(page, ui)
    assert counting.deployment.meta.barriers.get("paged", 3).reason == "landed twice"


def a_blocked_barrier_is_led_out(page: Page, ui: Path, counting: Counting) -> None:
    deployment, barrier = counting.deployment, opened(counting, "paged", 5)
    for job, table in (("load", "paged.events"), ("sum", "paged.totals")):
        attempt = begun(counting, barrier, job).attempt
        record = ClosingRecord(attempt.attempt_id, {table: StagedTable(table, None, unchanged=True)})
        close(deployment, attempt, record=record, actor="test")
    mains = deployment.tables.mains(["paged.events", "paged.totals"])
    deployment.meta.publishing.begin("paged", barrier.barrier_id, mains, "test")
    counting.write("totals", 7)
    with pytest.raises(BarrierBlockedError):
        commit_barrier(deployment, "paged", barrier.barrier_id, actor="test")
    page.goto(counting.airflow.page("paged", "barrier=4"))
    page.get_by_role("button", name="Decide about its tables").click()
    table = page.get_by_role("list", name="Tables in the way").get_by_role("listitem")
    expect(table).to_contain_text("This epoch's rows of it")
    nothing_grave(page, ui)
    act(page, "Adopt theirs of paged.totals", "ticket 18", "Theirs of paged.totals stands. Barrier 4 is COMMITTING")
    act(page, "Commit barrier 4", "ticket 18", "Committed barrier 4: readers have it.")
    expect(page.get_by_role("heading", name="Barrier 4")).to_contain_text("COMMIT")
    assert deployment.meta.barriers.get("paged", 4).state is BarrierState.COMMIT


def engines_connect_as_the_page_says(page: Page, ui: Path, counting: Counting) -> None:
    """By its texts as they are copied."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    computed_again(counting)
    for place, warehouse, total in (
        ("barrier=2", "paged@b2", 11),
        ("barrier=4", "paged@b4.r2", 1_011),
        ("view=readers", "paged@repeatable_read", 1_011),
    ):
        page.goto(counting.airflow.page("paged", place))
        all_engines_are_told(page, counting.airflow, warehouse)
        nothing_grave(page, ui)
        page.get_by_role("combobox", name="Table").select_option("paged.totals")
        assert read_by_duckdb(copied(page, "DuckDB", "SQL"), counting.airflow) == total, place
        assert read_by_pyiceberg(copied(page, "pyiceberg", "Python"), counting.airflow) == total, place
    for level in ("read committed", "read uncommitted"):
        page.get_by_role("combobox", name="Consistency").select_option(level)
        all_engines_are_told(page, counting.airflow, f"paged@{level.replace(' ', '_')}")
    expect(page.get_by_role("row").filter(has_text="Iceberg catalog of admin")).to_have_count(6)


def computed_again(counting: Counting) -> None:
    """The newest barrier, by a revision that readers have."""
    deployment = counting.deployment
    revision = revised(counting, barrier=4, predecessor=2, reason="a thousand was missing")
    (barrier,) = deployment.meta.revisions.barriers("paged", revision.revision)
    staged(counting, begun(counting, barrier, "sum"), "paged.totals", 1_000)
    assert isinstance(publish_revision(deployment, "paged", revision.revision, actor="test"), Swapped)


def revised(counting: Counting, barrier: int, predecessor: int, reason: str) -> Revision:
    """A revision of one barrier is under way, of `sum`."""
    meta = counting.deployment.meta
    return meta.revisions.begin(
        NewRevision(
            topology="paged",
            mode=RevisionMode.INCREMENTAL,
            first_barrier=barrier,
            predecessor=predecessor,
            window_end=barrier,
            tables=["paged.totals"],
            jobs=["sum"],
            changed=["sum"],
            topology_version=meta.topologies.version("paged"),
            reason=reason,
            actor="ada",
        )
    )


def all_engines_are_told(page: Page, airflow: AirflowUnderTest, warehouse: str) -> None:
    engine = page.get_by_role("combobox", name="Engine")
    expect(engine).to_be_visible()
    engines = engine.locator("option").all_inner_texts()
    assert ("Trino" in engines) == (BY_TAG in engines) == ("@b" in warehouse)
    for each in engines:
        engine.select_option(each)
        if each != BY_TAG:
            text = page.locator("pre").first
            expect(text).to_contain_text(f"{airflow.url}{URL_PREFIX}/iceberg/barrier_default")
            expect(text).to_contain_text(re.compile(rf"{re.escape(warehouse)}(?![\w.])"))
            expect(text).to_contain_text("<token>")
            expect(page.get_by_text(f"POST {airflow.url}/auth/token")).to_be_visible()


def copied(page: Page, engine: str, what: str) -> str:
    page.get_by_role("combobox", name="Engine").select_option(engine)
    button = page.get_by_role("button", name=f"Copy the {what} for {engine}")
    button.click()
    expect(button).to_contain_text("Copied")
    return str(page.evaluate("navigator.clipboard.readText()"))


def read_by_duckdb(text: str, airflow: AirflowUnderTest) -> int:
    with duckdb.connect() as connection:
        for extension in ("httpfs", "avro", "iceberg"):
            load_extension(connection, extension)
        rows = connection.execute(text.replace("<token>", airflow.token_of("admin"))).fetchall()
    return sum(n for _, n in rows)


def read_by_pyiceberg(text: str, airflow: AirflowUnderTest) -> int:
    found: dict[str, Any] = {}
    exec(text.replace("<token>", airflow.token_of("admin")), found)  # as it stands on the page
    return sum(found["rows"].column("n").to_pylist())


def the_address_alone_leads_there(page: Page, airflow: AirflowUnderTest) -> None:
    page.goto(f"{airflow.url}/plugin/barriers?deployment=barrier_default&topology=paged&filter=tot")
    expect(cell(page, "paged.totals", 2)).to_be_visible()
    expect(cell(page, "paged.events", 2)).to_have_count(0)
    box = page.get_by_label("Filter")
    box.fill("")
    expect(cell(page, "paged.events", 2)).to_be_visible()
    box.press_sequentially("paged.ev")
    expect(cell(page, "paged.totals", 2)).to_have_count(0)
    expect(box).to_have_value("paged.ev")
    expect(page).to_have_url(re.compile("filter=paged.ev$"))
    # a topology that is not there is a sentence, and no blank page
    page.goto(f"{airflow.url}/plugin/barriers?deployment=barrier_default&topology=nothing")
    # others' connections, which nobody can answer, may be told beside it
    alert = page.get_by_role("alert").filter(has_text="There is no such thing among what you may read")
    expect(alert).to_be_visible()


def a_task_links_there(page: Page, counting: Counting) -> None:
    link = counting.airflow.link("paged", counting.airflow.run_ids("paged")[1], counting.task("sum"))
    assert link == counting.airflow.page("paged", "barrier=2")
    page.goto(link)
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()
    page.goto(counting.airflow.page("paged", "revision=1"))
    expect(page.get_by_role("heading", name="Revision 1")).to_be_visible()


def a_dag_has_a_tab(page: Page, airflow: AirflowUnderTest, ui: Path) -> None:
    """With the topologies that it has jobs in, each of which can be looked at there."""
    airflow.wait_for_dag("recovery_reader")
    page.goto(f"{airflow.url}/dags/paged")
    page.locator(f"a[href$='/plugin/{DAG_ROUTE}']").click()  # the navigation has a link of that name, too
    expect(page).to_have_url(re.compile(f"/dags/paged/plugin/{DAG_ROUTE}$"))
    card = page.locator(".card")
    expect(card).to_have_count(1)
    nothing_grave(page, ui)
    card.get_by_role("link", name="paged", exact=True).click()
    expect(cell(page, "paged.events", 2)).to_be_visible()
    expect(page).to_have_url(re.compile(f"/dags/paged/plugin/{DAG_ROUTE}[?].*topology=paged"))
    page.goto(f"{airflow.url}/dags/recovery_reader/plugin/{DAG_ROUTE}")
    # that it has no job anywhere is said once all have answered
    expect(page.get_by_text(UNANSWERED)).to_be_visible()
    expect(page.get_by_text("This DAG has no job")).to_have_count(0)
    expect(card).to_have_count(0)


def of_several_deployments_each_has_its_say(page: Page, airflow: AirflowUnderTest, ui: Path) -> None:
    """One stands first in the alphabet, and its database is not made yet; others do not answer."""
    (airflow.folder / "a_new").mkdir()
    extra = json.dumps({"warehouse": f"{airflow.folder}/a_new"})
    defined = {"connection_id": "a_new", "conn_type": "barrier", "extra": extra}
    airflow.api.post("/connections", json=defined).raise_for_status()
    try:
        page.goto(f"{airflow.url}/dags/paged/plugin/{DAG_ROUTE}")
        expect(page.locator(".card").get_by_role("link", name="paged", exact=True)).to_be_visible()
        expect(page.get_by_text(UNANSWERED)).to_be_visible()
        nothing_grave(page, ui)
        page.goto(f"{airflow.url}/plugin/barriers?deployment=a_new")
        expect(page.get_by_text("Run a DAG that has a BarrierGroup once, and its topology appears")).to_be_visible()
        expect(page.get_by_label("Deployment")).to_have_value("a_new")
        nothing_grave(page, ui)
    finally:
        airflow.api.delete("/connections/a_new").raise_for_status()


def a_run_and_a_task_have_tabs(page: Page, counting: Counting, ui: Path) -> None:
    """With the barrier that they are about, at once; of a task what its job does first."""
    run = f"{counting.airflow.url}/dags/paged/runs/{counting.airflow.run_ids('paged')[1]}"
    page.goto(run)
    page.locator(f"a[href$='/plugin/{RUN_ROUTE}']").click()
    expect(page).to_have_url(re.compile(f"/plugin/{RUN_ROUTE}$"))
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()
    expect(page.get_by_text("this run opened the barrier; it has tried load, sum")).to_be_visible()
    nothing_grave(page, ui)
    page.goto(f"{run}/tasks/{counting.task('sum')}")
    page.locator(f"a[href$='/plugin/{TASK_ROUTE}']").click()
    expect(page).to_have_url(re.compile(f"/plugin/{TASK_ROUTE}$"))
    tables = page.get_by_role("region", name="Tables").get_by_role("row")
    expect(tables.nth(1)).to_contain_text("paged.totals assetsum (this task)")
    # a task without attempts of its own: as its link says
    page.goto(f"{run}/tasks/{counting.task('start')}/plugin/{TASK_ROUTE}")
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()
    expect(page.get_by_text("(this task)")).to_have_count(0)
    page.locator(".barriers p").get_by_role("link", name="paged", exact=True).click()
    expect(cell(page, "paged.totals", 2)).to_be_visible()


def a_run_that_worked_for_several_barriers_lists_them(page: Page, counting: Counting, ui: Path) -> None:
    run = counting.airflow.run_ids("paged")[1]
    begun(counting, opened(counting, "paged", 6), "load", run=f"paged/{run}")
    page.goto(f"{counting.airflow.url}/dags/paged/runs/{run}/plugin/{RUN_ROUTE}")
    rows = page.get_by_role("region", name="Barriers").locator("tbody").get_by_role("row")
    expect(rows).to_have_text(
        [
            re.compile("^5pagedOPEN.*it has tried load$"),
            re.compile("^2pagedCOMMIT.*this run opened the barrier; it has tried load, sum$"),
        ]
    )
    nothing_grave(page, ui)
    rows.get_by_role("link", name="2", exact=True).click()
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()


def a_run_that_tried_nothing_has_a_tab(page: Page, counting: Counting, ui: Path) -> None:
    """None of its tasks has begun; then one says its barrier, whose jobs another run has done."""
    airflow = counting.airflow
    airflow.pause("paged")
    run = f"/dags/paged/runs/{airflow.trigger('paged')}"
    page.goto(f"{airflow.url}{run}/plugin/{RUN_ROUTE}")
    expect(page.get_by_text("This run has neither opened a barrier nor tried a job of one")).to_be_visible()
    expect(page.locator(".card").get_by_role("link", name="paged", exact=True)).to_be_visible()
    nothing_grave(page, ui)
    page.goto(f"{airflow.url}{run}/tasks/{counting.task('sum')}/plugin/{TASK_ROUTE}")
    expect(page.get_by_text("This task works for no barrier so far")).to_be_visible()
    entries = f"{run.replace('/runs/', '/dagRuns/')}/taskInstances/{counting.task('sum')}/xcomEntries"
    link = {"key": BarrierLink().xcom_key, "value": airflow.page("paged", "barrier=2")}
    airflow.api.post(entries, json=link).raise_for_status()
    page.goto(f"{airflow.url}{run}/plugin/{RUN_ROUTE}")
    expect(page.get_by_text("the barrier that this run is for")).to_be_visible()
    expect(page.get_by_role("heading", name="Barrier 2")).to_be_visible()
    nothing_grave(page, ui)


def the_dashboard_has_a_tile(page: Page, airflow: AirflowUnderTest, ui: Path) -> None:
    page.goto(f"{airflow.url}/")
    tile = page.get_by_role("region", name="Barriers")
    expect(tile).to_contain_text(re.compile("Of [0-9]+ topolog"))
    nothing_grave(page, ui)
    tile.get_by_role("link", name="The last delivery to sums failed.").click()
    expect(page.get_by_text("sums fails: nobody lets us in")).to_be_visible()
    page.goto(f"{airflow.url}/")
    tile.get_by_role("link", name="Barriers").click()
    expect(page).to_have_url(re.compile("/plugin/barriers$"))


def a_table_leads_to_its_asset(page: Page, airflow: AirflowUnderTest) -> None:
    page.goto(airflow.page("paged", "barrier=2"))
    page.get_by_role("link", name="Asset of paged.totals").click()
    expect(page.get_by_role("link", name=table_asset("paged", "paged.totals").uri)).to_be_visible()


def everybody_gets_the_bundle_and_keeps_it(airflow: AirflowUnderTest) -> None:
    """And nothing else below it."""
    entry, *others = BarrierPlugin.react_apps
    assert {each["bundle_url"] for each in others} == {entry["bundle_url"]}
    served = httpx.get(f"{airflow.url}/{entry['bundle_url']}", timeout=patience(60)).raise_for_status()
    assert served.content == bundle.BUNDLE.read_bytes()
    assert served.headers["content-type"].startswith("text/javascript")
    assert served.headers["cache-control"] == "public, max-age=31536000, immutable"
    # a server that has not been upgraded yet is asked for what the upgraded one names
    other = httpx.get(f"{airflow.url}{URL_PREFIX}{bundle.ROUTE}?v=another", timeout=patience(60)).raise_for_status()
    assert other.headers["cache-control"] == "no-cache"
    refused = httpx.get(f"{airflow.url}{URL_PREFIX}/v1/deployments", timeout=patience(60))
    assert refused.status_code == 401
