"""Tables at a barrier as a REST catalog of Iceberg's: what engines read, and what who may not see them is told."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fastapi.routing import APIRoute
from httpx import Response
from pyiceberg.catalog.rest import RestCatalog
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql import SparkSession

from airflow_barrier.api.iceberg import ENDPOINTS, router
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.protocol.topology import Job
from airflow_barrier.reading.duckdb_views import load_extension
from airflow_barrier.spark.connect import connect_session, stop_session
from tests.api.asking import Asking
from tests.api.scene import JOBS, SECRET, declared, everything
from tests.support.cases import cases
from tests.support.seeds import AFTER, BEFORE, SECOND, TORN, average_in, average_of
from tests.support.shop import AMOUNT, Shop
from tests.support.spark import SparkServer


class InPyiceberg:
    def __init__(self, uri: str, warehouse: str) -> None:
        self.catalog = RestCatalog("pinned", uri=uri, warehouse=warehouse)

    def average(self) -> float:
        return average_of(self.catalog.load_table)

    def amount(self) -> int:
        return sum(self.catalog.load_table(AMOUNT).scan().to_arrow().column("amount").to_pylist())


class InDuckDB:
    def __init__(self, uri: str, warehouse: str) -> None:
        self.connection = duckdb.connect()
        for extension in ("httpfs", "avro", "iceberg"):
            load_extension(self.connection, extension)
        self.connection.sql(
            f"ATTACH '{warehouse}' AS pinned (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')"
        )

    def average(self) -> Any:
        return self._one(average_in("pinned"))

    def amount(self) -> int:
        return int(self._one(f"SELECT sum(amount) FROM pinned.{AMOUNT}"))

    def _one(self, query: str) -> Any:
        (found,) = self.connection.sql(query).fetchone() or ()
        return found


@pytest.mark.parametrize("engine", [InPyiceberg, InDuckDB])
def test_plain_sql_reads_whole_barriers(shop: Shop, catalog_uri: str, engine: Any) -> None:
    attached = engine(catalog_uri, "shopping@RepeatableRead")
    assert attached.average() == BEFORE
    second = shop.open(2)
    shop.process(second, "load", SECOND)
    shop.process(second, "price", SECOND)
    assert engine(catalog_uri, "shopping@ReadUncommitted").average() == TORN
    assert engine(catalog_uri, "shopping@ReadCommitted").average() == BEFORE
    shop.process(second, "amount", SECOND)
    staged = engine(catalog_uri, "shopping@ReadCommitted")
    assert staged.average() == AFTER
    shop.commit(second)
    assert attached.average() == BEFORE, "a catalog stays where it is"
    assert staged.average() == AFTER
    assert engine(catalog_uri, "shopping").average() == AFTER
    assert engine(catalog_uri, "shopping@b1").average() == BEFORE


def test_each_answer_is_of_one_barrier_while_others_come(shop: Shop, catalog_uri: str) -> None:
    """An item costs as much at each barrier and in each revision, and in no mixture of two. What connected before all
    of that stays where it is.
    """

    def rows(amount: int) -> list[dict[str, int]]:
        return [{"amount": amount, "price": BEFORE * amount}]

    def come() -> None:
        for day in range(2, 6):
            shop.process_all(barrier := shop.open(day), rows(10**day))
            shop.commit(barrier)
            _revise(shop, barrier.barrier_id, rows(3 * 10**day))

    answers = []
    engines = (InPyiceberg, InDuckDB)
    held = [engine(catalog_uri, "shopping") for engine in engines]
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(come)
        for number in count():
            engine = engines[number % len(engines)]
            answers += [
                engine(catalog_uri, f"shopping@{level}").average()
                for level in ("ReadCommitted", "RepeatableRead", "b1")
            ]
            assert [each.amount() for each in held] == [100, 100]
            if coming.done():
                break
        coming.result()
    assert len(answers) > 3
    assert set(answers) == {BEFORE}
    assert InPyiceberg(catalog_uri, "shopping").amount() == 100 + 3 * sum(10**day for day in range(2, 6))


def _revise(shop: Shop, barrier_id: int, rows: list[dict[str, int]]) -> None:
    """A barrier is computed again, of other input."""
    wanted = Wanted("shopping", barrier_id, changed=("load",))
    revision = begin_revision(shop.deployment, plan_revision(shop.deployment, wanted), reason="a test", actor="test")
    for barrier in shop.deployment.meta.revisions.barriers("shopping", revision.revision):
        for job in ("load", "amount", "price"):
            shop.process(barrier, job, rows, f"r{revision.revision}")
    swapped = publish_revision(shop.deployment, "shopping", revision.revision, actor="test")
    assert isinstance(swapped, Swapped), swapped


def test_plain_sql_in_spark_reads_whole_barriers(
    shop: Shop, catalog_uri: str, spark_server: SparkServer, tmp_path: Path
) -> None:
    """A session is at one barrier; a new one asks anew."""
    with _spark(spark_server, catalog_uri, "shopping@RepeatableRead") as attached:
        assert _average(attached) == BEFORE
        shop.process_all(second := shop.open(2), SECOND)
        shop.commit(second)
        assert _average(attached) == BEFORE
        attached.sql("REFRESH TABLE pinned.shop.user_item_price")
        assert _average(attached) == BEFORE
        files = sorted(tmp_path.rglob("*"))
        for statement in (
            "INSERT INTO pinned.shop.user_item_price VALUES (1)",
            "CREATE TABLE pinned.shop.other (id BIGINT)",
            "DROP TABLE pinned.shop.user_item_price",
            "ALTER TABLE pinned.shop.user_item_price ADD COLUMN other BIGINT",
        ):
            with pytest.raises(
                SparkConnectException,
                match=r"Server does not support endpoint|tables-of-a-topology-are-written-by-their-jobs",
            ):
                attached.sql(statement)
        assert sorted(tmp_path.rglob("*")) == files
    with _spark(spark_server, catalog_uri, "shopping") as anew:
        assert _average(anew) == AFTER


@contextmanager
def _spark(server: SparkServer, uri: str, warehouse: str) -> Iterator[SparkSession]:
    session = connect_session(server.url)
    session.conf.set("spark.sql.catalog.pinned", "org.apache.iceberg.spark.SparkCatalog")
    for name, value in (("type", "rest"), ("uri", uri), ("warehouse", warehouse)):
        session.conf.set(f"spark.sql.catalog.pinned.{name}", value)
    yield session
    stop_session(session)


def _average(session: SparkSession) -> float:
    (row,) = session.sql(average_in("pinned")).collect()
    return float(row[0])


# --- who asks, and what for -------------------------------------------------------------------------


@pytest.fixture
def asking(shop: Shop) -> Asking:
    """Topology `shop` of two DAGs, with a barrier; the callers of `prod`."""
    everything(declared(shop.deployment.meta))
    return Asking({"prod": shop.deployment.meta}, lambda _: shop.deployment)


def _asked(asking: Asking, path: str, user: str | None = "admin", method: str = "GET", **query: str) -> Response:
    return asking.request(method, f"/iceberg/prod/v1/{path}", user, params=query)


def _prefix(asking: Asking, warehouse: str, user: str = "admin") -> str:
    answer = _asked(asking, "config", user, warehouse=warehouse)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return str(told["overrides"]["prefix"])


def _error(answer: Response) -> tuple[int, str, str]:
    told = answer.json()["error"]
    assert told["code"] == answer.status_code
    return told["code"], told["type"], told["message"]


def test_what_one_may_not_see_does_not_exist(asking: Asking) -> None:
    reader = asking.may_read("reader", "shop")
    prefix = _prefix(asking, "shop", reader)
    listed = _asked(asking, f"{prefix}/namespaces", reader)
    assert listed.json() == {"namespaces": [["shop"]]}
    assert SECRET not in listed.text
    tables = _asked(asking, f"{prefix}/namespaces/shop/tables", reader).json()["identifiers"]
    assert [table["name"] for table in tables] == ["orders", "ratio", "rest"]
    assert _error(_asked(asking, f"{prefix}/namespaces/{SECRET}/tables", reader))[:2] == (
        404,
        "NoSuchNamespaceException",
    )
    theirs, none = (
        _error(_asked(asking, f"{prefix}/namespaces/{SECRET}/tables/{table}", reader)) for table in ("prices", "other")
    )
    assert theirs[:2] == (404, "NoSuchTableException")
    assert theirs[2] == none[2].replace("other", "prices")
    whole = _prefix(asking, "shop")
    assert _asked(asking, f"{whole}/namespaces").json() == {"namespaces": [["shop"], [SECRET]]}
    assert _error(_asked(asking, f"{whole}/namespaces", reader))[:2] == (410, "CatalogEndedException"), "another's pin"


@pytest.mark.parametrize("warehouse", ["shop", "shop@ReadUncommitted"])
def test_a_table_that_joined_later_is_told_as_that(shop: Shop, warehouse: str) -> None:
    world = declared(shop.deployment.meta)
    world.committed(1)
    asking = Asking({"prod": shop.deployment.meta}, lambda _: shop.deployment)
    prefix = _prefix(asking, warehouse)
    world.declare([*JOBS["shop"], Job("mean", "shop", outlets=("shop.mean",))], "shop")

    def told() -> str:
        status, kind, message = _error(_asked(asking, f"{prefix}/namespaces/shop/tables/mean"))
        assert (status, kind) == (404, "NoSuchTableException")
        assert message.endswith("; connect again, at its first barrier or later")
        return message

    assert "found that it joined after this barrier, and no barrier has been opened since" in told()
    if warehouse == "shop":
        world.open(2)
        assert "found that it joined with barrier 2 of shop" in told()


def test_at_read_uncommitted_what_left_is_read_up_to_the_next_barrier(shop: Shop) -> None:
    world = declared(shop.deployment.meta)
    world.committed(1)
    world.declare(JOBS["shop"][:1], "shop")
    asking = Asking({"prod": shop.deployment.meta}, lambda _: shop.deployment)

    def listed(warehouse: str) -> list[str]:
        found = _asked(asking, f"{_prefix(asking, warehouse)}/namespaces/shop/tables").json()["identifiers"]
        return [table["name"] for table in found]

    for warehouse in ("shop@ReadUncommitted", "shop@ReadCommitted"):
        assert listed(warehouse) == ["orders", "ratio", "rest"]
    world.open(2)
    assert listed("shop@ReadUncommitted") == ["orders"]


def test_every_route_asks_who_it_is(asking: Asking) -> None:
    values = {"deployment": "prod", "prefix": _prefix(asking, "shop"), "namespace": "shop", "table": "orders"}
    asked = set()
    for route in router.routes:
        assert isinstance(route, APIRoute)
        path = route.path.replace("{rest:path}", "other").format(**values)
        for method in route.methods:
            assert asking.request(method, path, None).status_code == 401, path
            told, other = (
                asking.request(method, at, "nobody", params={"warehouse": name})
                for at, name in ((path, "shop"), (path.replace("prod", "dev"), "nothing"))
            )
            assert (told.status_code, told.text) == (other.status_code, other.text), path
            assert told.status_code in (204, 400, 403, 404)
            asked.add(f"{method} {route.path.removeprefix('/iceberg/{deployment}')}")
    assert asked > {*ENDPOINTS}


def test_nothing_is_written(asking: Asking) -> None:
    prefix = _prefix(asking, "shop")
    with cases() as case:
        for method, path in (
            ("POST", f"{prefix}/namespaces"),
            ("DELETE", f"{prefix}/namespaces/shop"),
            ("POST", f"{prefix}/namespaces/shop/tables"),
            ("POST", f"{prefix}/namespaces/shop/tables/orders"),
            ("DELETE", f"{prefix}/namespaces/shop/tables/orders"),
            ("POST", f"{prefix}/namespaces/shop/register"),
            ("POST", f"{prefix}/tables/rename"),
            ("POST", f"{prefix}/transactions/commit"),
            ("POST", "oauth/tokens"),
        ):
            with case((method, path)):
                status, kind, message = _error(_asked(asking, path, method=method))
                assert (status, kind) == (403, "ForbiddenException")
                assert message == "expected to be asked only: tables of a topology are written by their jobs"


def test_what_cannot_be_read_is_told_in_a_sentence(asking: Asking) -> None:
    prefix = _prefix(asking, "shop")
    with cases() as case:
        for path, warehouse, status, said in (
            ("config", "shop@newest", 400, "expected TOPOLOGY, or TOPOLOGY@ and one of"),
            ("config", "", 400, "expected TOPOLOGY, or TOPOLOGY@ and one of"),
            ("config", "shop@b2", 400, "expected COMMIT to read it at repeatable_read, found OPEN"),
            ("config", "shop@b3", 400, "found one that was aborted; its epoch is part of the next one"),
            ("config", "shop@b99", 400, "99"),
            ("config", "other", 404, "expected something of jobs whose DAGs you may read, found none"),
            ("namespaces", "", 400, "connect by a warehouse"),
            ("shop.b1.r0.900s.1/namespaces", "", 400, "connect by a warehouse"),
            (f"{prefix}/namespaces/shop/tables/other", "", 404, "tables outside the topology are read by their own"),
            (f"{prefix}/views", "", 400, "connect by a warehouse"),
        ):
            with case((path, warehouse)):
                found = _error(_asked(asking, path, warehouse=warehouse))
                assert found[0] == status
                assert said in found[2]
                assert SECRET not in found[2]


def test_a_catalog_whose_lease_is_gone_says_to_connect_again(asking: Asking, shop: Shop) -> None:
    prefix = _prefix(asking, "shop")
    assert _asked(asking, f"{prefix}/namespaces/shop", method="HEAD").status_code == 204
    restarted = Asking({"prod": shop.deployment.meta}, lambda _: shop.deployment)
    assert _asked(restarted, f"{prefix}/namespaces/shop", method="HEAD").status_code == 204
    shop.deployment.meta.leases.end("shop", int(prefix.rpartition(".")[2]), "a person")
    status, kind, message = _error(_asked(asking, f"{prefix}/namespaces/shop/tables/orders"))
    assert (status, kind) == (410, "CatalogEndedException")
    assert "connect again" in message
