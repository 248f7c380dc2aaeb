"""How a group puts tasks together, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import BranchPythonOperator, PythonOperator, ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, BaseOperator, TaskGroup, task_group

from airflow_barrier.operators._commit import check_gates, not_jobs_before
from airflow_barrier.operators.check import CheckOperator
from airflow_barrier.operators.commit import AbortBarrierOperator, CommitBarrierOperator
from airflow_barrier.operators.compact import CompactTablesOperator
from airflow_barrier.operators.deliver import DeliverOperator
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.revise import ReviseOperator
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.protocol.codec import decode, digest, encode
from airflow_barrier.protocol.errors import ConfigurationError, CycleError, SecondWriterError, UnknownTableError
from airflow_barrier.protocol.topology import Topology
from airflow_barrier.sensors.barrier import BarrierSensor
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sources.files import Files
from airflow_barrier.tables import Table
from tests.support.dags import stored

START = datetime(2025, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def dag() -> DAG:
    return DAG("shop", schedule="@daily", start_date=START)


def epoch(name: str) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, application=f"/jobs/{name}.py")


def test_edges_follow_tables(dag: DAG) -> None:
    landing = Files("/in/shopping", schema="id BIGINT")
    with dag, BarrierGroup("shopping") as group:
        load = group.job(epoch("load"), inlets=[landing], outlets=["shop.a"])
        left = group.job(epoch("left"), inlets=["shop.a"], outlets=["shop.l"])
        right = group.job(epoch("right"), inlets=["shop.a"], outlets=["shop.r"])
        both = group.job(epoch("both"), inlets=["shop.l", "shop.r"], outlets=["shop.b"])
    assert group.start is not None
    assert group.commit is not None
    assert group.start.downstream_task_ids == {load.task_id}
    assert load.downstream_task_ids == {left.task_id, right.task_id}
    assert both.upstream_task_ids == {left.task_id, right.task_id}
    assert both.downstream_task_ids == {"shopping.commit"}
    assert group.start.depends_on_past
    assert [job.name for job in group.start.jobs] == ["load", "left", "right", "both"]
    assert {job.owner for job in group.start.jobs} == {"shop"}
    assert group.start.jobs[0].externals == (landing.declare(),)
    assert sorted(asset.uri for asset in group.commit.outlets) == [
        f"barrier://shopping/shop.{table}" for table in ("a", "b", "l", "r")
    ]


def test_tables_are_declared_where_they_are_written(dag: DAG) -> None:
    first, second = Table("shop.a", "id BIGINT"), Table("shop.b", "id BIGINT", partitioned_by=["bucket(4, id)"])
    with dag, BarrierGroup("shopping") as group:
        group.job(epoch("load"), outlets=[first, "shop.c"])
        both = group.job(epoch("both"), inlets=[first, "shop.c"], outlets=[second])
    assert both.upstream_task_ids == {"shopping.load"}
    assert group.start is not None
    assert group.start.tables == group.fragment.tables == both._binding.fragment.tables == (first, second)
    assert [job.outlets for job in group.start.jobs] == [("shop.a", "shop.c"), ("shop.b",)]
    assert group.start.jobs[1].inlets == ("shop.a", "shop.c")


def test_a_wrapped_operator_stays_what_it_was(dag: DAG) -> None:
    with dag, BarrierGroup("shopping") as group:
        task = SparkSubmitOperator(task_id="load", application="/jobs/{{ ds }}.py", conf={"spark.x": "1"}, retries=2)
        assert group.job(task, outlets=["shop.a"]) is task
    assert isinstance(task, SparkSubmitOperator)
    assert task.task_type == "SparkSubmitOperator"
    assert task.retries == 2
    assert task.template_fields == SparkSubmitOperator.template_fields
    # other tasks of the same class are left alone
    with dag:
        other = SparkSubmitOperator(task_id="other", application="/jobs/other.py")
    assert type(other) is SparkSubmitOperator


def test_a_check_of_the_authors_keeps_the_commit_in_its_task(dag: DAG) -> None:
    with dag:
        with BarrierGroup("shopping") as group:
            load = group.job(epoch("load"), outlets=["shop.a"])
            amount = group.job(epoch("amount"), inlets=["shop.a"], outlets=["shop.b"])
            price = group.job(epoch("price"), inlets=["shop.a"], outlets=["shop.c"])
        before_a_job = EmptyOperator(task_id="before_a_job")
        load >> before_a_job >> amount  # this one is over when the barrier is complete
        assert not_jobs_before(price, "shopping.commit", "shopping") == []
        price >> EmptyOperator(task_id="check") >> group.commit
        with BarrierGroup("other") as other:
            other.job(epoch("load"), outlets=["other.a"]) >> group.commit
    assert not_jobs_before(price, "shopping.commit", "shopping") == ["check", "other.load"]
    assert not_jobs_before(price, "other.commit", "other") == []


@pytest.mark.parametrize("on_failure", ["block", "abort"])
def test_a_check_stands_between_the_jobs_and_the_commit(dag: DAG, on_failure: str) -> None:
    with dag, BarrierGroup("shopping", on_failure=on_failure) as group:
        negative = group.check("no negative prices", sql="SELECT * FROM lake.shop.b WHERE price < 0", retries=3)
        load = group.job(epoch("load"), outlets=["shop.a"])
        price = group.job(epoch("price"), inlets=["shop.a"], outlets=["shop.b"])
        twice = group.check("ids, once", sql="SELECT id FROM lake.shop.b GROUP BY id HAVING count(*) > 1")
    assert (negative.task_id, twice.task_id) == ("shopping.check_no_negative_prices", "shopping.check_ids__once")
    assert negative.retries == 3
    assert not negative.depends_on_past, "for ever, where what failed its check was aborted"
    assert group.commit is not None
    after = {"shopping.commit", *(["shopping.abort"] if on_failure == "abort" else [])}
    for check in (negative, twice):
        assert (check.upstream_task_ids, check.downstream_task_ids) == ({price.task_id}, after)
    assert load.downstream_task_ids == {price.task_id}
    # nor does the job that completes the barrier commit it
    checks = ["shopping.check_ids__once", "shopping.check_no_negative_prices"]
    assert not_jobs_before(price, "shopping.commit", "shopping") == checks


def test_a_check_without_a_commit_is_refused(dag: DAG) -> None:
    with dag:
        with BarrierGroup("shopping", member=True) as member:
            member.job(epoch("price"), inlets=["shop.a"], outlets=["shop.price"])
            with pytest.raises(ConfigurationError, match=r"check 'some': .* found a member, which has no commit"):
                member.check("some", sql="SELECT 1")
        with BarrierGroup("other") as group:
            group.job(epoch("load"), outlets=["shop.b"])
        with pytest.raises(ConfigurationError, match=r"check 'some': .* found it after the block"):
            group.check("some", sql="SELECT 1")


@pytest.mark.parametrize(
    ("gate", "before", "found"),
    [
        (
            ShortCircuitOperator,
            "job",
            "ShortCircuitOperator with ignore_downstream_trigger_rules=True; set it to False",
        ),
        (ShortCircuitOperator, "start", None),
        (BranchPythonOperator, "job", None),
        (BranchPythonOperator, "commit", "a check before shop.commit that fails, found BranchPythonOperator"),
        (PythonOperator, "commit", None),
    ],
)
def test_a_gate_that_would_skip_the_commit_is_refused(dag: DAG, gate: Any, before: str, found: str | None) -> None:
    """Before a barrier is open: the commit, which says what was skipped, would not run."""
    with dag:
        with BarrierGroup("shop") as group:
            load = group.job(epoch("load"), outlets=["shop.a"])
        (
            gate(task_id="gate", python_callable=print)
            >> {"job": load, "start": group.start, "commit": group.commit}[before]
        )
    with nullcontext() if found is None else pytest.raises(ConfigurationError, match=found):
        check_gates(group.start, "shop.commit")  # type: ignore[arg-type]


def test_freshness_is_the_groups_or_a_jobs_own(dag: DAG) -> None:
    with dag, BarrierGroup("shopping", freshness=timedelta(minutes=15)) as group:
        group.job(epoch("load"), outlets=["shop.a"])
        group.job(epoch("sum"), inlets=["shop.a"], outlets=["shop.b"], freshness=timedelta(hours=1))
    assert [job.freshness for job in group.fragment.jobs] == [900, 3600]
    topology = Topology.of("shopping", group.fragment.jobs)
    assert topology.freshness == 900
    assert decode(Topology, encode(topology)) == topology
    undeclared = Topology.of("shopping", [replace(job, freshness=None) for job in topology.jobs])
    assert undeclared.freshness is None
    assert digest(undeclared) != digest(topology)
    with pytest.raises(ConfigurationError, match="topology shopping: freshness: expected more than no time"):
        BarrierGroup("shopping", freshness=timedelta(0), dag=dag)
    with (
        pytest.raises(ConfigurationError, match="topology other, job load: freshness: expected more than no time"),
        dag,
        BarrierGroup("other") as other,
    ):
        other.job(epoch("load"), outlets=["shop.a"], freshness=timedelta(days=-1))


def test_abort_on_failure_does_not_hold_up_what_follows_the_group(dag: DAG) -> None:
    with dag:
        with BarrierGroup("shopping", on_failure="abort") as group:
            load = group.job(epoch("load"), outlets=["shop.a"])
        after = EmptyOperator(task_id="after")
        group >> after
    assert isinstance(group.abort, AbortBarrierOperator)
    assert group.abort.trigger_rule == "one_failed"
    assert load.downstream_task_ids == {"shopping.commit", "shopping.abort"}
    assert after.upstream_task_ids == {"shopping.commit"}


@pytest.mark.parametrize("where", ["dag", "group", "both"])
def test_the_order_of_barriers_does_not_rest_on_default_args(where: str) -> None:
    """Airflow's own examples have ``depends_on_past=False`` there."""
    said = {
        "depends_on_past": False,
        "ignore_first_depends_on_past": False,
        "wait_for_past_depends_before_skipping": False,
        "wait_for_downstream": True,
        "trigger_rule": "all_done",
        "retries": 2,
    }
    with DAG("shop", schedule="@daily", start_date=START, default_args=said if where != "group" else {}):
        group = BarrierGroup("shop", on_failure="abort", default_args=said if where != "dag" else {})
        with group:
            load = group.job(epoch("load"), outlets=["shop.a"])
        alone = StartBarrierOperator(task_id="alone", topology="other", jobs=[], default_args=said)
    assert group.start is not None
    assert group.commit is not None
    assert group.abort is not None
    for start in (group.start, alone):
        assert start.depends_on_past
        assert start.ignore_first_depends_on_past
        assert start.wait_for_past_depends_before_skipping
        assert not start.wait_for_downstream
    rules = [task.trigger_rule for task in (group.start, group.commit, group.abort)]
    assert rules == ["all_success", "none_failed", "one_failed"]
    assert load.trigger_rule == "all_done", "a job looks for its input itself"
    assert load.retries == group.start.retries == group.commit.retries == 2


