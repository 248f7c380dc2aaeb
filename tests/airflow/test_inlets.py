"""Tasks that are jobs by their own words: Airflow's inlets and outlets, the placeholders of SQL, and decorators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAlias, TaskGroup, task

from airflow_barrier.operators.commit import table_asset
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.processed import processed_asset
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError
from airflow_barrier.sources.files import Files
from airflow_barrier.tables import Table
from tests.support.dags import stored

START = datetime(2025, 1, 1, tzinfo=timezone.utc)
LANDING = Files("/in", schema="id BIGINT", name="clicks")
A, B = Table("shop.a", "id BIGINT"), Table("shop.b", "id BIGINT")
BUCKET, ALIAS = Asset("s3://bucket/export"), AssetAlias("later")


@pytest.fixture
def dag() -> DAG:
    return DAG("shop", schedule="@daily", start_date=START)


def submit(name: str, **words: Any) -> SparkSubmitOperator:
    return SparkSubmitOperator(task_id=name, application=f"/jobs/{name}.py", **words)


def epoch(name: str, **words: Any) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, application=f"/jobs/{name}.py", **words)


def sql(name: str, statement: str, **words: Any) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, sql=statement, **words)


def tables_of(group: BarrierGroup) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {job.name: (job.inlets, job.outlets) for job in group.fragment.jobs}


# --- inlets and outlets ---------------------------------------------------------------------------


def test_tasks_are_jobs_by_their_own_inlets_and_outlets(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as group:
        load = epoch("load", inlets=[LANDING], outlets=[A])
        with TaskGroup("inner"):
            by_text = submit("by_text", inlets=["shop.a"], outlets=["shop.b"])
        by_asset = submit("by_asset", inlets=Asset("barrier://shop/shop.a"), outlets=table_asset("shop", "shop.c"))
        by_reference = submit(
            "by_reference",
            inlets=[processed_asset("shop", "shop.c"), Asset.ref(uri="barrier://shop/shop.b"), "shop.b"],
            outlets=[Asset.ref(name="barrier://shop/shop.d")],
        )
        handed = group.job(epoch("handed"), inlets=["shop.d"], outlets=["shop.e"])
    assert tables_of(group) == {
        "handed": (("shop.d",), ("shop.e",)),
        "load": ((), ("shop.a",)),
        "inner.by_text": (("shop.a",), ("shop.b",)),
        "by_asset": (("shop.a",), ("shop.c",)),
        "by_reference": (("shop.c", "shop.b"), ("shop.d",)),
    }
    assert group.fragment.jobs[1].externals == (LANDING.declare(),)
    assert group.fragment.tables == (A,)
    assert load.upstream_task_ids == {"shop.start"}
    assert by_text.upstream_task_ids == by_asset.upstream_task_ids == {"shop.load"}
    assert by_reference.upstream_task_ids == {"shop.inner.by_text", "shop.by_asset"}
    assert handed.downstream_task_ids == {"shop.commit"}


def test_a_table_in_two_words_is_one(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as group:
        epoch("load", outlets=["shop.a", A, table_asset("shop", "shop.a")])
    assert tables_of(group) == {"load": ((), ("shop.a",))}
    assert group.fragment.tables == (A,)


def test_airflow_tells_nobody_before_the_commit_does(dag: DAG) -> None:
    """Else DAGs that are scheduled by a table would run when its epoch is merely staged."""
    with dag, BarrierGroup("shop") as group:
        load = submit("load", outlets=[table_asset("shop", "shop.a"), Asset.ref(uri="barrier://shop/shop.b"), BUCKET])
    assert load.outlets == [BUCKET]
    assert group.commit is not None
    assert [asset.uri for asset in group.commit.outlets] == ["barrier://shop/shop.a", "barrier://shop/shop.b"]


def test_what_is_processed_is_announced_as_ever(dag: DAG) -> None:
    with dag, BarrierGroup("shop", announce_processed=True):
        load = submit("load", outlets=[A, table_asset("shop", "shop.b")])
    assert load.outlets == [processed_asset("shop", "shop.a"), processed_asset("shop", "shop.b")]


def test_assets_about_something_else_stay_airflows(dag: DAG) -> None:
    delivered = Asset("barrier://shop/sink/prices")
    with dag, BarrierGroup("shop") as group:
        inlets = [BUCKET, "shop.z", table_asset("shop", "shop.y"), delivered]
        epoch("roots", outlets=["shop.z", "shop.y"])
        load = submit("load", inlets=inlets, outlets=[BUCKET, ALIAS, "shop.a"])
    assert tables_of(group)["load"] == (("shop.z", "shop.y"), ("shop.a",))
    assert load.inlets == [BUCKET, table_asset("shop", "shop.y"), delivered]
    assert load.outlets == [BUCKET, ALIAS]


def test_the_dag_can_be_stored(dag: DAG) -> None:
    with dag, BarrierGroup("shop"):
        epoch("load", inlets=[LANDING], outlets=[A])
        epoch("amount", inlets=[A], outlets=[B])
    again = stored(dag)
    assert again.get_task("shop.amount").upstream_task_ids == {"shop.load"}


def test_what_is_handed_over_keeps_its_airflow_words(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as group:
        load = group.job(submit("load", inlets=[BUCKET], outlets=["shop.other"]), outlets=["shop.a"])
    assert tables_of(group) == {"load": ((), ("shop.a",))}
    assert load.outlets == ["shop.other"]


def test_a_member_of_its_own_words(dag: DAG) -> None:
    with dag, BarrierGroup("shop", member=True) as group:
        epoch("price", inlets=[table_asset("shop", "shop.a")], outlets=["shop.price"])
    assert tables_of(group) == {"price": (("shop.a",), ("shop.price",))}


def test_jobs_of_another_topology_within(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as outer:
        epoch("load", outlets=["shop.a"])
        with BarrierGroup("other") as inner:
            epoch("load", outlets=["other.a"])
    assert tables_of(outer) == {"load": ((), ("shop.a",))}
    assert [job.outlets for job in inner.fragment.jobs] == [("other.a",)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"outlets": "shop.a"}, r"task shop\.load: outlets: expected a list, found 'shop\.a'; put it in brackets"),
        ({"inlets": ["s3://in/shop"], "outlets": [A]}, r"a folder is read by a source: Files\('s3://in/shop'"),
        ({"outlets": [A, LANDING]}, "outlets: expected tables, found the source 'clicks', which is read only"),
        ({"inlets": [table_asset("till", "till.a")], "outlets": [A]}, r"own topology, found barrier://till/till\.a;"),
        ({"outlets": [table_asset("till", "till.a")]}, "outlets: expected tables of its own topology, found barrier:"),
        ({"outlets": [processed_asset("shop", "shop.a")]}, r"expected table_asset\('shop', .* announce_processed=True"),
        ({"outlets": [Asset("mine", "barrier://shop/shop.a")]}, r"expected table_asset\('shop', .* found Asset\(name="),
        ({"outlets": [Asset("barrier://shop/shop.a/b")]}, r"expected table_asset\('shop', .* found Asset\(name='barr"),
        ({"inlets": ["shop.z"]}, "job load .* declares no outlets"),
    ],
)  # fmt: skip
def test_words_that_name_no_table_of_the_topology(dag: DAG, words: dict[str, Any], message: str) -> None:
    def declare() -> None:
        with dag, BarrierGroup("shop"):
            epoch("load", **words)

    with pytest.raises(BarrierError, match=message):
        declare()


# --- SQL by its text ------------------------------------------------------------------------------


def test_sql_says_its_tables_itself(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as group:
        sql("load", "INSERT INTO {target:shop.a} SELECT id FROM {source:clicks} -- {read:shop.not}", inlets=[LANDING])
        sql(
            "b",
            "MERGE INTO {target:shop.b} t USING {changes:shop.a} s JOIN {previous:shop.a} JOIN {appends:shop.a} ON 1",
            outlets=[B],
        )
        sql("c", "INSERT INTO {target:shop.c} SELECT * FROM {read:shop.a} JOIN { READ : shop.b }", inlets=["shop.a"])
    assert tables_of(group) == {
        "load": ((), ("shop.a",)),
        "b": (("shop.a",), ("shop.b",)),
        "c": (("shop.a", "shop.b"), ("shop.c",)),
    }
    assert group.fragment.jobs[0].externals == (LANDING.declare(),)
    assert group.fragment.tables == (B,)


def test_sql_that_is_read_later_has_its_tables_said(dag: DAG) -> None:
    with dag, BarrierGroup("shop") as group:
        sql("load", "load.sql", inlets=[LANDING], outlets=["shop.a"])
        sql("late", "INSERT INTO {target:shop.b} SELECT '{{ ds }}' FROM {read:shop.a}", inlets=[A], outlets=[B])
    assert tables_of(group) == {"load": ((), ("shop.a",)), "late": (("shop.a",), ("shop.b",))}


@pytest.mark.parametrize(
    ("statement", "words", "message"),
    [
        ("load.sql", {}, r"task shop\.load: expected the tables of its SQL, found the file load\.sql, which Airflow r"),
        ("load.sql", {"inlets": [LANDING]}, r"found the file load\.sql, .*; give it inlets=\[\.\.\.\] and outlets="),
        ("INSERT INTO {target:shop.a} SELECT '{{ ds }}'", {}, "found Jinja in it, .* or the statement itself without"),
        ("INSERT INTO lake.shop.a SELECT 1", {}, r"task shop\.load: SQL job: expected \{target:ns\.table\}"),
        ("INSERT INTO {target:} SELECT 1", {}, r"SQL job: expected a name in \{target:\}"),
        ("INSERT INTO {target:shop.a} TABLE {source:clicks}", {}, "external source 'clicks', which is not among its i"),
        ("INSERT INTO {target:shop.a} SELECT 1", {"outlets": [B]}, r"expected its SQL to write each .* no \{target:sh"),
    ],
)  # fmt: skip
def test_sql_that_does_not_say_enough(dag: DAG, statement: str, words: dict[str, Any], message: str) -> None:
    def declare() -> None:
        with dag, BarrierGroup("shop"):
            sql("load", statement, **words)

    with pytest.raises(BarrierError, match=message):
        declare()


# --- tasks that take no part ----------------------------------------------------------------------


def refused(dag: DAG, declare: Callable[[BarrierGroup], object], message: str) -> None:
    def whole() -> None:
        with dag, BarrierGroup("shop") as group:
            group.job(epoch("load"), outlets=["shop.a"])
            declare(group)

    with pytest.raises(ConfigurationError, match=message):
        whole()


@pytest.mark.parametrize(
    ("declare", "found"),
    [
        (lambda group: epoch("silent"), "SparkEpochOperator"),
        (lambda group: submit("silent", outlets=[BUCKET]), "SparkSubmitOperator"),
        (lambda group: SparkSqlOperator(task_id="silent", sql="SELECT 1") >> group.commit, "SparkSqlOperator"),
        (lambda group: SparkEpochOperator.partial(task_id="silent").expand(application=["/a"]), "SparkEpochOperator"),
    ],
)
def test_spark_work_without_tables_is_refused(dag: DAG, declare: Any, found: str) -> None:
    """Also in the order: what it writes is not in the barrier."""
    refused(
        dag, declare, rf"task shop\.silent: expected the tables that it reads and writes, found {found} without any"
    )


@pytest.mark.parametrize(
    "declare",
    [
        lambda group: EmptyOperator(task_id="alone"),
        lambda group: EmptyOperator(task_id="alone", inlets=[table_asset("shop", "shop.a")], outlets=[BUCKET]),
        lambda group: EmptyOperator(task_id="alone") >> EmptyOperator(task_id="too"),
        lambda group: EmptyOperator(task_id="alone", task_group=TaskGroup("inner")),
    ],
)
def test_a_task_that_takes_no_part_is_refused(dag: DAG, declare: Any) -> None:
    refused(dag, declare, r"alone: expected a job of the barrier, or .*, found EmptyOperator that takes no part; give")


def test_a_task_in_the_order_takes_part(dag: DAG) -> None:
    """A check before the commit, or what prepares a job, stands in many groups, and needs no table."""
    with dag, BarrierGroup("shop") as group:
        load = epoch("load", outlets=["shop.a"])
        inlet = [table_asset("shop", "shop.a")]
        load >> EmptyOperator(task_id="first", inlets=inlet) >> EmptyOperator(task_id="second") >> group.commit
        EmptyOperator(task_id="before") >> load
    assert list(tables_of(group)) == ["load"]


def test_a_table_of_a_task_that_knows_no_spark_is_refused(dag: DAG) -> None:
    for words in ({"outlets": ["shop.b"]}, {"inlets": ["shop.a"]}, {"outlets": [table_asset("shop", "shop.b")]}):
        with DAG("other", schedule=None) as other:
            refused(
                other,
                lambda group, words=words: EmptyOperator(task_id="plain", **words) >> group.commit,
                r"task shop\.plain: expected SparkEpochOperator, or an operator .*, found EmptyOperator",
            )


def test_a_mapped_task_is_no_job(dag: DAG) -> None:
    mapped = SparkSubmitOperator.partial
    refused(dag, lambda _: mapped(task_id="m", outlets=[B]).expand(application=["/a"]), "a table has one writer")


# --- decorated functions --------------------------------------------------------------------------


def test_functions_are_jobs(dag: DAG) -> None:
    @task.barrier(inlets=[LANDING], outlets=[A], retries=2)
    def load(epoch: Any) -> None: ...

    @task.barrier(inlets=["shop.a"], outlets=["shop.b"])
    def amount(epoch: Any, factor: int, *, more: int = 1) -> None: ...

    @task.barrier_sql
    def price(table: str, days: int) -> str:
        return f"INSERT INTO {{target:shop.c}} SELECT {days} FROM {{read:{table}}}"

    with dag, BarrierGroup("shop") as group:
        load()
        amount(3)
        price("shop.b", days=7)
    assert tables_of(group) == {
        "load": ((), ("shop.a",)),
        "amount": (("shop.a",), ("shop.b",)),
        "price": (("shop.b",), ("shop.c",)),
    }
    tasks = {one.task_id: one for one in dag.tasks}
    assert tasks["shop.load"].retries == 2
    assert tasks["shop.price"].sql == "INSERT INTO {target:shop.c} SELECT 7 FROM {read:shop.b}"
    again = stored(dag)
    assert [again.get_task(name).operator_name for name in ("shop.load", "shop.price")] == [
        "@task.barrier",
        "@task.barrier_sql",
    ]


def test_a_function_may_be_handed_over(dag: DAG) -> None:
    @task.barrier
    def load(epoch: Any) -> None: ...

    with dag, BarrierGroup("shop") as group:
        group.job(load(), outlets=["shop.a"], name="other", batch_barriers=3)
    assert tables_of(group) == {"other": ((), ("shop.a",))}


def no_epoch() -> None: ...


def of_a_day(epoch: Any, ds: str) -> None: ...


def statement(ds: str) -> str:
    return ds


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: task.barrier(no_epoch)(), r"@task\.barrier no_epoch: expected a function of the epoch, and .*, found"),
        (lambda: task.barrier(of_a_day)(), r"found of_a_day\(epoch: .*missing a required argument: 'ds'; what differs"),
        (lambda: task.barrier(sql="x")(of_a_day)(), r"@task\.barrier: expected no argument sql, found 'x': its functi"),
        (lambda: task.barrier(via="submit")(of_a_day)(), "expected no argument via, found 'submit': .* on Spark Conne"),
        (lambda: task.barrier_sql(statement)(), r"@task\.barrier_sql statement: expected a function of what its call"),
        (lambda: task.barrier_sql(nothing)(), r"@task\.barrier_sql nothing: expected a function that returns .* None"),
        (lambda: task.barrier_sql(sql="x")(nothing)(), r"@task\.barrier_sql: expected no argument sql, found 'x'"),
    ],
)  # fmt: skip
def test_functions_that_are_no_jobs(dag: DAG, call: Callable[[], object], message: str) -> None:
    with dag, pytest.raises(ConfigurationError, match=message):
        call()


def test_a_function_without_tables_is_refused(dag: DAG) -> None:
    @task.barrier
    def silent(epoch: Any) -> None: ...

    refused(dag, lambda _: silent(), r"task shop\.silent: expected the tables .*, found @task\.barrier without any")


def test_a_decorated_function_alone_says_where_it_belongs(dag: DAG) -> None:
    @task.barrier(outlets=["shop.a"])
    def load(epoch: Any) -> None: ...

    with dag:
        alone = load().operator
    with pytest.raises(ConfigurationError, match="expected to be part of a BarrierGroup, found it alone"):
        type(alone).execute.__wrapped__(alone, {})


def test_a_functions_work_goes_to_spark_by_value(dag: DAG) -> None:
    """Spark's workers have no DAG file to import."""
    from pyspark import cloudpickle

    seen: list[Any] = []

    @task.barrier(outlets=["shop.a"])
    def load(epoch: Any, factor: int) -> None:
        seen.append((epoch, factor))

    with dag, BarrierGroup("shop"):
        job = load(2).operator
    job._epoch_job()("the epoch")
    assert seen == [("the epoch", 2)]
    assert __name__ in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
