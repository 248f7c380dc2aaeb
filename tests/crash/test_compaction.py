"""A compaction dies at one step after the other, and is gone on with: readers see whole barriers, and the same rows."""

from __future__ import annotations

import json

import pytest

from tests.crash.playing import play
from tests.support.reporting import report


@pytest.mark.timeout(600)
def test_a_compaction_that_dies_again_and_again(folder: str) -> None:
    ((result,),) = (play("tests.crash.compaction", [(f"{folder}/compaction", json.dumps({"folder": folder}))]),)
    assert len(result["deaths"]) >= 10
    assert {"sql/COMMIT"} <= {died.split()[1] for died in result["deaths"]}, result["deaths"]
    report(f"crash of a compaction: {len(result['deaths'])} deaths, each gone on with by the next; no row changed")
