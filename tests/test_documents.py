"""The documents: links lead somewhere, the table of contents has each page, README's numbers are measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_barrier.systems.spark_versions import SPARK_VERSIONS
from airflow_barrier.tables import CATALOGS
from benchmarks.report import with_numbers

CHECKOUT = Path(__file__).parent.parent
DOCS = CHECKOUT / "docs"
README = (CHECKOUT / "README.md").read_text()
BENCHMARKS = (DOCS / "benchmarks.md").read_text()
DOCUMENTS = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md"), *(CHECKOUT / "tests" / "data").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.relative_to(CHECKOUT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", _prose(document.read_text()))
    assert {broken for target in targets if (broken := _broken(document, target))} == set()


def test_each_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"\]\(([\w/-]+\.md)", (DOCS / "README.md").read_text()))
    pages = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md") if file.parent.name != "decisions"}
    assert pages - listed == {"README.md"}


def test_each_tutorial_is_played() -> None:
    played = "".join(file.read_text() for file in (CHECKOUT / "tests" / "tutorials").glob("test_*.py"))
    pages = [file.name for file in (DOCS / "tutorials").iterdir()]
    assert pages
    assert [page for page in pages if f'"{page}"' not in played] == []


def test_each_decision_is_in_their_index_by_its_title() -> None:
    folder = DOCS / "decisions"
    listed = dict(re.findall(r"(?m)^- \[\d{4}\]\((.+?)\) (.+)$", (folder / "README.md").read_text()))
    titles = {file.name: file.read_text().partition("\n")[0] for file in folder.glob("[0-9]*.md")}
    assert titles == {name: f"# {name[:4]}: {title}" for name, title in listed.items()}


def test_the_readme_is_a_front_page() -> None:
    assert 80 <= len(README.splitlines()) <= 120


def test_the_readmes_numbers_are_measured() -> None:
    assert with_numbers(README, BENCHMARKS) == README
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    (adopting,) = re.findall(r"(?s)^## Adopting two existing jobs\n(.*?)^## ", BENCHMARKS, re.MULTILINE)
    assert re.findall(r"(?m)^\+ *(.*)$", diff) == re.findall(r"(?m)^- `(.*)`$", adopting)


def test_numbers_are_written_between_their_comments() -> None:
    measured = re.sub(r"(?m)^(\| all six \|.*\|) [\d.]+ \|$", r"\1 98.76 |", BENCHMARKS)
    assert "| 98.76 times as long |" in with_numbers(README, measured)
    with pytest.raises(ValueError, match="put them back"):
        with_numbers("# A README of somebody else", BENCHMARKS)


def _broken(document: Path, target: str) -> str | None:
    """What a link leads to, from the checkout, if it is not there."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = (document.parent / path).resolve() if path else document
    found = file.exists() and (not anchor or anchor in _anchors(file))
    return None if found else f"{file.relative_to(CHECKOUT)}{'#' if anchor else ''}{anchor}"


def _anchors(file: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    anchors: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", _prose(file.read_text(), code=True)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        again = sum(one == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", one) is not None for one in anchors)
        anchors.add(f"{anchor}-{again}" if again else anchor)
    return anchors


def _prose(text: str, *, code: bool = False) -> str:
    """Without blocks of code, and without `code` in a line unless it is asked for."""
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    return prose if code else re.sub(r"`[^`\n]*`", "", prose)


def test_the_matrix_names_all_that_the_package_knows() -> None:
    (row,) = re.findall(r"(?m)^\| \*\*3\..*$", README)
    airflows = {each.stem.removeprefix("airflow-") for each in (CHECKOUT / "requirements").glob("airflow-*.txt")}
    titles = {kind.title.removeprefix("a ").removeprefix("an ").removesuffix(" catalog") for kind in CATALOGS.values()}
    assert {word for word in (*airflows, *SPARK_VERSIONS, *titles) if word not in row} == set()