def test_a_member_neither_opens_nor_commits(dag: DAG) -> None:
    with dag, BarrierGroup("shopping", member=True) as group:
        price = group.job(epoch("price"), inlets=["shop.a"], outlets=["shop.price"])
    assert dag.task_ids == [price.task_id]


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        ([("load", [], ["shop.a"]), ("again", [], ["shop.a"])], SecondWriterError),
        ([("load", ["shop.b"], ["shop.a"]), ("back", ["shop.a"], ["shop.b"])], CycleError),
        ([("load", ["shop.nowhere"], ["shop.a"])], UnknownTableError),
    ],
)
def test_a_topology_that_cannot_work_is_an_import_error(
    dag: DAG, jobs: list[tuple[str, list[str], list[str]]], error: type[Exception]
) -> None:
    def declare() -> None:
        with dag, BarrierGroup("shopping") as group:
            for name, inlets, outlets in jobs:
                group.job(epoch(name), inlets=inlets, outlets=outlets)

    with pytest.raises(error):
        declare()


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (lambda: EmptyOperator(task_id="a"), r"expected SparkEpochOperator.*found EmptyOperator"),
        (
            lambda: SparkSubmitOperator.partial(task_id="a").expand(application=["/a.py", "/b.py"]),
            "a table has one writer",
        ),
        (
            lambda: TriggerDagRunOperator(task_id="a", trigger_dag_id="b", conf={"a": 1}),
            "found TriggerDagRunOperator, and nobody knows where",
        ),
    ],
)
def test_what_is_no_job_is_refused(dag: DAG, operator: Callable[[], Any], message: str) -> None:
    with dag, pytest.raises(ConfigurationError, match=message), BarrierGroup("shopping") as group:
        group.job(operator(), outlets=["shop.a"])


