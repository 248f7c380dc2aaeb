"""Who listens to changes: one look serves all, and ends with the last; rights, signs of life, and outages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_barrier.api import events
from airflow_barrier.api.server import Served, create_server
from airflow_barrier.api.tokens import Tokens, add_token
from airflow_barrier.coordinator.deployment import nobody_gets_in
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking
from tests.api.live import Live, changes, statements
from tests.api.scene import declared, opened
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import wait_for

TICK = 0.1


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "TICK", TICK)


@pytest.fixture
def shop(meta: MetaService) -> World:
    return declared(meta)


@pytest.fixture
def live(shop: World, asking: Asking) -> Iterator[Live]:
    with Live(asking.app) as live:
        yield live


def test_one_look_serves_all_and_ends_with_the_last(shop: World, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    change_counts = type(shop.meta.topologies).change_counts

    def counted(self: object) -> dict[str, int]:
        looks.append(time.monotonic())
        return change_counts(self)

    monkeypatch.setattr(type(shop.meta.topologies), "change_counts", counted)
    with ExitStack() as clients:
        streams = [changes(clients.enter_context(live.stream())) for _ in range(6)]
        (told,) = {next(stream) for stream in streams}
        looks.clear()
        with statements() as executed:
            wait_for("some looks", lambda: len(looks) >= 6)
        assert min(after - before for before, after in pairwise(looks)) >= 0.8 * TICK  # the pace is not quite even
        # each looks at the schema's version, too; one may have begun before they were counted
        assert len([statement for statement in executed if "changes" in statement]) <= len(looks) + 1
        opened(shop, 1)
        assert {next(stream) for stream in streams} == {("shop", shop.meta.topologies.change_count("shop"))}
        assert live.tasks().count("Watch._look_on") == 1
    wait_for("no task to be left", lambda: live.tasks() == [])
    with live.stream() as lines:
        assert next(changes(lines)) > told


def test_of_two_who_listen_one_goes_away(shop: World, live: Live) -> None:
    with live.stream() as stays:
        told = changes(stays)
        next(told)
        with live.stream() as goes:
            next(changes(goes))
        wait_for("one to listen", lambda: live.tasks().count("RequestResponseCycle.run_asgi") == 1)
        opened(shop, 1)
        assert next(told) == ("shop", shop.meta.topologies.change_count("shop"))


def test_signs_of_life(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.1)
    with live.stream() as lines:
        next(changes(lines))
        found = [line for line in (next(lines) for _ in range(6)) if line]
    assert found == [":"] * len(found)
    assert len(found) >= 2


def test_rights_are_looked_at_again(shop: World, asking: Asking, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RIGHTS", 0.2)
    other = World(shop.meta, "other", ())
    other.declare([Job("other_load", "other", outlets=("other.table",))], "other")
    reader = asking.may_read("reader", "shop")
    with live.stream(user=reader) as lines:
        told = changes(lines)
        assert next(told)[0] == "shop"
        asking.may_read("reader", "shop", "other")
        assert next(told)[0] == "other", "what may be read now"
        asking.may_read("reader")
        assert list(told) == [], "nothing is left to listen to"
    assert live.get("/prod/events", reader) == 404


def test_a_token_that_is_taken_out_listens_no_more(
    shop: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RIGHTS", 0.2)
    file = tmp_path / "tokens"
    token = add_token(file, "grafana", [])
    app = create_server(Served("prod", shop.meta, nobody_gets_in), Tokens(file))
    with Live(app) as live, live.stream(Authorization=f"Bearer {token}") as lines:
        told = changes(lines)
        next(told)
        file.write_text("")
        assert list(told) == []


def test_it_lasts_for_an_hour(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.1)
    monkeypatch.setattr(events, "LONGEST", 0.5)
    with live.stream() as lines:
        assert list(changes(lines)) != []
    wait_for("no task to be left", lambda: live.tasks() == [])


def test_a_metaservice_that_is_gone_for_a_while(own_postgresql: PostgreSQL) -> None:
    with own_postgresql.database() as url:
        meta = MetaService(url)
        shop = declared(meta)
        with Live(Asking({"prod": meta}).app) as live, live.stream() as lines:
            told = changes(lines)
            next(told)
            own_postgresql.stop()
            for path in ("", "/prod/topologies", "/prod/topologies/shop/grid", "/prod/events"):
                assert live.get(path) == 503, path
            own_postgresql.start()
            number = opened(shop, 1)
            assert next(told) == ("shop", meta.topologies.change_count("shop"))
            assert live.get(f"/prod/topologies/shop/barriers/{number}") == 200
        meta.close()
