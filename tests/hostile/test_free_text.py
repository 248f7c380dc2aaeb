"""Reasons, actors and keys come from anywhere: they are kept, and shown as the text that they are."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from airflow_barrier.cli.commands.status import show_status
from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, give_up
from airflow_barrier.coordinator.status import status
from airflow_barrier.protocol.errors import FencedAttemptError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import Barrier, RunRef
from airflow_barrier.protocol.states import AttemptState, BarrierState
from tests.support.cases import cases
from tests.support.deployments import SHARED, settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import FRAGMENT, Shop, make_shop

TEXTS = (
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>&lt;&amp;",
    "[red]all is well[/red]",
    "[/nothing] [link=file:///etc/passwd]x[/link] [",
    "first\n2026-01-01 00:00:00 ERROR forged line\r\nthird",
    "\x1b[2J\x1b]0;title\x07",
    "nul \0 in the middle",
    "half of a pair \udfff",
    "\u202eesrever",
    "'; DROP TABLE barrier_barrier; --",
    "%s %(x)s {0} {{ ds }} $x",
    "é" * 10_000,
    "",
)


@pytest.fixture(scope="module", params=SHARED)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL
) -> Iterator[Shop]:
    with settings_on(request.param, tmp_path_factory.mktemp("text"), postgresql) as settings:
        shop = make_shop(settings)
        yield shop
        shop.deployment.close()


def opened(shop: Shop, text: str) -> Barrier:
    """A new barrier, all of whose texts are ``text``; what was open is given up."""
    for barrier in shop.deployment.meta.barriers.uncommitted("shopping"):
        shop.deployment.meta.barriers.abort("shopping", barrier.barrier_id, "room for the next", "test")
    opening = open_barrier(
        shop.deployment,
        FRAGMENT,
        datetime(2026, 1, 1, tzinfo=timezone.utc),
        timestamp_from=text,
        run=RunRef(f"dag {text[:250]}", f"run {text[:250]}", text),
        actor=text,
    )
    assert isinstance(opening, Opened)
    return opening.barrier


def test_kept_as_data_and_shown_as_text(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with cases() as case:
        for text in TEXTS:
            with case(text):
                _kept_and_shown(shop, text, caplog)


def _kept_and_shown(shop: Shop, text: str, caplog: pytest.LogCaptureFixture) -> None:
    meta = shop.deployment.meta
    caplog.clear()
    barrier = opened(shop, text)
    run = RunRef(f"dag {text[:250]}", f"run {text[:250]}", text)
    assert meta.barriers.of_run("shopping", run) == barrier
    assert barrier.run == RunRef(one_line(run.dag_id), one_line(run.run_id), one_line(text))
    assert barrier.timestamp_from == one_line(text)

    # an attempt that failed of it, after one that another task had asked for
    begun, again = (
        begin(shop.deployment, barrier, "load", Asking(request_key=key, generation=text, actor=text))
        for key in ("another", text)
    )
    assert isinstance(begun, Ready)
    assert isinstance(again, Ready)
    assert meta.attempts.get(begun.attempt.attempt_id).state is AttemptState.FENCED
    with caplog.at_level(logging.INFO):
        ended = give_up(shop.deployment, again.attempt.attempt_id, reason=text, actor=text)
    assert ended.reason == one_line(text)
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)
    with pytest.raises(FencedAttemptError) as caught:
        meta.attempts.report(begun.attempt.attempt_id, text)
    assert str(caught.value).isprintable()
    assert one_line(text) in str(caught.value)

    screen = Console(file=io.StringIO(), width=50_000, color_system="truecolor", force_terminal=True)
    show_status([status(meta, "shopping")], screen)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert "load: failed\n" in shown
    assert one_line(text)[:300] in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown

    (given_up,) = meta.barriers.abort("shopping", barrier.barrier_id, text, text)
    assert given_up.state is BarrierState.ABORTED
    assert meta.barriers.get("shopping", barrier.barrier_id).reason == one_line(text)
    actors = {entry.actor for entry in meta.audit.newest("shopping", barrier.barrier_id)}
    assert actors == {one_line(text), "another"}


def test_a_reason_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_barrier.coordinator.settings import Settings

    settings = Settings.embedded(str(tmp_path))
    shop = make_shop(settings)
    opened(shop, "test")
    reason = "[/red] \x1b[2J\nforged <b>"
    command = ["--metaservice-url", settings.metaservice_url]
    assert main(["barrier", "abort", "shopping", "1", "--reason", reason, "--yes", *command]) == 0
    assert main(["status", *command]) == 0
    assert main(["status", "no\nsuch", *command]) == 1
    said = capsys.readouterr()
    assert "\x1b[2J" not in said.out + said.err
    # one line; before it may stand what Airflow's logging has to say, once a test before has set that up
    assert said.err.splitlines()[-1].startswith("airflow-barrier: ")
    assert shop.deployment.meta.barriers.get("shopping", 1).reason == one_line(reason)
    shop.deployment.close()
