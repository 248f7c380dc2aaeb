"""What something between us and a REST catalog, or the catalog itself, does to a request: nothing is taken for done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import (
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
)
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables import _rest_server, _retries
from airflow_barrier.tables._metadata import Changes
from airflow_barrier.tables.iceberg import IcebergTables
from tests.catalogs.between import Answer, Between, between, refusing
from tests.catalogs.engines import Pyiceberg
from tests.catalogs.lake import Lake, connect, stamp_of
from tests.support.rest_catalog import RestServer
from tests.support.shop import COLUMNS, Shop, make_shop
from tests.support.waiting import patience
from tests.tables.lake import path_of

SECRET = "planted-secret"
ROWS = [{"amount": 100, "price": 1000}]


@pytest.fixture
def proxy(rest_server: RestServer) -> Iterator[Between]:
    with between(rest_server) as proxy:
        yield proxy


@pytest.fixture
def lake(proxy: Between, tmp_path: Path) -> Iterator[Lake]:
    with connect(proxy, str(tmp_path)) as tables:
        yield Lake(Pyiceberg(tables))


@pytest.fixture
def shop(proxy: Between, tmp_path: Path) -> Iterator[Shop]:
    shop = make_shop(Settings(f"sqlite:///{tmp_path}/meta.db", proxy.uri, str(tmp_path / "warehouse")))
    yield shop
    proxy.misbehave = lambda *_: None
    for table in COLUMNS:
        shop.deployment.tables.catalog.drop_table(table)
    shop.deployment.close()


def test_a_change_that_is_redirected_is_not_taken_for_done(lake: Lake, proxy: Between, rest_server: RestServer) -> None:
    """By a GET of the same address, which is answered well, as `requests` makes of a POST."""
    (table,) = lake.create("a")
    moved = rest_server.uri.replace("http://", f"http://user:{SECRET}@")

    def redirect(method: str, path: str, _: Callable[[], Answer]) -> Answer | None:
        return (302, {"Location": f"{moved}{path}?token={SECRET}"}, b"") if method == "POST" else None

    proxy.misbehave = redirect
    with pytest.raises(ConfigurationError, match=f"found 302, which sends it to {rest_server.uri}, ") as refused:
        lake.tables._committer.commit({table: lambda *_: Changes(properties={"seen": "yes"})})
    assert "Put the new address into the connection" in str(refused.value)
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigurationError, match="found 302"):
        lake.create("b")  # by pyiceberg's own methods
    proxy.misbehave = lambda *_: None
    assert lake.seen(table) is None


def test_a_page_in_place_of_an_answer_is_no_answer(lake: Lake, proxy: Between) -> None:
    """Such as that of a proxy that wants a person to log in."""
    (table,) = lake.create("a")
    proxy.misbehave = lambda *_: (200, {"Content-Type": "text/html"}, b"<html>please log in</html>")
    with pytest.raises(CatalogUnavailableError, match="found an answer that is none of a REST"):
        lake.tables.mains([table])
    with connect(proxy, "/nowhere") as fresh, pytest.raises(CatalogUnavailableError, match="none of a REST catalog's"):
        fresh.mains([table])


@pytest.mark.parametrize(
    "properties",
    [{"token": f"{SECRET}\n"}, {"header.x-key": f" {SECRET}\r\n x"}, {"token": f"{SECRET}…"}],
    ids=["token", "header", "letters"],
)
def test_what_cannot_be_sent_is_not_shown(tmp_path: Path, properties: dict[str, str]) -> None:
    with between() as server, IcebergTables.connect(server.uri, str(tmp_path), properties=properties) as tables:
        with pytest.raises(ConfigurationError, match="a token or a header with a line break") as refused:
            tables.mains(["shop.t"])
        assert server.asked == []
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.filterwarnings("ignore:Iceberg REST client is missing the OAuth2 server URI:DeprecationWarning")
def test_an_answer_with_a_token_in_it_is_not_shown(tmp_path: Path) -> None:
    with between() as server:
        server.misbehave = lambda *_: (200, {}, json.dumps({"access_token": SECRET}).encode())
        properties = {"credential": f"me:{SECRET}", "oauth2-server-uri": f"{server.uri}/token"}
        with (
            IcebergTables.connect(server.uri, str(tmp_path), properties=properties) as tables,
            pytest.raises(CatalogUnavailableError) as refused,
        ):
            tables.mains(["shop.t"])
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.kills("refused-is-told", case="all-401")
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("only", ["", "POST"], ids=["all", "commits"])
def test_refused_credentials_block_no_barrier(shop: Shop, proxy: Between, status: int, only: str) -> None:
    """Nothing is wrong with a table: once they are mended, the same commit goes on."""
    barrier = decided(shop)
    proxy.misbehave = refusing(status, only=only)
    for _ in range(2):
        with pytest.raises(CatalogRefusedError, match=rf"found {status} Refused not for you.*then try again") as told:
            commit_barrier(shop.deployment, "shopping", barrier, actor="test")
        assert told.value.retryable
        assert shop.deployment.meta.barriers.get("shopping", barrier).state is BarrierState.COMMITTING
    proxy.misbehave = lambda *_: None
    assert commit_barrier(shop.deployment, "shopping", barrier, actor="test").barrier.state is BarrierState.COMMIT
    assert shop.main_totals() == dict(zip(COLUMNS, (1000, 100, 1000), strict=True))


def test_a_commit_that_the_catalog_refuses_says_why(shop: Shop, proxy: Between) -> None:
    """Although nothing is in the way in any of the tables."""
    barrier = decided(shop)
    proxy.misbehave = refusing(422, only="POST")
    with pytest.raises(ConfigurationError, match="found that it refuses: 422 Refused not for you"):
        commit_barrier(shop.deployment, "shopping", barrier, actor="test")
    assert shop.deployment.meta.barriers.get("shopping", barrier).state is BarrierState.COMMITTING


def test_a_catalog_that_takes_no_transactions_is_told_from_one_that_does_a_part(proxy: Between, tmp_path: Path) -> None:
    def without(_: str, path: str, __: Callable[[], Answer]) -> Answer | None:
        return refusing(404)("", path, __) if path.endswith("/transactions/commit") else None

    proxy.misbehave = without
    with connect(proxy, str(tmp_path), atomic=True) as tables:
        with pytest.raises(ConfigurationError, match="found that it refuses: 404 Refused not for you") as refused:
            tables.prove()
        assert 'Set catalog_publish to "roll-forward"' in str(refused.value)
        proxy.misbehave = lambda *asked: refusing(403)(*asked) if asked[1].endswith("/transactions/commit") else None
        with pytest.raises(CatalogRefusedError, match="found 403 Refused not for you"):
            tables.prove()


@pytest.mark.kills("files-of-a-repeated-commit")
def test_a_commit_that_comes_twice_keeps_what_it_has_written(
    lake: Lake, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is refused, since the first has come through."""
    (table,) = lake.create("a")
    codes: list[int] = []

    def twice(method: str, path: str, forward: Callable[[], Answer]) -> Answer | None:
        if method != "POST":
            return None
        codes.append(forward()[0])
        answer = forward()
        codes.append(answer[0])
        return answer

    proxy.misbehave = twice
    lake.tables.prepare({table: None}, stamp_of(1))
    assert codes == [200, 409]
    (root,) = lake.tables.load(table).metadata.snapshots
    assert path_of(root.manifest_list).exists()
    # one that has not come through takes it away
    monkeypatch.setattr(_retries, "RACES", 2)
    proxy.misbehave = lambda *asked: refusing(409)(*asked) if asked[0] == "POST" else None
    folder = path_of(root.manifest_list).parent
    before = set(folder.iterdir())
    with pytest.raises(CatalogUnavailableError, match="found them changed by others"):
        lake.tables.prepare({table: None}, stamp_of(2))
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("signed", [False, True])
def test_a_catalog_that_is_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    """Also where pyiceberg has its own way of sending, which signs the requests."""
    monkeypatch.setattr(_rest_server, "_TIMEOUT", (5.0, 0.3))
    enough = threading.Event()

    def silent(_: str, path: str, __: Callable[[], Answer]) -> Answer:
        if not path.startswith("/v1/config"):
            enough.wait(patience())
        return 200, {}, b'{"defaults": {}, "overrides": {}}'

    signing: dict[str, Any] = {
        "rest.sigv4-enabled": "true",
        "rest.sigv4.max-retries": "0",
        "rest.signing-region": "eu-central-1",
        "client.region": "eu-central-1",
        "client.access-key-id": "key",
        "client.secret-access-key": SECRET,
    }
    with between() as server:
        server.misbehave = silent
        properties = signing if signed else {}
        try:
            with (
                IcebergTables.connect(server.uri, str(tmp_path), properties=properties) as tables,
                pytest.raises(CatalogUnavailableError, match="Read timed out"),
            ):
                tables.mains(["shop.t"])
        finally:
            enough.set()


def decided(shop: Shop) -> int:
    """A barrier that is COMMITTING, of which nothing is published."""
    barrier = shop.process_all(shop.open(1), ROWS)
    expected: dict[str, int | None] = dict.fromkeys(COLUMNS)
    shop.deployment.meta.publishing.begin("shopping", barrier.barrier_id, expected, "test")
    return barrier.barrier_id
