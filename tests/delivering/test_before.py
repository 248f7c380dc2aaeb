"""What a start task sees to of its DAG's sinks, before it opens a barrier."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_barrier.coordinator.delivering import let_go_of_sinks, look_at_sinks, sink_fault
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration, SinkState
from airflow_barrier.protocol.errors import ConfigurationError, SinkRefusedError, SinkUnavailableError
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.tables import Table
from tests.delivering.feed import AMOUNT, PRICE, Feed, Reporting

SINKS = {AMOUNT: PostgreSQLSink("reporting", table="amount"), PRICE: PostgreSQLSink("reporting", table="price")}


def look(feed: Feed, credentials: Credentials, *tables: str) -> None:
    declared: dict[str, tuple[SinkDeclaration, Callable[[], Credentials | None]]] = {
        SINKS[table].name: (SINKS[table].declare(table, Rows.CHANGES, "shopping_dag"), lambda: credentials)
        for table in tables
    }
    look_at_sinks(feed.deployment, "shopping", declared)


def test_no_barrier_before_the_sinks_can_take_their_tables(feed: Feed, reporting: Reporting) -> None:
    look(feed, reporting.credentials(), AMOUNT, PRICE)
    look(feed, reporting.credentials())
    with pytest.raises(SinkUnavailableError):
        look(feed, reporting.credentials(port=1), AMOUNT)
    reporting.run("DROP TABLE price")
    with pytest.raises(SinkRefusedError, match=r"target public\.price .* found none"):
        look(feed, reporting.credentials(), AMOUNT, PRICE)


def test_a_table_that_is_yet_to_be_made_is_looked_at_as_it_is_declared(feed: Feed, reporting: Reporting) -> None:
    """Before the first run of a project: `topology validate` says what is missing outside."""
    sink = PostgreSQLSink("reporting", table="visits")
    declared = sink.declare("shop.visits", Rows.CHANGES, "shopping_dag")
    tables = {"shop.visits": Table("shop.visits", "id BIGINT NOT NULL, at TIMESTAMP")}

    def fault(known: Mapping[str, Table]) -> str | None:
        return sink_fault(feed.deployment, "shopping", declared, reporting.credentials(), known)

    assert fault({}) is None, "whoever looks at tables says that it is missing"
    refused = sink_fault(feed.deployment, "shopping", declared, reporting.of("nobody").credentials(), {})
    assert refused is not None
    assert "to let nobody in (connection reporting)" in refused
    said = fault(tables)
    assert said is not None
    assert 'found none; create it:\nCREATE TABLE "public"."visits" (\n    "id" bigint,\n    "at" timestamptz' in said
    reporting.run("CREATE TABLE visits (id bigint PRIMARY KEY, at timestamptz)")
    assert fault(tables) is None


@pytest.mark.kills("change-is-the-deliverys", case="changes")
@pytest.mark.parametrize("rows", Rows)
def test_no_table_brings_its_own_word_for_what_became_of_a_row(feed: Feed, tmp_path: Path, rows: Rows) -> None:
    """Each sink would take it for the delivery's, whatever way rows come in."""
    sink = FileSink(str(tmp_path), name="out", key=["id"] if rows is Rows.CHANGES else ())
    declared = sink.declare("shop.visits", rows, "shopping_dag")
    for column, is_taken in (("_change", True), ("_changes", False)):
        tables = {"shop.visits": Table("shop.visits", f"id BIGINT NOT NULL, {column} STRING")}
        said = sink_fault(feed.deployment, "shopping", declared, None, tables)
        assert (said is not None and "table shop.visits: expected no column _change, by" in said) == is_taken, said


def test_a_topology_with_barriers_goes_on(feed: Feed, reporting: Reporting, caplog: pytest.LogCaptureFixture) -> None:
    """A sink that comes later holds up itself alone."""
    feed.commit({(1, 1): 1})
    feed.deliver(SINKS[AMOUNT], AMOUNT, reporting.credentials())
    reporting.run("DROP TABLE amount, price")
    with caplog.at_level(logging.WARNING):
        look(feed, reporting.credentials(), AMOUNT, PRICE)
    # what has received something is not tried again: its own task says what it meets
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.startswith("Nothing can be delivered to sink price of shopping yet: sink price: target public.price")


def test_without_its_connection_a_sink_is_told_in_words(feed: Feed, caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> Credentials | None:
        raise ConfigurationError("sink amount: expected connection reporting, of type postgres, found none")

    declared = {"amount": (SINKS[AMOUNT].declare(AMOUNT, Rows.CHANGES, "shopping_dag"), missing)}
    with pytest.raises(ConfigurationError):
        look_at_sinks(feed.deployment, "shopping", declared)
    feed.commit({(1, 1): 1})
    with caplog.at_level(logging.WARNING):
        look_at_sinks(feed.deployment, "shopping", declared)
    assert "expected connection reporting" in caplog.text


def test_a_sink_that_left_its_dag_holds_nothing(feed: Feed, reporting: Reporting) -> None:
    meta, credentials = feed.deployment.meta, reporting.credentials()
    feed.commit({(1, 1): 1, (1, 2): 2})
    feed.deliver(SINKS[AMOUNT], AMOUNT, credentials)
    meta.deliveries.register("shopping", SINKS[PRICE].declare(PRICE, Rows.CHANGES, "another_dag"), "test")
    meta.deliveries.pause("shopping", "amount", "person", "the database is moved")
    second = {(1, 1): 1, (1, 2): 3}
    let_go_of_sinks(feed.deployment, feed.commit(second), "shopping_dag", [], "test")
    assert [sink.name for sink in meta.deliveries.of("shopping")] == ["price"]  # another DAG's
    assert meta.deliveries.holding("shopping") == []
    assert "declares it no more at barrier 2" in str(meta.audit.newest("shopping"))

    # declared again, it goes on from what its ledger says, and what people decided counts
    told, receipt = feed.deliver(SINKS[AMOUNT], AMOUNT, credentials)
    assert told.told
    assert meta.deliveries.get("shopping", "amount").state is SinkState.PAUSED
    assert str(receipt.counts[AMOUNT]) == "1 updated"
    assert reporting.rows("amount") == second


def test_a_client_that_is_missing_is_told_in_words(
    feed: Feed, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "airflow_barrier.sinks.postgresql.channel", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"kind postgresql on this worker, found no module psycopg; install"):
        look(feed, reporting.credentials(), AMOUNT)
