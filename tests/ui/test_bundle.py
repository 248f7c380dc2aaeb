"""The page's one file: what its sources build to, small, and without what the host has."""

from __future__ import annotations

from pathlib import Path

from airflow_barrier.plugins import bundle


def test_it_is_what_its_sources_build_to_and_small(ui: Path) -> None:
    assert (ui / "src" / "index.tsx").exists()
    assert bundle.BUNDLE.stat().st_size < 200_000


def test_it_brings_nothing_that_the_host_shares() -> None:
    """Two Reacts on one page do not work together."""
    text = bundle.BUNDLE.read_text(encoding="utf-8")
    for shared in ("React", "ReactJSXRuntime", "ReactRouterDOM"):
        assert f"globalThis.{shared}" in text
    assert "react.production" not in text
    assert "dangerouslySetInnerHTML" not in text
    assert "innerHTML" not in text