def _within(declare: Callable[[], object]) -> None:
    with TaskGroup("inner"):
        declare()


def _job_of(group_id: str, **options: Any) -> None:
    with BarrierGroup(group_id, **options) as group:
        group.job(SparkSubmitOperator(task_id="load", application="/a.py"), outlets=["shop.a"])


_MAPPED: dict[str, Callable[[], object]] = {
    "a barrier": lambda: _job_of("shopping"),
    "a job": lambda: _job_of("shopping", member=True),
    "a job in a group": lambda: _within(lambda: _job_of("shopping", member=True)),
    "a start": lambda: StartBarrierOperator(task_id="one", topology="shopping", jobs=[]),
    "a commit": lambda: _within(lambda: CommitBarrierOperator(task_id="one", topology="shopping")),
    "an abort": lambda: AbortBarrierOperator(task_id="one", topology="shopping"),
    "a check": lambda: CheckOperator(task_id="one", topology="shopping", check="some", sql="SELECT 1"),
    "a delivery": lambda: DeliverOperator(task_id="one", topology="shopping", tables="shop.a", to=FileSink("/out")),
}


@pytest.mark.kills("once-in-a-run")
@pytest.mark.parametrize("what", _MAPPED)
def test_what_runs_once_is_refused_in_a_mapped_group(dag: DAG, what: str) -> None:
    """Of several instances the first would do the work, and the others take it for their own."""

    @task_group
    def each(country: str) -> None:
        _MAPPED[what]()

    with dag, pytest.raises(ConfigurationError, match="found it in the mapped task group each; a mapped task cannot"):
        each.expand(country=["de", "fr"])


