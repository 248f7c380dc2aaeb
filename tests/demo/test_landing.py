from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from demo.landing import land
from tests.demo.conftest import SAMPLE


def test_the_committed_sample_is_what_the_script_makes(tmp_path: Path) -> None:
    lines = land(tmp_path, days=12, households=170)
    made = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*.parquet")}
    assert set(made) == {path.relative_to(SAMPLE) for path in SAMPLE.rglob("*.parquet")}
    for name, path in made.items():
        assert pq.read_table(path, partitioning=None).equals(pq.read_table(SAMPLE / name, partitioning=None)), name
    assert lines == sum(pq.read_metadata(path).num_rows for name, path in made.items() if name.parts[0] == "shopping")
