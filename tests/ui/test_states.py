"""The page while a barrier is BLOCKED, a job has failed and a revision is under way, as several people see it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.protocol.errors import BarrierBlockedError
from airflow_barrier.protocol.records import Barrier, Tries
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Job
from tests.support.airflow import LONG
from tests.support.counting import Counting
from tests.ui.by_hand import begun, opened, staged
from tests.ui.looking import act, cell, log_in, navigation, nothing_grave, tab, watched

NAMESPACE = "stated"
EVENTS, TOTALS = f"{NAMESPACE}.events", f"{NAMESPACE}.totals"
#: By DAG; `only_joined` reads the first of them.
JOBS = {"joined": (Job("load", "joined", outlets=(EVENTS,)),)}
JOBS["joined_later"] = (Job("sum", "joined_later", inlets=(EVENTS,), outlets=(TOTALS,)),)
#: Has more jobs than are drawn, and no barrier.
WIDE = f"{NAMESPACE}_wide"
HOSTILE = """<script>globalThis.hurt = true</script><img src=x onerror="globalThis.hurt = true"> 'no' "rows" & so on"""
#: Of the task that failed.
LOG = re.compile("/dags/joined/runs/by_hand_3/tasks/load$")


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_it_says_what_is_wrong_and_who_may_mend_it_does(counting: Counting, browser: Browser, ui: Path) -> None:
    """One scene, looked at by four people."""
    scene(counting)
    home = urlsplit(counting.airflow.url).netloc
    with browser.new_context() as anybody, browser.new_context() as team, browser.new_context() as reader:
        with browser.new_context() as person:
            contexts = [watched(context) for context in (anybody, team, reader, person)]
            an_anonymous_visitor_logs_in_first(anybody.new_page(), counting)
            another_team_sees_its_own(log_in(team, counting.airflow, "only_joined"), counting, ui)
            viewer = log_in(reader, counting.airflow, "viewer")
            who_only_reads_has_no_buttons(viewer, counting, ui)
            page = log_in(person, counting.airflow)
            what_is_wrong_is_said(page, counting, ui)
            a_revision_is_cancelled(page, counting, ui)
            what_is_not_there_is_said(page, counting)
            of_many_jobs_some_are_drawn(page, ui)
            ours_is_kept(page, viewer, counting, ui)
        for asked, broken in contexts:
            assert broken == []
            assert {urlsplit(url).netloc for url in asked} == {home}


def scene(counting: Counting) -> None:
    """Barrier 1 is COMMIT, and computed again; 2 is BLOCKED; of 3 the first job failed. Another topology has none."""
    counting.create("events", "totals")
    deployment = counting.deployment
    table = f"{WIDE}.t{{}}".format
    wide = [
        Job(f"part_{n}", "joined", inlets=(table((n - 1) // 2),) if n else (), outlets=(table(n),)) for n in range(70)
    ]
    deployment.meta.topologies.register(WIDE, "joined", wide, "test")
    for dag, jobs in JOBS.items():
        deployment.meta.topologies.register(NAMESPACE, dag, jobs, "test")
    first = opened(counting, "joined", 1)
    processed(counting, first)
    commit_barrier(deployment, NAMESPACE, first.barrier_id, actor="test")
    second = opened(counting, "joined", 2)
    processed(counting, second)
    deployment.meta.publishing.begin(NAMESPACE, second.barrier_id, deployment.tables.mains([EVENTS, TOTALS]), "test")
    counting.write("totals", 7_000)
    with pytest.raises(BarrierBlockedError):
        commit_barrier(deployment, NAMESPACE, second.barrier_id, actor="test")
    failed = begun(counting, opened(counting, "joined", 3), "load", "joined/by_hand_3")
    deployment.meta.attempts.abort(failed.attempt.attempt_id, HOSTILE, "test")
    deployment.meta.attempts.tried(failed.attempt.request_key, Tries(3, 3, None))
    revision = deployment.meta.revisions.begin(
        NewRevision(
            topology=NAMESPACE,
            mode=RevisionMode.INCREMENTAL,
            first_barrier=1,
            predecessor=0,
            window_end=1,
            tables=[TOTALS],
            jobs=["sum"],
            changed=["sum"],
            topology_version=deployment.meta.topologies.version(NAMESPACE),
            reason="the sums were wrong",
            actor="ada",
        )
    )
    begun(counting, deployment.meta.revisions.barriers(NAMESPACE, revision.revision)[0], "sum")


def processed(counting: Counting, barrier: Barrier) -> None:
    """One row in each table, worth ten times that of the barrier before."""
    for job, table in (("load", EVENTS), ("sum", TOTALS)):
        staged(counting, begun(counting, barrier, job), table, 10 ** (barrier.barrier_id - 1))


def an_anonymous_visitor_logs_in_first(page: Page, counting: Counting) -> None:
    page.goto(counting.airflow.page(NAMESPACE, "barrier=2"))
    expect(page.locator("input[name=username]")).to_be_visible()
    expect(page.get_by_text("BLOCKED")).to_have_count(0)


def another_team_sees_its_own(page: Page, counting: Counting, ui: Path) -> None:
    see(page, counting, "barrier=2")
    expect(page.get_by_role("rowheader", name=EVENTS, exact=True).first).to_be_visible()
    expect(page.get_by_text("Of 1 more DAG, which you may not read, nothing is shown.")).to_be_visible()
    nothing_can_be_done(page)
    nothing_grave(page, ui)
    see(page, counting, "view=grid")
    expect(cell(page, EVENTS, 3)).to_have_class(re.compile("failed"))
    expect(page.get_by_text("Of 1 more DAG, which you may not read, nothing is shown.")).to_be_visible()
    assert "totals" not in page.locator(".barriers").inner_text()
    nothing_grave(page, ui)


def who_only_reads_has_no_buttons(page: Page, counting: Counting, ui: Path) -> None:
    see(page, counting, "revision=1")
    expect(page.get_by_role("heading", name="Revision 1")).to_contain_text("STAGING")
    nothing_can_be_done(page)
    see(page, counting, "barrier=2")
    expect(page.get_by_role("heading", name="Barrier 2")).to_contain_text("BLOCKED")
    expect(page.locator(".warn").filter(has_text=TOTALS)).to_be_visible()
    nothing_can_be_done(page)
    nothing_grave(page, ui)


def what_is_not_there_is_said(page: Page, counting: Counting) -> None:
    for what, said in (
        ("filter=nothing", "No table here has that in its name"),
        ("before=1", "There are no older barriers"),
        ("view=revisions&before=1", "There are no older revisions"),
    ):
        see(page, counting, what)
        expect(page.get_by_text(said)).to_be_visible()
    page.goto(counting.airflow.page(WIDE, ""))
    expect(page.get_by_text("No barrier was opened yet")).to_be_visible()
    tab(page, "Delay").click()
    expect(page.get_by_text("No barrier became readable in 7 d")).to_be_visible()


def of_many_jobs_some_are_drawn(page: Page, ui: Path) -> None:
    tab(page, "Graph").click()
    said, drawn = page.locator("[role=status]").filter(has_text="of 70 jobs"), page.get_by_role("group", name="job ")
    expect(said).to_have_text(re.compile("^20 of 70 jobs: first those that are late"))
    expect(drawn).to_have_count(20)
    nothing_grave(page, ui)
    page.get_by_label("Filter").fill("part_10")  # its inlet is of part_4, its outlet of two others
    expect(said).to_have_text("1 of 70 jobs matches.")
    expect(drawn).to_have_count(4)
    page.get_by_label("Filter").fill("part")
    expect(said).to_have_text("70 of 70 jobs match; of these with their neighbours 60 are drawn.")
    expect(drawn).to_have_count(60)


def the_dashboard_says_what_is_blocked(page: Page, ui: Path) -> None:
    ill = page.get_by_role("region", name="Barriers").get_by_role("listitem").filter(has_text=NAMESPACE).first
    expect(ill).to_contain_text("blocked")
    nothing_grave(page, ui)
    ill.get_by_role("link", name=re.compile("^Barrier 2 is BLOCKED")).click()
    expect(page.get_by_role("heading", name="Barrier 2")).to_contain_text("BLOCKED")


def topologies_are_found(page: Page, ui: Path) -> None:
    """By their health, and by the name of a table."""
    ours, wide = (page.get_by_role("link", name=name, exact=True) for name in (NAMESPACE, WIDE))
    page.get_by_role("navigation", name="By health").get_by_role("link", name="no barrier yet").click()
    expect(page).to_have_url(re.compile("health=empty"))
    expect(wide).to_be_visible()
    expect(ours).to_have_count(0)
    nothing_grave(page, ui)
    page.get_by_role("navigation", name="By health").get_by_role("link", name="topolog").click()
    page.get_by_label("Filter").fill("TED.TOT")
    expect(wide).to_have_count(0)
    expect(ours).to_have_attribute("href", re.compile("filter=TED.TOT"))
    page.get_by_label("Filter").fill("")
    expect(wide).to_be_visible()


def what_is_wrong_is_said(page: Page, counting: Counting, ui: Path) -> None:
    the_dashboard_says_what_is_blocked(page, ui)
    navigation(page).get_by_role("link", name="Barriers").click()
    card = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=NAMESPACE, exact=True))
    expect(card).to_contain_text("blocked")
    expect(page.locator(".card").first).to_have_class(re.compile("blocked"))
    topologies_are_found(page, ui)
    expect(card.get_by_role("link", name="revision 1 is under way")).to_be_visible()
    card.get_by_role("link", name=NAMESPACE, exact=True).click()
    expect(cell(page, TOTALS, 2)).to_have_attribute("aria-label", re.compile("blocked: somebody else wrote"))
    expect(cell(page, EVENTS, 3)).to_have_attribute("aria-label", re.compile("its newest attempt failed.*<script>"))
    who_has_failed_is_said(page)
    nothing_grave(page, ui)
    cell(page, EVENTS, 3).click()
    who_has_failed_is_said(page)
    said = page.get_by_role("article").inner_text()
    assert said.index("Log, and clear it") < said.index("Abort barrier 3"), "what mends stands before what gives up"
    attempt = page.get_by_role("region", name="Attempts").get_by_role("row").filter(has_text="load")
    expect(attempt).to_contain_text("failed · Log")
    expect(attempt.get_by_role("link", name="Log of attempt")).to_have_attribute("href", LOG)
    expect(attempt).to_contain_text(HOSTILE)
    assert page.evaluate("globalThis.hurt") is None
    nothing_grave(page, ui)


def who_has_failed_is_said(page: Page) -> None:
    failed = page.get_by_role("listitem").filter(
        has_text="load (DAG joined) failed at barrier 3, try 3 of 3; it holds up 1"
    )
    expect(failed).to_contain_text(HOSTILE)
    expect(failed.get_by_role("link", name="Log, and clear it")).to_have_attribute("href", LOG)


def a_revision_is_cancelled(page: Page, counting: Counting, ui: Path) -> None:
    see(page, counting, "view=revisions")
    row = page.get_by_role("row").filter(has_text="the sums were wrong")
    row.get_by_role("link", name="1", exact=True).click()
    barriers = page.get_by_role("region", name="Its barriers").get_by_role("row")
    expect(barriers.nth(1)).to_contain_text("sum: running")
    expect(barriers.nth(2)).to_contain_text("sum: not started")
    missing = page.get_by_role("region", name="What is missing").get_by_role("listitem")
    expect(missing.first).to_have_text(re.compile(f"^Barrier 1 .* lacks 1 table: {TOTALS} .job sum.$"))
    nothing_grave(page, ui)
    act(page, "Cancel revision 1", "the wrong day", "readers have seen nothing of it")
    expect(page.get_by_role("heading", name="Revision 1")).to_contain_text("CANCELLED")


def ours_is_kept(page: Page, viewer: Page, counting: Counting, ui: Path) -> None:
    """Who looks on sees it, too."""
    see(page, counting, "barrier=2")
    page.get_by_role("button", name="Decide about its tables").click()
    expect(page.get_by_role("list", name="Tables in the way")).to_contain_text("no longer counts")
    nothing_grave(page, ui)
    act(page, f"Keep ours of {TOTALS}", "ticket 19", f"Ours of {TOTALS} stands. Barrier 2 is COMMITTING")
    act(page, "Commit barrier 2", "ticket 19", "Committed barrier 2: readers have it.")
    for looking in (page, viewer):
        expect(looking.get_by_role("heading", name="Barrier 2")).to_contain_text(re.compile("COMMIT$"))
    nothing_grave(page, ui)
    tables_are_found_by_their_states(page, counting)
    assert counting.deployment.meta.barriers.get(NAMESPACE, 2).state is BarrierState.COMMIT
    assert counting.published("totals") == counting.read_at("totals", 2) == 11


def tables_are_found_by_their_states(page: Page, counting: Counting) -> None:
    see(page, counting, "state=failed")
    expect(cell(page, EVENTS, 3)).to_be_visible()
    expect(cell(page, TOTALS, 3)).to_have_count(0)
    page.get_by_label("Show").select_option("not done")
    expect(cell(page, TOTALS, 3)).to_be_visible()
    expect(page).to_have_url(re.compile("state=not[+]done"))


def see(page: Page, counting: Counting, what: str) -> None:
    page.goto(counting.airflow.page(NAMESPACE, what))


def nothing_can_be_done(page: Page) -> None:
    """There is none of the buttons that are offered to who may do something."""
    expect(page.get_by_role("group", name="What you may do")).to_have_count(0)
