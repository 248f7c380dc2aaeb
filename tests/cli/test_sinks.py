"""What the command line says of sinks, and what a person decides about them by it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from airflow_barrier.protocol.deliveries import Counts, Position, Remedy, SinkDeclaration, SinkState
from tests.cli.deployed import Deployed, as_json, deploy, run
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import AMOUNT

PRICES = SinkDeclaration("prices", "shopping_dag", "postgresql", {AMOUNT: "public.prices"}, {"conn_id": "reporting"})


@pytest.fixture
def delivered(tmp_path: Path, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """Of barriers 1 and 2 the sink has received the first, and failed at the second."""
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        found = deploy(settings)
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        found.meta.deliveries.register("shopping", PRICES, "test")
        counts = Counts(inserted=1200)
        found.meta.deliveries.delivered(
            "shopping", "prices", Position(1, 0), counts=counts, seconds=1.5, actor="deliver#1"
        )
        found.meta.deliveries.failed("shopping", "prices", "expected a table, found none; create it", "deliver#2")
        yield found
        found.shop.deployment.close()


def test_sinks_are_shown_with_what_they_lack(delivered: Deployed) -> None:
    (told,) = run("sink", "list", "shopping", "--json").json["sinks"]
    assert told["lacks"] == 1
    assert datetime.fromisoformat(told["since"]) == delivered.meta.barriers.get("shopping", 2).commit_at
    assert (told["barrier_id"], told["revision"], told["hold"], told["remedy"]) == (1, 0, 7 * 24 * 3600, None)
    assert told["error"] == "expected a table, found none; create it"
    assert run("status", "shopping", "--json").json[0]["sinks"][0]["lacks"] == 1
    for shown in (run("sink", "list", "shopping").out, run("status", "shopping").out):
        assert "barrier b1.r0" in shown
        assert "ACTIVE, failed once" in shown
        assert "sink prices of shopping failed: expected a table, found none; create it" in shown


def test_deliveries_are_shown(delivered: Deployed) -> None:
    assert "1,200" in run("sink", "show", "shopping", "prices").out
    assert run("sink", "show", "shopping", "prices", "--json").json == as_json(
        delivered.meta.deliveries.history("shopping", "prices")
    )
    said = run("sink", "show", "shopping", "other")
    assert said.code == 1
    assert "expected one of topology shopping, found only: prices" in said.err


def test_a_person_decides(delivered: Deployed) -> None:
    def now() -> tuple[SinkState, int, Remedy | None]:
        sink = delivered.meta.deliveries.get("shopping", "prices")
        return sink.state, sink.hold_seconds, sink.remedy

    week = 7 * 24 * 3600
    assert "PAUSED" in run("sink", "pause", "shopping", "prices", "--reason", "moves").out
    assert now() == (SinkState.PAUSED, week, None)
    run("sink", "resume", "shopping", "prices", "--reason", "migrated")
    run("sink", "hold", "shopping", "prices", "--days", "30")
    assert now() == (SinkState.ACTIVE, 30 * 24 * 3600, None)
    for verb, remedy in (("adopt", Remedy.ADOPT), ("redeliver", Remedy.REDELIVER)):
        (told,) = run("sink", verb, "shopping", "prices", "--reason", "restored", "--json").json["sinks"]
        assert told["remedy"] == remedy.value
        said = run("sink", "list", "shopping")
        assert f"{remedy.value} is done by its next delivery, a task of DAG shopping_dag" in said.out
        assert now()[2] is remedy
    assert run("sink", "release", "shopping", "prices", "--reason", "over").out.startswith("No sink is registered")
    reasons = [entry.detail.get("reason") for entry in delivered.meta.audit.newest("shopping") if entry.kind == "sink"]
    assert {"moves", "restored", "over"} <= set(reasons)
