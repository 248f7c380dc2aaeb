"""What it takes to bring two existing jobs under barriers: lines changed, counted in the example."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from benchmarks.report import Measured
from demo.places import CHECKOUT

_DAGS = CHECKOUT / "dags"
_BEFORE, _AFTER = _DAGS / "sales_existing.py", _DAGS / "sales_adopted.py"
_JOBS = _DAGS / "existing"


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    old, new = (_code(file.read_text(), file.stem) for file in (_BEFORE, _AFTER))
    lines = difflib.unified_diff(old, new, n=0)
    changes = [line for line in lines if not line.startswith(("+++", "---", "@@"))]
    written = [line[1:] for line in changes if line.startswith("+") and line[1:].strip()]
    removed = [line[1:] for line in changes if line.startswith("-") and line[1:].strip()]
    jobs = sum(line.count("barrier.job(") for line in new)
    files = sorted(file for file in _JOBS.iterdir() if file.is_file() and file.name in "".join(new))
    return [
        Measured(
            "Adopting two existing jobs",
            "id: lines that are new or changed, and lines that are gone (a changed line is one of each). Both run the "
            f"same files of `dags/{_JOBS.name}/`.",
            ["", "lines"],
            [
                ["new or changed in the DAG file, two jobs together", str(len(written))],
                ["gone from it", str(len(removed))],
                ["new or changed, per job", f"{len(written) / jobs:.1f}"],
                [
                    f"other files of jobs than before ({', '.join(file.name for file in files)})",
                    str(sum(file.name not in "".join(old) for file in files)),
                ],
            ],
            [f"`{line.strip()}`" for line in written],
        )
    ]


def _code(text: str, stem: str) -> list[str]:
    """The lines of a DAG file; its docstring and its own name say what is before and what after."""
    docstring = ast.get_docstring(ast.parse(text), clean=False)
    return text.replace(f'"""{docstring}"""', "").replace(f'"{stem}"', '"sales"').splitlines()
