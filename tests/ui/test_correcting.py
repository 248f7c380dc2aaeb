"""History is corrected from the page, in a real browser: Airflow's API server wakes the runs, and they compute it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_barrier.protocol.revisions import RevisionState
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.counting import Counting
from tests.support.waiting import patience
from tests.ui.looking import log_in, nothing_grave, watched

NAMESPACE = "corrected"
DAYS = 3
#: What Airflow's API server does, in a process that has Airflow's database as well; prints what came of it.
SERVER = """
import json, sys
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from airflow_barrier.plugins.waking import AirflowWaker
from airflow_barrier.protocol.errors import BarrierError

def broken(is_broken):
    with create_session() as session:
        session.get(DagModel, "corrected").has_import_errors = is_broken

def woken(dag_id, run_id):
    try:
        AirflowWaker().wake(dag_id, run_id)
    except BarrierError as error:
        return f"{type(error).__name__}: {error}"

running, ended = sys.argv[1:]
said = [AirflowWaker().state("corrected", run) for run in (running, ended, "scheduled__never")]
said += [woken("corrected", running), woken("corrected", "scheduled__never"), woken("no_such_dag", ended)]
broken(True)
try:
    said.append(woken("corrected", ended))
finally:
    broken(False)
print(json.dumps(said))
"""


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_history_is_corrected_from_the_page(counting: Counting, browser: Browser, ui: Path) -> None:
    counting.create("events", "totals")
    airflow, meta = counting.airflow, counting.deployment.meta
    airflow.unpause(NAMESPACE)
    first, second, third = airflow.wait_for_runs(NAMESPACE, DAYS)
    assert counting.totals("totals") == [1, 11, 111]
    (airflow.folder / "corrected-corrected-2").write_text("3")
    held = counting.tell("hold", "load", 2)
    try:
        with browser.new_context() as context:
            _, broken = watched(context)
            page = log_in(context, airflow)
            page.goto(airflow.page(NAMESPACE, "barrier=2"))
            a_plan_is_seen(page, ui)
            it_is_begun(page, ui)
            airflow.wait_for_task(NAMESPACE, second, counting.task("load"), "running")
            its_runs_are_woken_again(page)
            the_server_leaves_alone_what_cannot_run(airflow, second, first)
            held.unlink()
            expect(page.get_by_role("heading", name="Revision 1")).to_contain_text(
                "COMMIT", timeout=patience(120) * 1e3
            )
            expect(page.get_by_role("button", name="Wake its runs")).to_have_count(0)
    finally:
        held.unlink(missing_ok=True)
    assert broken == []
    for run in (second, third):
        airflow.wait_for_run(NAMESPACE, run)
    revision = meta.revisions.get(NAMESPACE, 1)
    assert (revision.state, revision.actor, revision.reason) == (RevisionState.COMMIT, "admin (Airflow)", "bad prices")
    assert counting.totals("totals") == counting.totals("events") == [1, 31, 131]
    assert [counting.read_at("totals", day, 0) for day in (2, 3)] == [11, 111]
    assert airflow.run_ids(NAMESPACE) == [first, second, third]


def a_plan_is_seen(page: Page, ui: Path) -> None:
    page.get_by_role("button", name="Correct from here…").click()
    form = page.get_by_role("region", name="Correct from barrier 2")
    form.get_by_role("radio", name="A job's code").check()
    form.get_by_role("button", name="Plan").click()
    # nothing is planned as long as no job is chosen
    expect(form.get_by_role("list", name="The plan")).to_have_count(0)
    form.get_by_role("checkbox", name="sum").check()
    form.get_by_role("button", name="Plan").click()
    plan = form.get_by_role("list", name="The plan")
    expect(plan).to_contain_text("barriers 2 to 3 are computed again, on top of barrier 1 of corrected")
    expect(plan).to_contain_text("because of sum")
    expect(form).to_contain_text("airflow-barrier revision run corrected --from 2 --to 2 --job sum")
    nothing_grave(page, ui)
    # it is of what was asked, and of nothing else
    form.get_by_role("radio", name="A file's content").check()
    expect(plan).to_have_count(0)
    form.get_by_role("spinbutton", name="Up to barrier").fill("9")
    form.get_by_role("spinbutton", name="Up to barrier").fill("2")
    form.get_by_role("button", name="Plan").click()
    expect(plan).to_contain_text("because of load")
    expect(form.get_by_role("heading", name="The plan: revision 1, by DAG corrected")).to_be_focused()


def it_is_begun(page: Page, ui: Path) -> None:
    form = page.get_by_role("region", name="Correct from barrier 2")
    form.get_by_role("textbox", name="Why").fill("bad prices")
    form.get_by_role("button", name="Begin").dblclick()
    said = re.compile("Began revision 1 of corrected. Woke 1 run for it: corrected/scheduled__")
    expect(page.get_by_role("status").filter(has_text=said)).to_be_focused()
    expect(page.get_by_role("heading", name="Revision 1")).to_contain_text("STAGING")
    nothing_grave(page, ui)
    page.go_back()
    expect(page.get_by_role("heading", name="Barrier 2")).to_contain_text("COMMIT")
    expect(page.get_by_role("button", name="Correct from here…")).to_have_count(0)
    page.go_forward()


def its_runs_are_woken_again(page: Page) -> None:
    """A run that is on its way is left alone."""
    page.get_by_role("button", name="Wake its runs").click()
    dialog = page.get_by_role("dialog", name="Wake its runs")
    expect(dialog).to_contain_text("Has the runs of barrier 2 run again that have not computed it")
    dialog.get_by_role("button", name="Wake its runs").click()
    expect(page.get_by_role("status").filter(has_text="No run had to be woken.")).to_be_focused()


def the_server_leaves_alone_what_cannot_run(airflow: AirflowUnderTest, running: str, ended: str) -> None:
    command = [sys.executable, "-c", SERVER, running, ended]
    done = subprocess.run(
        command, env=airflow.environment, capture_output=True, text=True, timeout=patience(120), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *states, active, unknown, no_dag, mended = json.loads(done.stdout.splitlines()[-1])
    assert states == ["running", "success", None]
    assert active.startswith(f"RunActiveError: expected the run {running} of DAG corrected to have ended")
    assert "found it running" in active
    assert unknown.startswith("UnknownRunError: expected the run scheduled__never of DAG corrected, found none")
    assert no_dag.startswith("UnknownRunError: expected the run")
    assert mended.startswith("AirflowRefusedError: expected DAG corrected in a DAG file without import errors")
