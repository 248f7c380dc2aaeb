"""The site of the documents: `make docs` builds it without a warning, from nothing but this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator
from markdown_it import MarkdownIt

from airflow_barrier.provider import get_provider_info
from tests.support.waiting import patience

CHECKOUT = Path(__file__).parent.parent
DOCS = CHECKOUT / "docs"
#: Where the site does not call a page as the checkout does.
PLACES = {
    "README.md": "index.html",
    "docs/README.md": "contents.html",
    "docs/decisions/README.md": "decisions/index.html",
}
DOCUMENTS = [*CHECKOUT.glob("*.md"), *(file for file in DOCS.rglob("*.md") if file.parent.name != "python")]
#: What Python-Markdown takes for plain text where GitHub is less strict: blanks before it, or no empty line.
ELEMENTS = ("h2", "h3", "img", "li", "pre", "table", "tr")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_pages_have_what_github_shows(site: Path) -> None:
    github = MarkdownIt("commonmark").enable("table")
    shown = {file: _count(github.render(file.read_text())) for file in DOCUMENTS}
    assert {file: _count(_article(site, file)) for file in DOCUMENTS} == shown


def test_pages_ask_no_other_host(site: Path) -> None:
    pages = [page.read_text() for page in site.rglob("*.html")]
    loaded = {tag for page in pages for tag in re.findall(r"<(?:script|link|img)\b[^>]*>", page)}
    assert loaded
    assert {tag for tag in loaded if re.search(r"(src|href)=\"?(https?:)?//", tag)} == set()


def test_each_operator_and_sensor_is_in_the_reference(site: Path) -> None:
    info = get_provider_info()
    named = [name for room in ("operators", "sensors") for name in info[room][0]["python-modules"]]
    public = {
        f"{name}.{attribute}"
        for name in named
        for attribute, value in vars(import_module(name)).items()
        if isinstance(value, type) and issubclass(value, BaseOperator) and value.__module__ == name
    }
    described = "".join(page.read_text() for page in (site / "python").glob("*.html"))
    assert public
    assert {name for name in public if f'id="{name}"' not in described} == set()


def _article(site: Path, file: Path) -> str:
    path = file.relative_to(CHECKOUT).as_posix()
    page = (site / PLACES.get(path, path.removeprefix("docs/").replace(".md", ".html"))).read_text()
    (article,) = re.findall(r"<article.*?</article>", page, re.DOTALL)
    return article


def _count(html: str) -> dict[str, int]:
    return {element: len(re.findall(rf"<{element}\b", html)) for element in ELEMENTS}
