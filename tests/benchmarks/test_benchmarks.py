"""Every figure runs and prints its table; what the numbers are nobody asserts."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import FIGURES, main
from benchmarks.path import path_of
from benchmarks.report import Measured, document, with_figures


@pytest.mark.parametrize("figure", [figure for figure in FIGURES if figure not in ("latency", "aging")])
@pytest.mark.drawn
def test_a_figure_is_measured(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([figure, "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "cores" in printed
    assert "┃" in printed


def test_the_document_says_how_and_where() -> None:
    measured = Measured("A title", "How.", ["what", "seconds"], [["one", "1.0"]], ["a line"])
    text = document([measured], [], "make benchmarks")
    for part in ("cores", "pyiceberg", "## A title", "How.", "| one | 1.0 |", "- a line"):
        assert part in text


def test_what_is_unknown_or_half_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["--write", "--quick"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "expected figures in full" in capsys.readouterr().err


def test_a_barriers_path_is_the_chain_of_those_that_were_waited_for() -> None:
    ends = {"load": 3, "amount": 7, "price": 6, "top": 9, "aside": 5}
    tasks = {job: {"end_date": f"2026-01-01T00:00:0{second}Z"} for job, second in ends.items()}
    inlets = {"load": ["files"], "amount": ["a"], "price": ["a"], "top": ["b", "c"], "aside": ["a"]}
    outlets = {"load": ["a"], "amount": ["b"], "price": ["c"], "top": ["d"], "aside": ["e"]}
    assert path_of(tasks, inlets, outlets) == ["start", "load", "amount", "top"]


def test_a_figure_is_measured_again_by_itself() -> None:
    def figure(title: str, cell: str) -> Measured:
        return Measured(title, "by hand", ["what", "how much"], [["it", cell]])

    text = document([figure("first", "1"), figure("second", "2")], [], "make benchmarks")
    again = with_figures(text, [figure("first", "3"), figure("third", "4")], "make benchmarks again")
    assert re.findall(r"^## .*|^\| it .*", again, re.MULTILINE) == [
        *("## first", "| it | 3 |", "## second", "| it | 2 |", "## third", "| it | 4 |")
    ]
    assert again.count(" UTC by `make benchmarks again`: ") == 2
    assert with_figures(text, [], "make benchmarks again") == text
