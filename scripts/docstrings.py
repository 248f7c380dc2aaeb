"""Docstrings for mkdocstrings: their roles become links, and their examples blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(?:([^`<]*) <)?~?([\w.]+)>?`")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)
            obj.docstring.value = ROLE.sub(_link, text)


def _link(role: re.Match[str]) -> str:
    """A link, if what it leads to is on a page."""
    title, target = role.groups()
    return f'<autoref identifier="{target}" optional><code>{title or target.rpartition(".")[2]}</code></autoref>'
