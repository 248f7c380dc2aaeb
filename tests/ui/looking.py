"""What tests do in a browser, whatever page they look at."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.support.airflow import AirflowUnderTest
from tests.support.waiting import patience

#: What axe-core calls grave enough to keep people out.
GRAVE = ("serious", "critical")


def watched(context: BrowserContext) -> tuple[list[str], list[str]]:
    """All addresses that any page asks for, and what broke in it."""
    asked: list[str] = []
    broken: list[str] = []
    context.on("request", lambda request: asked.append(request.url) if request.url.startswith("http") else None)
    context.on("weberror", lambda error: broken.append(str(error.error)))
    return asked, broken


def log_in(context: BrowserContext, airflow: AirflowUnderTest, user: str = "admin") -> Page:
    context.set_default_timeout(patience(60) * 1e3)
    expect.set_options(timeout=patience(60) * 1e3)
    page = context.new_page()
    page.goto(f"{airflow.url}/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow.password_of(user))
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/auth/" not in url)
    return page


def act(page: Page, name: str, reason: str, outcome: str) -> None:
    page.get_by_role("button", name=name).click()
    dialog = page.get_by_role("dialog", name=name)
    dialog.get_by_role("textbox", name="Why").fill(reason)
    dialog.get_by_role("button", name=name).click()
    expect(page.get_by_role("status").filter(has_text=outcome)).to_be_focused()


def navigation(page: Page) -> Locator:
    """Airflow's, beside whatever page: the dashboard has a link of the same name in our tile."""
    return page.get_by_test_id("nav-sidebar")


def tab(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="Of this topology").get_by_role("link", name=name, exact=True)


def cell(page: Page, table: str, barrier_id: int) -> Locator:
    return page.locator(f'a[aria-label^="{table} at barrier {barrier_id}:"]')


def nothing_grave(page: Page, ui: Path) -> None:
    """What axe-core finds in our part of the page, dark and light; the rest is Airflow's."""
    page.evaluate((ui / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator(f"html.{scheme}")).to_have_count(1)
        found = page.evaluate("axe.run('.barriers')")["violations"]
        assert [f"{scheme}: {one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in GRAVE] == []
