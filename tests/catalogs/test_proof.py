"""What a REST catalog says of itself is found out on scratch tables, against servers that say more than they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchNamespaceError

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ConfigurationError, ForeignWriteError
from airflow_barrier.tables._metadata import Changes, Document
from airflow_barrier.tables._scratch import NAMESPACE
from airflow_barrier.tables._sql_catalog import SqlTables
from airflow_barrier.tables.iceberg import IcebergTables
from tests.catalogs.engines import Pyiceberg
from tests.catalogs.lake import Lake, connect
from tests.support.rest_catalog import RestServer
from tests.support.shop import make_shop


def scratch_tables(tables: IcebergTables) -> list[object]:
    try:
        return list(tables.catalog.list_tables(NAMESPACE))
    except NoSuchNamespaceError:
        return []


@pytest.mark.kills("atomic-is-proved")
def test_the_reference_server_is_not_taken_for_atomic(rest_server: RestServer, tmp_path: Path) -> None:
    """It advertises `transactions/commit`, looks at all requirements first, and commits table by table."""
    with connect(rest_server, str(tmp_path), atomic=True) as tables:
        for _ in range(2):  # a catalog that is refused is not remembered
            with pytest.raises(ConfigurationError, match=r'it did a part.*Set catalog_publish to "roll-forward"'):
                tables.prove()
        assert scratch_tables(tables) == []


def test_what_was_found_good_is_remembered(rest_server: RestServer, tmp_path: Path) -> None:
    with connect(rest_server, str(tmp_path)) as tables:
        tables.prove()
        assert scratch_tables(tables) == []
    (remembered,) = (tmp_path / "_barrier" / "catalog").iterdir()
    assert '"publishes": "roll-forward"' in remembered.read_text()
    before = remembered.stat()
    with connect(rest_server, str(tmp_path)) as tables:
        tables.prove()
    assert remembered.stat() == before


@pytest.mark.kills("keeps-branches")
@pytest.mark.parametrize("atomic", [False, True])
def test_a_catalog_that_keeps_no_branches_is_refused(nessie: RestServer, tmp_path: Path, atomic: bool) -> None:
    """Nessie answers that it made the branch, and moves `main`."""
    with connect(nessie, str(tmp_path), atomic=atomic) as tables:
        with pytest.raises(ConfigurationError, match="leave main alone, found the refs main after"):
            tables.prove()
        assert scratch_tables(tables) == []
    assert not (tmp_path / "_barrier").exists()


@pytest.mark.kills("catalog-is-proved")
def test_a_barrier_opens_on_a_catalog_that_was_proved_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_shop(Settings.embedded(str(tmp_path)))

    def refuse(_: SqlTables) -> None:
        raise ConfigurationError("expected another catalog")

    monkeypatch.setattr(SqlTables, "prove", refuse)
    with pytest.raises(ConfigurationError, match="expected another catalog"):
        shop.open(1)
    assert shop.deployment.meta.topologies.names() == [], "nothing was registered, and nothing staged"
    shop.deployment.close()


# --- one step for all tables, on the server that has it -------------------------------------------


@pytest.fixture
def together(nessie: RestServer, tmp_path: Path) -> Lake:
    return Lake(Pyiceberg(connect(nessie, str(tmp_path), atomic=True)))


def seen(lake: Lake, tables: list[str]) -> list[str | None]:
    return [lake.seen(table) for table in tables]


def test_nothing_moves_when_one_table_fails(together: Lake) -> None:
    tables = together.create("a", "b", "c")

    def refuse(document: Document, location: str) -> Changes:
        raise ForeignWriteError("expected another main")

    def see(document: Document, location: str) -> Changes:
        return Changes(properties={"seen": "yes"})

    with pytest.raises(ForeignWriteError):
        together.tables._committer.commit({tables[0]: see, tables[1]: see, tables[2]: refuse})
    assert seen(together, tables) == [None, None, None]
    together.tables._committer.commit(dict.fromkeys(tables, see))
    assert seen(together, tables) == ["yes", "yes", "yes"]


def test_a_lost_race_of_one_table_is_lost_by_all_and_tried_again(together: Lake) -> None:
    tables = together.create("a", "b")
    asked: dict[str, list[str | None]] = {table: [] for table in tables}

    def edit(table: str) -> object:
        def see(document: Document, location: str) -> Changes:
            asked[table].append(document["properties"].get("seen"))
            if asked == {tables[0]: [None], tables[1]: []}:
                together.append(tables[1], [9])
            return Changes(properties={"seen": "yes"})

        return see

    together.tables._committer.commit({table: edit(table) for table in tables})
    assert seen(together, tables) == ["yes", "yes"]
    assert together.rows(tables[1]) == [9]
    # asked before each try, and once more when all is done
    tries, last = asked[tables[0]][:-1], asked[tables[0]][-1]
    assert last == "yes"
    assert set(tries) == {None}, "what was not committed with the other was not committed alone"
