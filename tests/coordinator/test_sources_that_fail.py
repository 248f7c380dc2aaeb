"""A source that cannot be looked into holds up the jobs that read it, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.cuts import checked_cuts
from airflow_barrier.coordinator.joining import take_part
from airflow_barrier.coordinator.staging import Asking, begin
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    SourceDataError,
    SourceUnavailableError,
)
from airflow_barrier.protocol.records import Barrier, Cut
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from airflow_barrier.sources import source_of
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.systems.roots import SourceRoots
from tests.coordinator.test_sources import ROWS, arrive, files_of, fragment, landing
from tests.support.shop import JOBS, MONDAY, SHOPPING, Shop

GONE = "elsewhere"


def attempt_states(shop: Shop, barrier: Barrier) -> list[AttemptState]:
    return [attempt.state for attempt in shop.deployment.meta.attempts.of("shopping", barrier.barrier_id)]


def test_a_folder_that_is_gone_holds_up_its_job_and_not_the_opening(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "landing"
    declared = fragment(landing(folder))
    arrive(folder, 1, "a.parquet")
    first = shop.open(1, declared)
    shop.process(first, "load", ROWS)
    folder.rename(tmp_path / GONE)
    second = shop.open(2, declared)
    assert "source purchases of job load (DAG shopping_dag) is not cut now" in caplog.text
    assert f"landing folder {folder}: expected a folder, found nothing" in caplog.text
    with pytest.raises(SourceDataError, match=rf"source purchases.*landing folder {folder}: expected a folder") as said:
        shop.begin(second, "load")
    assert "attempt" in str(said.value)
    assert "clear the task" in str(said.value)
    assert AttemptState.RUNNING not in attempt_states(shop, second)
    for job in ("amount", "price"):
        shop.process(first, job, ROWS)
    assert shop.commit(first).barrier.state is BarrierState.COMMIT, "what others do goes on"
    (tmp_path / GONE).rename(folder)
    arrive(folder, 2, "b.parquet")
    arrive(folder, 3, "c.parquet")
    shop.process(second, "load", ROWS, "cleared")
    assert files_of(shop, 2) == ["b.parquet"], "what it would have had"
    third = shop.open(3, declared)
    assert files_of(shop, 3) == ["c.parquet"]
    for job in ("amount", "price"):
        shop.process(second, job, ROWS)
    shop.process_all(third, ROWS)
    shop.commit(shop.deployment.meta.barriers.get("shopping", 2))
    shop.commit(shop.deployment.meta.barriers.get("shopping", 3))


@pytest.mark.kills("put-off-follows")
def test_epochs_that_were_put_off_are_cut_one_after_the_other(shop: Shop, tmp_path: Path) -> None:
    """Also those of barriers that opened while the source was there again: they begin where the one before ends."""
    folder = tmp_path / "landing"
    declared = fragment(landing(folder))
    for day in (1, 2, 3, 4):
        arrive(folder, day, f"{day}.parquet")
    first = shop.open(1, declared)
    folder.rename(tmp_path / GONE)
    second = shop.open(2, declared)
    (tmp_path / GONE).rename(folder)
    third = shop.open(3, declared)
    assert files_of(shop, 2) == files_of(shop, 3) == []
    early = shop.deployment.meta.attempts.request(
        Request("shopping", 3, "load", request_key="early", generation="g1", actor="test")
    )
    with pytest.raises(SourceUnavailableError, match="put off until a job that reads it begins at barrier 2"):
        checked_cuts(shop.deployment, early, declared.jobs[0], "test")
    for barrier in (first, second, third):
        shop.process(barrier, "load", ROWS)
        assert files_of(shop, barrier.barrier_id) == [f"{barrier.barrier_id}.parquet"]
    shop.open(4, declared)
    assert files_of(shop, 4) == ["4.parquet"]


def test_an_epoch_that_was_put_off_and_aborted_joins_the_next(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    declared = fragment(landing(folder))
    arrive(folder, 1, "1.parquet")
    shop.open(1, declared)
    folder.rename(tmp_path / GONE)
    shop.open(2, declared)
    abort_barrier(shop.deployment, "shopping", 2, reason="given up", actor="test")
    (tmp_path / GONE).rename(folder)
    arrive(folder, 2, "2.parquet")
    arrive(folder, 3, "3.parquet")
    assert sorted(files_of(shop, shop.open(3, declared).barrier_id)) == ["2.parquet", "3.parquet"]


def test_by_event_time_nothing_that_is_held_over_is_lost(shop: Shop, tmp_path: Path) -> None:
    """A file of the first cut holds records of the second and third."""
    folder = tmp_path / "landing"
    source = landing(
        folder,
        schema="amount BIGINT, price BIGINT, at TIMESTAMP",
        attribute_by="event_time",
        event_time="at",
        path_date=None,
    )
    hours: list[object] = [MONDAY + timedelta(hours=12), MONDAY + timedelta(hours=36)]
    hours.append(MONDAY + timedelta(hours=84))
    arrive(folder, 1, "all.parquet", amount=[1] * 3, price=[2] * 3, at=hours)
    first = shop.open(1, fragment(source))
    shop.process(first, "load", ROWS)
    folder.rename(tmp_path / GONE)
    second = shop.open(2, fragment(source))
    (tmp_path / GONE).rename(folder)
    cut = shop.begin(second, "load").spec.cuts["purchases"]
    (held,) = source.readings(cut, first.timestamp, second.timestamp)
    assert (held.after, held.until) == (first.timestamp, second.timestamp)
    assert [Path(file).name for file in held.files] == ["all.parquet"]


def two_readers(source: Files) -> Fragment:
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source.declare(),))
    amount = replace(JOBS[1], inlets=(), externals=(source.declare(),))
    return Fragment("shopping", "shopping_dag", (load, amount, JOBS[2]))


@pytest.mark.kills("put-off-is-made-once")
def test_two_jobs_read_one_cut(shop: Shop, tmp_path: Path) -> None:
    """Both were about to make it; what landed between the one and the other is in neither's epoch or in both's."""
    folder = tmp_path / "landing"
    declared = two_readers(landing(folder))
    arrive(folder, 1, "1.parquet")
    first = shop.open(1, declared)
    for job in ("load", "amount"):
        shop.process(first, job, ROWS)
    folder.rename(tmp_path / GONE)
    second = shop.open(2, declared)
    (tmp_path / GONE).rename(folder)
    arrive(folder, 2, "2.parquet")
    one = shop.begin(second, "load").spec.cuts["purchases"]
    arrive(folder, 2, "late.parquet")
    other = shop.deployment.meta.cuts.make("shopping", 2, replace(one, items=(*one.items, "late.parquet")), "amount")
    assert set(other.items) == set(one.items)
    assert other.end == one.end
    assert shop.begin(second, "amount").spec.cuts["purchases"].end == one.end


def test_an_outside_table_that_is_gone(shop: Shop) -> None:
    """Its cut holds no ref to let go of, when the barrier is aborted and when its job leaves."""

    outside = "shop.outside"
    shop.deployment.tables.catalog.create_table(outside, shop.deployment.tables.load(SHOPPING).schema())
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(IcebergTable(outside).declare(),))
    declared = Fragment("shopping", "shopping_dag", (load, *JOBS[1:]))
    first = shop.open(1, declared)
    shop.deployment.tables.catalog.drop_table(outside)
    second = shop.open(2, declared)
    shop.process(first, "load", ROWS)
    with pytest.raises(BarrierError, match=r"shop\.outside"):
        shop.begin(second, "load")
    abort_barrier(shop.deployment, "shopping", 2, reason="given up", actor="test")


def test_the_first_cut_has_to_be_made_and_says_how_to_get_on(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(SourceDataError) as said:
        shop.open(1, fragment(landing(tmp_path / GONE)))
    for part in (
        "source purchases",
        "job load (DAG shopping_dag)",
        f"landing folder {tmp_path / GONE}",
        "airflow-barrier topology leave shopping --dag DAG --job JOB",
    ):
        assert part in str(said.value)


def test_a_member_whose_source_is_not_there_does_not_join(shop: Shop, tmp_path: Path) -> None:
    shop.open(1)
    reader = Job("reader", "other_dag", outlets=("shop.other",), externals=(landing(tmp_path / GONE).declare(),))
    shop.deployment.tables.catalog.create_table("shop.other", shop.deployment.tables.load(SHOPPING).schema())
    at = MONDAY + timedelta(days=2)
    with pytest.raises(SourceDataError, match=r"job reader \(DAG other_dag\).*source purchases.*before it joins"):
        take_part(shop.deployment, Fragment("shopping", "other_dag", (reader,)), reader, at, "test")
    shop.open(2)


def test_what_ends_an_attempt_ends_it_whatever_error_it_is(shop: Shop, tmp_path: Path) -> None:
    """A cut that is not as its adapter wrote it: the error is Python's own."""
    folder = tmp_path / "landing"
    arrive(folder, 1)
    barrier = shop.open(1, fragment(landing(folder)))
    shop.deployment.meta.cuts.repin("shopping", 1, Cut("purchases", None, {"time": "now"}), "test")
    with pytest.raises(KeyError):
        shop.begin(barrier, "load")
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 1)
    assert (attempt.state, attempt.reason) == (AttemptState.ABORTED, "KeyError")


