"""What a driver insists on, as far as it can be told without a Spark session: by what it found, and what a job said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from airflow_barrier.protocol.errors import (
    ChangedOutletError,
    ConfigurationError,
    SilentOutletError,
    SpecError,
    StagedTableError,
    UndeclaredTableError,
)
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.spark.driver import _check_untouched, _staged
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import current_epoch
from airflow_barrier.spark.spec import SPEC_DIGEST, SPEC_KEY, SPEC_URI, EpochSpec, digest_of, new_key
from airflow_barrier.spark.submit import _open_record, _sql_of, _write_new, read_spec
from tests.support.waiting import patience

INLET, OUTLET, EMPTY = "shop.shopping", "shop.amount", "shop.empty"
MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
SPEC = EpochSpec(
    job="amount",
    topology="shopping",
    barrier_id=2,
    revision=0,
    attempt_id=7,
    incarnation="incarnation-1",
    timestamp=MONDAY,
    previous_timestamp=None,
    catalog="lake",
    inputs={INLET: 11},
    previous={INLET: 10},
    bases={OUTLET: 20, EMPTY: None},
    externals={},
    cuts={},
    closing_uri="file:///a7.closed.json",
    seed=1,
    nonce="nonce of 7",
)
PREPARED = {OUTLET: 20, EMPTY: 30}


@pytest.mark.kills("driver-starts-on-untouched-branch")
def test_a_driver_does_not_start_on_top_of_an_earlier_ones_half() -> None:
    roots = frozenset({EMPTY})
    _check_untouched(SPEC, PREPARED, roots)
    for heads, found in ({**PREPARED, OUTLET: 21}, roots), ({**PREPARED, EMPTY: 31}, frozenset[str]()):
        (outlet,) = (one for one in heads if heads[one] != PREPARED[one])
        with pytest.raises(StagedTableError, match=f"of {outlet} at its base .* found snapshot {heads[outlet]}: an"):
            _check_untouched(SPEC, heads, found)


@pytest.mark.kills("changed-outlet", "driver-silent-outlet")
def test_each_outlet_is_written_or_called_unchanged_and_not_both() -> None:
    after = {**PREPARED, OUTLET: 21}
    assert _staged(SPEC, PREPARED, after, frozenset({EMPTY})) == {
        OUTLET: StagedTable(OUTLET, 21),
        EMPTY: StagedTable(EMPTY, None, unchanged=True),
    }
    with pytest.raises(SilentOutletError, match=f"expected output in {EMPTY}, found none"):
        _staged(SPEC, PREPARED, after, frozenset())
    with pytest.raises(ChangedOutletError, match=f"expected {OUTLET} untouched"):
        _staged(SPEC, PREPARED, after, frozenset({OUTLET, EMPTY}))


@pytest.mark.kills("undeclared-inlet", "undeclared-outlet", "undeclared-external")
def test_a_job_touches_what_it_declares_and_nothing_else() -> None:
    epoch = Epoch(None, SPEC)  # type: ignore[arg-type]  # refused before Spark is asked for anything
    for read in (epoch.appends, epoch.changes, epoch.read, epoch.previous):
        with pytest.raises(UndeclaredTableError, match=r"'shop\.other', which is not among its inlets"):
            read("shop.other")
    for write in (epoch.target, epoch.unchanged):
        with pytest.raises(UndeclaredTableError, match="not among its outlets"):
            write(INLET)
    with pytest.raises(UndeclaredTableError, match="external source 'files'"):
        epoch.source("files")


@pytest.mark.kills("spec-digest")
def test_a_spec_that_was_changed_on_the_way_is_refused() -> None:
    text = SPEC.dumps()
    assert EpochSpec.loads(text, digest_of(text)) == SPEC
    with pytest.raises(SpecError, match=r"expected digest .* the file was changed after the task wrote it"):
        EpochSpec.loads(replace(SPEC, barrier_id=3).dumps(), digest_of(text))


def test_what_enters_a_source_is_read_by_file_and_key_together() -> None:
    spec = replace(SPEC, secrets={"purchases": {"kafka.sasl.jaas.config": "geheim"}})
    key = new_key()
    text = spec.dumps(key)
    assert "geheim" not in text + repr(spec)
    assert EpochSpec.loads(text, digest_of(text), key) == spec
    assert EpochSpec.loads(text) == SPEC
    assert spec.dumps(new_key()) != text
    assert EpochSpec.loads(spec.dumps()) == SPEC
    # what Spark leaves out of its pages and logs, by its default
    assert re.search("(?i)secret|password|token|access[.]?key", SPEC_KEY)


@pytest.mark.kills("spec-version")
def test_a_spec_of_another_version_is_refused() -> None:
    with pytest.raises(SpecError, match="expected version 3, found 1"):
        EpochSpec.loads(SPEC.dumps().replace('"version": 3', '"version": 1'))


# --- with Hadoop's file systems -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A Java machine with Hadoop's classes, without a Spark application."""
    gateway: JavaGateway = launch_gateway()
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()  # the sign that it ends by
    gateway.proc.wait(timeout=patience())


