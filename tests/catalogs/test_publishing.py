"""One behaviour in every catalog, by every engine, and in the model's memory: staging, publishing, refusing, losing
races, doing it again."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.protocol.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    ForeignWriteError,
    MissingTableError,
    StagedTableError,
)
from airflow_barrier.protocol.states import Decision
from airflow_barrier.tables._metadata import Changes
from airflow_barrier.tables._rest_server import RestServer
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication, Revised
from tests.catalogs.engines import REAL
from tests.catalogs.lake import TOPOLOGY, Lake, stamp_of
from tests.support.ports import free_port
from tests.support.waiting import patience


@pytest.mark.drawn
def test_tables_are_staged_unseen_and_published_together(lake: Lake) -> None:
    tables = lake.create("a", "b", "c")
    first = [lake.stage(table, 1, None, [1, 2]) for table in tables]
    assert set(lake.tables.mains(tables).values()) == {None}, "nothing is seen before it is published"
    lake.tables.look(first)
    lake.tables.publish(first)
    assert [lake.rows(table) for table in tables] == [[1, 2]] * 3
    assert lake.refs(tables[0]) == {"main": first[0].new, first[0].tag: first[0].new}, "the attempt branch went along"
    second = [lake.stage(each.table, 2, each.new, [3]) for each in first]
    second = [dataclasses.replace(each, drop_tags=(first[0].tag,)) for each in second]
    lake.tables.publish(second)
    assert [lake.rows(table) for table in tables] == [[1, 2, 3]] * 3
    assert lake.refs(tables[0]) == {"main": second[0].new, second[0].tag: second[0].new}


@pytest.mark.drawn
def test_publishing_again_changes_nothing(lake: Lake) -> None:
    publications = [lake.stage(table, 1, None, [1]) for table in lake.create("a", "b")]
    lake.tables.publish(publications)
    names = [each.table for each in publications]
    before = lake.tables.metadata_locations(names)
    assert lake.tables.publish(publications) == before
    assert lake.tables.metadata_locations(names) == before


@pytest.mark.kills("all-are-looked-at-before-the-first", case="rest roll-forward")
@pytest.mark.drawn
def test_what_is_refused_of_one_table_publishes_none(lake: Lake) -> None:
    good, bad = [lake.stage(table, 1, None, [1]) for table in lake.create("a", "b")]
    lake.append(bad.table, [9])
    with pytest.raises(ForeignWriteError, match=f"table {bad.table}: expected main at no snapshot, found snapshot"):
        lake.tables.publish([good, bad])
    assert list(lake.tables.findings([good, bad])) == [bad.table]
    assert lake.tables.mains([good.table]) == {good.table: None}, "the good one was not touched"
    assert lake.rows(bad.table) == [9]


@pytest.mark.drawn
def test_a_decision_leaves_what_somebody_else_wrote(lake: Lake) -> None:
    """And publishes what `main` was at before as a snapshot of its own."""
    (table,) = lake.create("a")
    ours = lake.stage(table, 1, None, [1, 2])
    lake.tables.publish([ours])
    lake.append(table, [9])
    theirs = lake.tables.mains([table])[table]
    assert theirs is not None
    decided = Publication(
        table, TOPOLOGY, 2, theirs, ours.new, "decided", decision=Decision.KEEP_OURS, set_aside={"theirs": theirs}
    )
    lake.tables.publish([decided])
    assert lake.rows(table) == [1, 2]
    assert lake.rows(table, theirs) == [1, 2, 9]
    assert lake.refs(table)["theirs"] == theirs
    assert lake.tables.mains([table])[table] not in (ours.new, theirs), "main never returns to what it left"


@pytest.mark.drawn
def test_a_revision_moves_main_to_another_line_and_leaves_the_old_one(lake: Lake) -> None:
    """Built on an older snapshot, on an empty root, on nothing new, and on nothing at all; one table is as it was."""
    tables = lake.create("anew", "changed", "emptied", "restored", "untouched")
    anew, changed, emptied, restored, untouched = tables
    first = {table: lake.stage(table, 1, None, [1]) for table in tables}
    lake.tables.publish(list(first.values()))
    bases = {table: each.new for table, each in first.items()}
    second = {table: lake.stage(table, 2, base, [2]) for table, base in bases.items()}
    lake.tables.publish(list(second.values()))
    old = {table: each.new for table, each in second.items()}
    swaps = {
        anew: (lake.stage(anew, 2, None, [7], revision=3).new, None),
        changed: (lake.stage(changed, 2, bases[changed], [8], revision=3).new, bases[changed]),
        emptied: (None, None),
        restored: (bases[restored], bases[restored]),
        untouched: (old[untouched], bases[untouched]),
    }
    publications = [
        Publication(table, TOPOLOGY, 2, old[table], new, "newer", revised=Revised(base, {"new": base} if base else {}))
        for table, (new, base) in swaps.items()
    ]
    lake.tables.publish(publications)
    locations = lake.tables.metadata_locations(tables)
    assert lake.tables.publish(publications) == locations
    rows = {anew: [7], changed: [1, 8], emptied: [], restored: [1], untouched: [1, 2]}
    assert {table: lake.rows(table) for table in tables} == rows
    assert {table: lake.rows(table, lake.refs(table)["newer"]) for table in tables} == rows
    assert [lake.rows(table, old[table]) for table in tables] == [[1, 2]] * 5
    tags = {first[anew].tag, second[anew].tag, "newer"}
    assert {table: set(lake.refs(table)) - tags - {"main"} for table in tables} == {
        anew: set(), changed: {"new"}, emptied: set(), restored: {"new"}, untouched: {"new"}
    }  # fmt: skip
    third = [lake.stage(table, 3, new, [3]) for table, (new, _) in swaps.items()]
    lake.tables.publish(third)
    assert {table: lake.rows(table) for table in tables} == {table: sorted([*held, 3]) for table, held in rows.items()}


@pytest.mark.parametrize("lake", REAL, indirect=True)
@pytest.mark.drawn
def test_an_edit_that_loses_a_race_is_asked_again(lake: Lake) -> None:
    tables = lake.create("a", "b")
    raced: list[str] = []

    def edit(document: object, location: str) -> Changes:
        if not raced:
            raced.append(location)
            lake.append(tables[1], [9])  # by somebody else, between our look and our commit
        return Changes(properties={"seen": "yes"})

    lake.tables._committer.commit(dict.fromkeys(tables, edit))
    assert [lake.seen(table) for table in tables] == ["yes", "yes"]
    assert lake.rows(tables[1]) == [9], "neither of the two commits is lost"


@pytest.mark.parametrize("lake", REAL, indirect=True)
@pytest.mark.drawn
def test_pinners_and_a_publisher_in_many_threads_lose_nothing(lake: Lake) -> None:
    publications = [lake.stage(table, 1, None, [1]) for table in lake.create("a", "b", "c")]

    def pin(worker: int) -> None:
        for each in publications:
            assert each.new is not None
            lake.tables.pin(each.table, f"pin_{worker}", each.new)

    threads = [threading.Thread(target=pin, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    lake.tables.publish(publications)
    for thread in threads:
        thread.join(timeout=patience())
    for each in publications:
        assert set(lake.refs(each.table)) == {"main", each.tag, "pin_0", "pin_1", "pin_2"}


@pytest.mark.kills("commits-are-looked-at")
@pytest.mark.parametrize("lake", ["rest transactions"], indirect=True)
def test_a_change_that_the_server_dropped_is_sent_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference server drops one where another commit meets it, and says that all is well."""
    publications = [lake.stage(table, 1, None, [1]) for table in lake.create("a", "b")]
    commit, sent = RestServer.commit_together, []

    def dropping(server: RestServer, changes: Sequence[Mapping[str, Any]]) -> None:
        sent.append(len(changes))
        commit(server, changes[:1])

    monkeypatch.setattr(RestServer, "commit_together", dropping)
    lake.tables.publish(publications)
    assert [lake.rows(each.table) for each in publications] == [[1], [1]]
    assert sent == [2, 1]