def test_settings_of_another_version_are_told(tmp_path: Path) -> None:
    known = landing(tmp_path).declare()
    newer = ExternalSource(known.name, known.kind, {**known.options, "quarantine": True})
    older = ExternalSource(known.name, known.kind, {"path": str(tmp_path)})
    for other in (newer, older):
        with pytest.raises(ConfigurationError, match=r"source purchases: .* run the same version"):
            source_of(other)


# --- where sources may lie ------------------------------------------------------------------------


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server inside, and what it was asked for."""
    paths: list[str] = []

    class Inside(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 (the name is http.server's)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Inside)
    serving = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05))
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    serving.join(10)
    server.server_close()


def test_a_worker_asks_no_host(shop: Shop, tmp_path: Path, asked: tuple[str, list[str]]) -> None:
    """Neither while the DAG is parsed, nor if the declaration came by another way."""
    url, paths = asked
    for place in (f"{url}/latest/", f"simplecache::{url}/", f"reference://::{url}/a.json", f"zip://a::{url}/a.zip"):
        with pytest.raises(ConfigurationError, match=r"expected a storage|expected the address of one folder"):
            Files(place, schema="n BIGINT")
        known = landing(tmp_path).declare()
        forged = ExternalSource(known.name, known.kind, {**known.options, "path": place})
        load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(forged,))
        with pytest.raises(ConfigurationError):
            shop.open(1, Fragment("shopping", "shopping_dag", (load, *JOBS[1:])))
    assert paths == []


@pytest.mark.parametrize(
    "path",
    [
        "ssh://host/in",
        "github://org:repo@main/",
        "memory://in",
        "ftp://host/in",
        "file://relative/in",
        "s3:///in",
        "s3://in/../other",
        "/in/./shop",
        "s3://in//shop",
        "/in::s3://x",
    ],
)
def test_places_that_nobody_may_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        Files(path, schema="n BIGINT", name="in")


@pytest.mark.parametrize(
    ("roots", "allowed", "refused"),
    [
        (
            ("s3://in/shop/",),
            ["s3://in/shop", "s3a://in/shop/a"],
            ["s3://in/shopping", "s3://in", "gs://in/shop", "/in"],
        ),
        (("/in",), ["/in", "file:///in/a"], ["/inside", "s3://in/in"]),
        (("abfs://c@a/x", "hdfs://n/"), ["abfss://c@a/x/y", "hdfs://n/z"], ["abfs://c@b/x", "hdfs://m/z"]),
        ((), ["s3://in", "hdfs://n/x", "/in"], []),
    ],
)
def test_roots(roots: tuple[str, ...], allowed: list[str], refused: list[str]) -> None:
    place = SourceRoots.of(roots, "/warehouse")
    assert [each for each in (*allowed, *refused) if place.allow(each)] == allowed


def test_beside_a_warehouse_that_is_not_local_a_local_folder_has_to_be_named() -> None:
    assert not SourceRoots.of((), "s3://lake").allow("/in")
    assert SourceRoots.of((), "s3://lake").allow("s3://in")
    assert SourceRoots.of(("/in",), "s3://lake").allow("/in/a")


def test_a_link_does_not_lead_out_of_a_root(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to("/etc")
    roots = SourceRoots.of((str(tmp_path / "in"),), "/warehouse")
    assert roots.allow(f"{tmp_path}/in/a")
    assert not roots.allow(f"{tmp_path}/in/out")


@pytest.mark.kills("source-roots")
def test_a_source_outside_of_the_roots_is_not_opened(shop: Shop, tmp_path: Path) -> None:
    """Neither registered, nor read where it was registered by a connection that allows more."""
    inside, outside = tmp_path / "in", tmp_path / "secret"
    arrive(outside, 1)
    declared = fragment(landing(outside))
    barrier = shop.open(1, declared)
    narrow = replace(shop.deployment, source_roots=SourceRoots((str(inside),)))
    with pytest.raises(ConfigurationError, match=rf"source purchases: expected a place .*{inside}.*found {outside}"):
        begin(narrow, barrier, "load", Asking(request_key="k", generation="g0", actor="test"))
    for name in ("shopping", "anew"):
        with pytest.raises(ConfigurationError, match="source purchases"):
            Shop(narrow).open(2, replace(declared, topology=name))
    assert narrow.meta.topologies.names() == ["shopping"]
    member = Job("reader", "other_dag", outlets=("shop.other",), externals=declared.jobs[0].externals)
    with pytest.raises(ConfigurationError, match="source purchases"):
        take_part(narrow, Fragment("shopping", "other_dag", (member,)), member, MONDAY + timedelta(days=2), "test")


def test_what_was_landed_wrong_holds_up_its_own_jobs(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    source = landing(folder)
    bad = arrive(folder, 1)
    bad.rename(tmp_path / "elsewhere.parquet")
    bad.symlink_to(tmp_path / "elsewhere.parquet")
    barrier = shop.open(1, fragment(source))
    with pytest.raises(SourceDataError, match=r"part-0\.parquet: expected a file, found a link"):
        begin(shop.deployment, barrier, "load", Asking(request_key="k", generation="g0", actor="test"))
    (tmp_path / "elsewhere.parquet").replace(bad)
    assert shop.begin(barrier, "load", generation="cleared").spec.cuts["purchases"].items
