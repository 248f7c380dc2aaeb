"""The connection breaks at each statement while real tables are prepared and published: they are, and once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.deployment import Deployment, with_password
from airflow_barrier.metaservice.database import Database
from airflow_barrier.protocol.errors import Retryable
from tests.metaservice.auditing import check_audit_in
from tests.postgresql.states import Kept, everything
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Cut, Proxy, Seen, through
from tests.support.reporting import report
from tests.support.shop import AMOUNT, COLUMNS, PRICE, SHOPPING, Shop, make_shop

ROWS = [{"amount": 100, "price": 1000}]
#: In the name of its branch.
_ATTEMPT = re.compile(r"_a\d+$")
KINDS = ("postgresql", "postgresql apart")


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[Proxy]:
    with Proxy(postgresql.port) as proxy:
        yield proxy


def _opened(shop: Shop) -> None:
    shop.process_all(first := shop.open(1), ROWS)
    shop.commit(first)
    shop.open(2)


def _precommit(shop: Shop) -> None:
    _opened(shop)
    shop.process_all(shop.deployment.meta.barriers.get("shopping", 2), ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_barrier_is_published_once(kind: str, tmp_path: Path, postgresql: PostgreSQL, proxy: Proxy) -> None:
    def commit(shop: Shop) -> object:
        return shop.commit(shop.deployment.meta.barriers.get("shopping", 2)).barrier.state

    with _rehearsal(kind, tmp_path, postgresql, proxy, _precommit, commit) as (shop, taken):
        count = _cut_everywhere(taken)
        assert shop.main_totals() == {SHOPPING: 2000, AMOUNT: 200, PRICE: 2000}
    report(f"{kind}: commit of real tables: the connection cut at {count} points")


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_is_prepared_once(kind: str, tmp_path: Path, postgresql: PostgreSQL, proxy: Proxy) -> None:
    def begin(shop: Shop) -> object:
        spec = shop.begin(shop.deployment.meta.barriers.get("shopping", 2), "load").spec
        return spec.inputs, spec.previous, spec.bases, spec.cuts

    with _rehearsal(kind, tmp_path, postgresql, proxy, _opened, begin) as (_, taken):
        count = _cut_everywhere(taken)
    report(f"{kind}: begin of a job: the connection cut at {count} points")


def _cut_everywhere(taken: Callable[[Cut | None], tuple[dict[str, Any], Seen]]) -> int:
    expected, undisturbed = taken(None)
    cuts = undisturbed.worth_cutting
    for cut in cuts:
        found, seen = taken(cut)
        where = f"{cut} of {undisturbed.statements}"
        assert seen.happened, where
        assert found == expected, where
    return len(cuts)


@contextmanager
def _rehearsal(
    kind: str,
    folder: Path,
    postgresql: PostgreSQL,
    proxy: Proxy,
    prepare: Callable[[Shop], None],
    step: Callable[[Shop], object],
) -> Iterator[tuple[Shop, Callable[[Cut | None], tuple[dict[str, Any], Seen]]]]:
    """A shop, and a function that takes the step from the same beginning each time: what then stands, the traffic."""
    with settings_on(kind, folder, postgresql) as settings:
        shop = make_shop(settings)
        prepare(shop)
        databases = [Kept(postgresql, url) for url in sorted({settings.metaservice_url, settings.catalog_uri})]
        warehouse, kept = Path(settings.warehouse), folder / "kept"
        shutil.copytree(warehouse, kept)
        urls = {name: through(proxy, getattr(settings, name)) for name in ("metaservice_url", "catalog_uri")}
        by_proxy = replace(settings, **urls)
        tested = Shop(Deployment.connect(by_proxy))
        database = Database(with_password(settings.metaservice_url, settings.metaservice_password))

        def taken(cut: Cut | None) -> tuple[dict[str, Any], Seen]:
            for each in databases:
                each.put_back()
            shutil.rmtree(warehouse)
            shutil.copytree(kept, warehouse)
            # connect again, and ask once what is asked once
            tested.deployment.meta.topologies.names(), tested.deployment.tables.mains(list(COLUMNS))
            assert tested.deployment.shares_database is (kind == "postgresql")
            with proxy.watching(cut) as seen:
                answer = _until_done(step, tested)
            database.read(check_audit_in)
            rows, answered = database.read(lambda connection: everything(connection, answer))
            return {"answer": answered, "rows": rows, **_tables(shop)}, seen

        try:
            yield shop, taken
        finally:
            tested.deployment.close()
            shop.deployment.close()
            database.close()
            for each in databases:
                each.close()


def _until_done(step: Callable[[Shop], object], shop: Shop) -> object:
    """As Airflow calls it: again after an error for which that is worth while."""
    try:
        return step(shop)
    except Retryable:
        return step(shop)


def _tables(shop: Shop) -> dict[str, Any]:
    """What the tables hold, read from their files; whatever their metadata speaks of has to be there."""
    found: dict[str, Any] = {"refs": {}, "moves of main": {}}
    for table in COLUMNS:
        metadata = shop.deployment.tables.load(table).metadata
        found["refs"][table] = {_ATTEMPT.sub("_a", name): ref.snapshot_id for name, ref in metadata.refs.items()}
        found["moves of main"][table] = [entry.snapshot_id for entry in metadata.snapshot_log]
        named = [entry.metadata_file for entry in metadata.metadata_log]
        named += [snapshot.manifest_list for snapshot in metadata.snapshots]
        assert [name for name in named if not Path(name.removeprefix("file://")).exists()] == []
    return found
