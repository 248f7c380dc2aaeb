"""Names are refused before anything is written, or they can go everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from urllib.parse import unquote

import pytest
from airflow.sdk import DAG
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.operators.commit import table_asset
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import ConfigurationError, TopologyError
from airflow_barrier.protocol.names import (
    Stamp,
    event_key,
    name_fault,
    one_line,
    parse_branch,
    source_fault,
    table_fault,
    tag_name,
)
from airflow_barrier.protocol.topology import ExternalSource, Job, check_names
from airflow_barrier.sources.iceberg_table import IcebergTable
from tests.hostile.names import NO_TABLES, NO_TOPOLOGIES, UNPRINTABLE, WORKABLE
from tests.support.cases import cases
from tests.support.deployments import SHARED, settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.reporting import report

LONGEST_TOPOLOGY = "t" * 100
HUGE = 2**63 - 1
LOAD = Job("load", "dag", outlets=("shop.a",))


@pytest.fixture(scope="module", params=SHARED)
def meta(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL
) -> Iterator[MetaService]:
    with settings_on(request.param, tmp_path_factory.mktemp("door"), postgresql) as where:
        meta = MetaService(_url(where), create=True)
        yield meta
        meta.close()


def _url(where: Settings) -> str:
    from airflow_barrier.coordinator.deployment import with_password

    return with_password(where.metaservice_url, where.metaservice_password)


def reading(source: str) -> Job:
    """A job that reads an external source of that name."""
    return Job("load", "dag", outlets=("shop.a",), externals=(ExternalSource(source, "files", {"path": "/in"}),))


def refused(meta: MetaService, topology: str, job: Job) -> str:
    """What is said; nothing has been written."""
    before = [encode(meta.topologies.get(name)) for name in meta.topologies.names()]
    with pytest.raises(TopologyError) as caught:
        meta.topologies.register(topology, job.owner, [job], "test")
    assert [encode(meta.topologies.get(name)) for name in meta.topologies.names()] == before
    return told(caught.value)


def told(error: TopologyError) -> str:
    said = str(error)
    assert said.isprintable(), said
    assert "expected" in said
    return said


# --- refused ------------------------------------------------------------------------------------------


def refusal(topology: str, job: Job) -> str:
    """What the look says that every registration begins with."""
    with pytest.raises(TopologyError) as caught:
        check_names(topology, [job])
    return told(caught.value)


def test_a_topology() -> None:
    with cases() as case:
        for name in NO_TOPOLOGIES:
            with case(name):
                assert ascii(name) in refusal(name, LOAD)


def test_a_job_a_dag_a_source_a_namespace_and_a_table() -> None:
    with cases() as case:
        for name in UNPRINTABLE:
            for job in (
                Job(name, "dag", outlets=("shop.a",)),
                Job("load", name, outlets=("shop.a",)),
                reading(name),
                Job("load", "dag", outlets=(f"{name}.a",)),
                Job("load", "dag", outlets=(f"shop.{name}",)),
                Job("load", "dag", inlets=(f"shop.{name}",), outlets=("shop.a",)),
            ):
                with case(job):
                    assert ascii(name)[1:-1] in refusal("refused", job)


def test_a_table() -> None:
    with cases() as case:
        for name in NO_TABLES:
            with case(name):
                table = f"shop.{name}"
                assert ascii(table) in refusal("refused", Job("load", "dag", outlets=(table,)))
                with pytest.raises(ConfigurationError, match=r"expected namespace\.table"):
                    IcebergTable(table)
        for name in ("nodot", ".a", "shop."):
            with case(name):
                assert ascii(name) in refusal("refused", Job("load", "dag", outlets=(name,)))


def test_a_source_that_no_placeholder_can_hold() -> None:
    for name in ("{braced", "}"):
        assert "placeholder" in refusal("refused", reading(name))


def test_what_is_refused_is_not_written(meta: MetaService) -> None:
    """A name of each kind, among them what databases cannot hold or would cut off."""
    for name, topology, job in (
        ("nul\0l", "nul\0l", LOAD),
        ("half \ud800", "refused", Job("half \ud800", "dag", outlets=("shop.a",))),
        ("x" * 251, "refused", Job("load", "x" * 251, outlets=("shop.a",))),
        ("{braced", "refused", reading("{braced")),
        ("new\nline", "refused", Job("load", "dag", outlets=("new\nline.a",))),
        ("é" * 226, "refused", Job("load", "dag", outlets=(f"shop.{'é' * 226}",))),
    ):
        assert ascii(name)[1:-1] in refused(meta, topology, job)


@pytest.mark.parametrize("member", [False, True], ids=["owner", "member"])
@pytest.mark.parametrize("table", ["shop.new\nline", "nodot"])
def test_while_the_dag_is_parsed(member: bool, table: str) -> None:
    def declare() -> None:
        with (
            DAG("hostile", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc)),
            BarrierGroup("hostile", member=member) as group,
        ):
            group.job(SparkEpochOperator(task_id="load", application="/jobs/load.py"), outlets=[table])

    with pytest.raises(TopologyError, match="rename it"):
        declare()


# --- taken --------------------------------------------------------------------------------------------

plain = st.text(st.characters(exclude_categories=["C"], exclude_characters=".:?#{}"), min_size=1, max_size=40)
text = plain | st.text(st.characters(), max_size=260) | st.sampled_from((*WORKABLE, *UNPRINTABLE, *NO_TABLES))


def test_any_text_is_refused_whole_or_comes_back_as_it_was(meta: MetaService) -> None:
    taken = turned_down = 0

    @settings(max_examples=250, deadline=None)
    @given(job=text, owner=text, namespace=text, table=text, source=text)
    def register(job: str, owner: str, namespace: str, table: str, source: str) -> None:
        nonlocal taken, turned_down
        declared = Job(
            job, owner, outlets=(f"{namespace}.{table}",), externals=(ExternalSource(source, "files", {"path": table}),)
        )
        if any((name_fault(job), name_fault(owner), table_fault(declared.outlets[0]), source_fault(source))):
            turned_down += 1
            refused(meta, "any", declared)
            return
        version = meta.topologies.register("any", owner, [declared], job)
        taken += 1
        assert meta.topologies.get("any", version).job(job) == declared
        assert unquote(table_asset("any", declared.outlets[0]).uri).endswith(declared.outlets[0])
        meta.topologies.register("any", owner, [], "test")  # leaves, so that the next one's table is not claimed

    register()
    assert taken >= 20
    assert turned_down >= 20
    report(
        f"hostile names: {taken} topologies of random names taken, {turned_down} refused; {len(WORKABLE)} listed names "
        f"work, {len({*UNPRINTABLE, *NO_TABLES})} are refused"
    )


def test_a_name_that_works_comes_back_as_it_was(meta: MetaService) -> None:
    with cases() as case:
        for name in WORKABLE:
            with case(name):
                table = f"{'n' * 150 if len(name) == 250 else name}.{name}"
                job = Job(name, name, outlets=(table,), externals=(ExternalSource(name, "files", {"path": name}),))
                version = meta.topologies.register("any", name, [job], name)
                assert meta.topologies.register("any", name, [job], name) == version
                assert meta.topologies.get("any").job(name) == job
                assert meta.topologies.get("any").writer(table) == job
                meta.topologies.register("any", name, [], "test")


def test_assets_of_different_tables_are_different() -> None:
    tables = [f"shop.{name}" for name in (*WORKABLE, "a?b", "a#b", "a", "a/", "a//")]
    assets = [table_asset(LONGEST_TOPOLOGY, table) for table in tables]
    assert len({asset.uri for asset in assets}) == len({asset.name for asset in assets}) == len(tables)
    assert all(asset.uri.isascii() for asset in assets)
    longest = table_asset(LONGEST_TOPOLOGY, "é" * 112 + "." + "é" * 112)
    assert len(longest.uri) <= 1500


def test_the_longest_names_stay_within_what_others_hold() -> None:
    stamp = Stamp(LONGEST_TOPOLOGY, HUGE, HUGE, HUGE, "i")
    parsed = parse_branch(stamp.branch)
    assert parsed is not None
    assert parsed.topology == LONGEST_TOPOLOGY
    assert max(map(len, (stamp.branch, tag_name(LONGEST_TOPOLOGY, HUGE, HUGE), event_key(HUGE, HUGE)))) <= 250
    assert parse_branch(f"{stamp.branch}\n") is None


@given(st.text())
def test_free_text_on_one_line_keeps_what_can_be_kept(free: str) -> None:
    line = one_line(free)
    line.encode()  # no half of a surrogate pair is left
    assert len(line.splitlines()) <= 1
    assert one_line(line) == line
    if free.isprintable():
        assert line == free
