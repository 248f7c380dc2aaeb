"""The matrix of hands and moments once more, over tables in a Hive Metastore and in Glue.

A publish goes from table to table there and COMMIT follows it, so the moments end with the decision; `test_apart.py`
has those after it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.foreign.attacked import Attacked, MetastoreTemplate
from tests.foreign.test_matrix import CELLS
from tests.foreign.test_matrix import test_hands_on_a_table as hands_on_a_table
from tests.support.metastores import METASTORES

pytestmark = [
    pytest.mark.drawn("metastores"),
    pytest.mark.touches("tables/_metastore.py", "tables/_hive_catalog.py", "tables/_glue_catalog.py"),
]


@pytest.fixture(scope="module", params=[METASTORES[0].values[0], METASTORES[2].values[0]])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MetastoreTemplate:
    return MetastoreTemplate(tmp_path_factory.mktemp("metastore"), request.getfixturevalue(request.param))


@pytest.fixture
def attacked(template: MetastoreTemplate, cell: tuple[str, str, str, str]) -> Iterator[Attacked]:
    with template.put_back("open" if cell[1] == "before" else "staged") as attacked:
        yield attacked


@pytest.mark.parametrize("cell", [pytest.param(cell, id="-".join(cell)) for cell in CELLS if cell[1] != "publishing"])
def test_hands_on_a_table(attacked: Attacked, cell: tuple[str, str, str, str]) -> None:
    hands_on_a_table(attacked, cell)