def test_a_mapped_group_within_a_barriers_is_none_for_its_jobs(dag: DAG) -> None:
    @task_group
    def each(country: str) -> None:
        group.job(epoch("load"), outlets=["shop.a"])

    with (
        dag,
        pytest.raises(ConfigurationError, match=r"mapped task group shopping\.each; .* since a table has one writer"),
        BarrierGroup("shopping") as group,
    ):
        each.expand(country=["de", "fr"])


def test_a_job_that_was_put_into_a_mapped_group_later_does_not_run(dag: DAG) -> None:
    with dag:
        with BarrierGroup("shopping") as group:
            load = group.job(epoch("load"), outlets=["shop.a"])

        @task_group
        def each(country: str) -> None:
            pass

        with each.expand(country=["de", "fr"]) as mapped:
            mapped.add(load)
    with pytest.raises(AirflowFailException, match="mapped task group each; a mapped task cannot be a job"):
        type(load).execute.__wrapped__(load, {})


def test_sensors_may_be_mapped(dag: DAG) -> None:
    @task_group
    def each(topology: str) -> BaseOperator:
        return BarrierSensor(task_id="wait", topology=topology)

    with dag:
        each.expand(topology=["shopping", "selling"])
    assert dag.task_ids == ["each.wait"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outlets": "shop.a"}, r"job load: outlets: expected a list, found 'shop\.a'; put it in brackets"),
        ({"inlets": "s3://in/shop/", "outlets": ["shop.a"]}, "job load: inlets: expected a list, found 's3"),
        ({"outlets": Table("shop.a", "id BIGINT")}, "outlets: expected a list, found one Table;"),
        (
            {"inlets": Files("/in", schema="id BIGINT"), "outlets": ["shop.a"]},
            "inlets: expected a list, found one Files;",
        ),
        ({"inlets": ["s3://in/shop/"], "outlets": ["shop.a"]}, r"a folder is read by a source: Files\('s3://in/shop/'"),
    ],
)
def test_one_where_several_belong(dag: DAG, given: dict[str, Any], message: str) -> None:
    with dag, pytest.raises(ConfigurationError, match=message), BarrierGroup("shop") as group:
        group.job(epoch("load"), **given)