@pytest.mark.drawn
def test_attempts_pins_properties_and_what_is_missing(lake: Lake) -> None:
    (table,) = lake.create("a")
    lake.tables.prepare({table: None}, stamp_of(1))
    lake.tables.prepare({table: None}, stamp_of(1))
    assert lake.tables.staged(table, stamp_of(1), None) is None
    lake.append(table, [1], stamp_of(1))
    with pytest.raises(StagedTableError, match="has written to it already"):
        lake.tables.prepare({table: None}, stamp_of(1))
    staged = lake.tables.staged(table, stamp_of(1), None)
    assert staged is not None
    lake.tables.pin(table, "held", staged, ancestors=1)
    assert lake.refs(table)["held"] == staged
    lake.tables.unpin(table, "held")
    assert "held" not in lake.refs(table)
    assert lake.tables.wap_enabled([table]) == {table: False}
    lake.tables.take_in([table])
    lake.tables.take_in([table])
    assert lake.tables.wap_enabled([table]) == {table: True}
    with pytest.raises(MissingTableError, match=f"{lake.namespace}.gone"):
        lake.tables.mains([table, f"{lake.namespace}.gone"])
    with pytest.raises(MissingTableError, match=f"{lake.namespace}.gone"):
        lake.tables.load(f"{lake.namespace}.gone")


def test_a_rest_catalog_that_does_not_answer_is_retryable(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with (
        IcebergTables.connect(uri, str(tmp_path), properties={"token": "geheim"}) as tables,
        pytest.raises(CatalogUnavailableError, match=f"REST catalog at {uri}: expected it to answer") as refused,
    ):
        tables.mains(["shop.t"])
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("lake", ["rest roll-forward", "rest transactions"], indirect=True)
def test_a_rest_catalog_joins_no_transaction_and_is_not_reattached(lake: Lake) -> None:
    (table,) = lake.create("a")
    assert not lake.tables.reattach({table: (lake.tables.metadata_locations([table])[table], None)})
    with pytest.raises(ConfigurationError, match="let its operator restore it"):
        lake.tables.reattach({table: ("s3://lake/a/metadata/00001-x.metadata.json", 4711)})
    with pytest.raises(ConfigurationError, match="expected a catalog in a database"), lake.tables.staging([]):
        pass
