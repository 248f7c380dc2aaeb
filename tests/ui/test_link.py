"""The address that a task links to."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from airflow_barrier.links.barrier import UI_ROUTE, barrier_page, page_url, revision_page
from airflow_barrier.plugins.barrier import BarrierPlugin


def test_its_parts_are_quoted() -> None:
    """Airflow's ids of connections may have any of these."""
    url = urlsplit(page_url("prod #1 (eu)!@a:b|c", "shop&barrier=7", barrier_page(12)))
    assert parse_qs(url.query, strict_parsing=True) == {
        "deployment": ["prod #1 (eu)!@a:b|c"],
        "topology": ["shop&barrier=7"],
        "barrier": ["12"],
    }
    assert url.fragment == ""
    assert parse_qs(urlsplit(page_url("prod", "shop", revision_page(3))).query)["revision"] == ["3"]


def test_it_is_where_the_plugin_shows_its_page() -> None:
    entry, *_ = BarrierPlugin.react_apps
    assert urlsplit(page_url("prod", "shop", barrier_page(1))).path.endswith(f"/plugin/{entry['url_route']}")
    assert entry["url_route"] == UI_ROUTE