def driver(jvm: Any, **conf: str) -> Any:
    """As much of a session as files and conf take."""
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    return SimpleNamespace(
        _jvm=jvm,
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: configuration),
        conf=SimpleNamespace(get=lambda key, default=None: conf.get(key, default)),
    )


@pytest.mark.kills("closed-once")
def test_of_two_drivers_of_one_attempt_one_closes_it(jvm: Any, tmp_path: Path) -> None:
    record = tmp_path / "a7.closed.json"
    _write_new(driver(jvm), record.as_uri(), "first")
    with pytest.raises(SpecError, match="found one there: another driver ran the same attempt"):
        _write_new(driver(jvm), record.as_uri(), "second")
    assert record.read_text() == "first"


@pytest.mark.kills("opened-once")
def test_of_two_drivers_of_one_attempt_one_opens_it(jvm: Any, tmp_path: Path) -> None:
    record = tmp_path / "a7.closed.json"
    _open_record(driver(jvm), record.as_uri())
    with pytest.raises(SpecError, match="it was started twice"):
        _open_record(driver(jvm), record.as_uri())
    assert (tmp_path / "a7.closed.json.partial").exists()


def test_a_job_that_is_none_of_epochs_can_ask_for_its_epoch(jvm: Any, tmp_path: Path) -> None:
    spec = tmp_path / "a7.spec.json"
    spec.write_text(SPEC.dumps())
    conf = {SPEC_URI: spec.as_uri(), SPEC_DIGEST: digest_of(SPEC.dumps())}
    epoch = current_epoch(driver(jvm, **conf))
    assert (epoch.barrier_id, epoch.timestamp) == (SPEC.barrier_id, SPEC.timestamp)
    with pytest.raises(SpecError, match="run this file through"):
        current_epoch(driver(jvm))
    with pytest.raises(ConfigurationError, match="on a Spark Connect server"):
        current_epoch(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.kills("spec-is-named", "spec-is-there")
def test_a_driver_without_its_own_spec_does_nothing(jvm: Any, tmp_path: Path) -> None:
    spec = tmp_path / "a7.spec.json"
    spec.write_text(SPEC.dumps())
    conf = {SPEC_URI: spec.as_uri(), SPEC_DIGEST: digest_of(SPEC.dumps())}
    assert read_spec(driver(jvm, **conf)) == SPEC
    for missing in (SPEC_URI, SPEC_DIGEST):
        with pytest.raises(SpecError, match="run this file through"):
            read_spec(driver(jvm, **{key: value for key, value in conf.items() if key != missing}))
    spec.unlink()
    with pytest.raises(SpecError, match=r"expected the epoch spec at .* found nothing"):
        read_spec(driver(jvm, **conf))


@pytest.mark.kills("spec-has-sql")
def test_the_sql_application_does_nothing_without_a_statement() -> None:
    with pytest.raises(SpecError, match="expected an SQL statement, found none"):
        _sql_of(SPEC)
