"""MkDocs' hooks: pages stand in the order of docs/README.md, and what they link to outside docs/ are pages, too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
FRONT = CHECKOUT / "README.md"
#: A link's path, without its anchor.
LINK = re.compile(r"(?<=\]\()[^()\s#:]+")
#: A block's language and a word for tests/tutorials, with which Python-Markdown would take the block for text.
WORD = re.compile(r"(?m)^(```\w+) \w+$")
#: The page of a file of code, which the search leaves out: it is about the documents.
CODE = "---\nsearch:\n  exclude: true\n---\n# {path}\n\n~~~~{language}\n{text}\n~~~~\n"


def on_config(config: MkDocsConfig) -> None:
    """Headings of the table of contents become sections, and what its lists link to their pages."""
    pages: list[Any] = ["index.md", "README.md"]
    config.nav = [{"Home": pages}]
    for line in (DOCS / "README.md").read_text().splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "##":
            part = pages = []
            config.nav.append({rest: part})
        elif mark == "###":
            pages = []
            part.append({rest: pages})
        elif mark == "-":
            pages += [_in_site((DOCS / target).resolve()) for target in re.findall(r"\]\(([^()#]+)\)", rest)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """The checkout's README becomes the front page, for which the table of contents makes place."""
    contents = files.src_uris["README.md"]
    contents.dest_uri = contents.url = "contents.html"
    added = {FRONT}
    while added:
        for file in added:
            files.append(_page(file, config))
        documents = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
        linked = {(file.parent / link).resolve() for file in documents for link in LINK.findall(file.read_text())}
        added = {file for file in linked if file.is_file() and _in_site(file) not in files.src_uris}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.abs_src_path is None:  # a file of code
        return markdown
    folder = Path(page.file.abs_src_path).parent

    def in_site(link: re.Match[str]) -> str:
        file = (folder / link[0]).resolve()
        return os.path.relpath(_in_site(file), os.path.dirname(page.file.src_uri)) if file.is_file() else link[0]

    return WORD.sub(r"\1", LINK.sub(in_site, markdown))


def _page(file: Path, config: MkDocsConfig) -> File:
    if file.suffix == ".md":
        return File.generated(config, _in_site(file), abs_src_path=str(file))
    code = {"path": file.relative_to(CHECKOUT), "language": file.suffix[1:] or "text", "text": file.read_text()}
    return File.generated(config, _in_site(file), content=CODE.format(**code))


def _in_site(file: Path) -> str:
    """The path below docs/ by which MkDocs knows a file of the checkout."""
    if file == FRONT:
        return "index.md"
    if file.is_relative_to(DOCS) and file.suffix != ".py":
        return file.relative_to(DOCS).as_posix()
    path = file.relative_to(CHECKOUT).as_posix()
    return path if file.suffix == ".md" else f"checkout/{path}.md"