@pytest.mark.parametrize(
    ("operator", "argument"),
    [
        (CommitBarrierOperator, "tables"),
        (CompactTablesOperator, "tables"),
        *((ReviseOperator, each) for each in ("changed", "corrections", "reused", "recut")),
    ],
)
def test_one_name_where_an_operator_takes_several(operator: Any, argument: str) -> None:
    own = {ReviseOperator: {"reason": "bad"}}.get(operator, {})
    with pytest.raises(ConfigurationError, match=rf"{argument}: expected a list, found 'shop\.a'"):
        operator(task_id="one", topology="shop", **{argument: "shop.a"}, **own)


def test_a_job_after_the_block_of_its_group_is_refused(dag: DAG) -> None:
    with dag, BarrierGroup("shopping") as group:
        group.job(epoch("load"), outlets=["shop.a"])
    with dag, pytest.raises(ConfigurationError, match=r"task late: expected barrier\.job.* within the block"):
        group.job(epoch("late"), outlets=["shop.b"])


def test_the_topology_of_a_commit_is_no_template() -> None:
    with pytest.raises(ConfigurationError, match=r"expected the name of a topology, found '\{\{ params"):
        CommitBarrierOperator(task_id="commit", topology="{{ params.topology }}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either application=... or sql=..."),
        ({"sql": "SELECT 1", "application": "/a.py"}, "not both"),
        ({"application": "/a.py", "via": "livy"}, "found 'livy'"),
        ({"application": "/a.py", "profile": "fast"}, "task load: profile: expected 'auto' or 'spark', found 'fast'"),
        ({"application": "/a.py", "via": "submit", "job": "load"}, "a file of its own"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SparkEpochOperator(task_id="load", **arguments)


def test_an_epoch_operator_alone_says_where_it_belongs() -> None:
    with pytest.raises(ConfigurationError, match=r"or hand it to barrier\.job"):
        SparkEpochOperator.execute.__wrapped__(epoch("load"), {})  # type: ignore[attr-defined]


def test_options_of_the_owner_are_not_a_members(dag: DAG) -> None:
    with dag, pytest.raises(ConfigurationError, match="not to a member"):
        BarrierGroup("shopping", member=True, on_failure="abort")
    with dag, pytest.raises(ConfigurationError, match="not to a member"):
        BarrierGroup("shopping", member=True, backfill="revise")
    with dag, pytest.raises(ConfigurationError, match="found 'ignore'"):
        BarrierGroup("shopping", on_failure="ignore")
    with dag, pytest.raises(ConfigurationError, match="'own', 'revise' or 'explain', found 'always'"):
        BarrierGroup("shopping", backfill="always")
    with dag, pytest.raises(ConfigurationError, match="expected jobs"), BarrierGroup("shopping"):
        pass


@pytest.mark.parametrize("backfill", ["own", "explain"])
def test_what_airflows_forms_ask(dag: DAG, backfill: str) -> None:
    with dag, BarrierGroup("shopping", backfill=backfill) as group:
        group.job(epoch("load"), inlets=[Files("file:///in", schema="id INT", name="tills")], outlets=["shop.a"])
        group.job(epoch("amount"), inlets=["shop.a"], outlets=["shop.b"])
    params = stored(dag).params
    assert params.dump().pop("barrier_rehearsal") is False
    if backfill == "explain":
        assert list(params) == ["barrier_rehearsal"]
        return
    corrected = {"barrier_jobs": [], "barrier_recut": [], "barrier_full": False}
    assert params.dump() == {**corrected, "barrier_rehearsal": False}
    assert params.get_param("barrier_jobs").schema["examples"] == ["load", "amount"]
    assert params.get_param("barrier_recut").schema["examples"] == ["tills"]
