"""`airflow-barrier barrier resolve`, `status` and what the API tells, as a person meets them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.protocol.errors import BarrierBlockedError
from airflow_barrier.protocol.states import BarrierState
from tests.api.asking import Asking
from tests.foreign.attacked import UNDER_WAY, Attacked, Template
from tests.foreign.hands import Hands
from tests.support.shop import AMOUNT, PRICE, SHOPPING

RESOLVE = ["barrier", "resolve", "shopping", "3", "--reason", "asked the owner", "--conn-id", "foreign"]


@pytest.fixture
def attacked(template: Template, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacked]:
    """Barrier 3 is PRECOMMIT; the connection `foreign` leads to it."""
    with template.put_back("staged") as attacked:
        extras = {"warehouse": str(template.live)}
        monkeypatch.setenv("AIRFLOW_CONN_FOREIGN", json.dumps({"conn_type": "barrier", "extra": extras}))
        yield attacked


def block(attacked: Attacked, *hands: Hands) -> None:
    def act() -> None:
        for each in hands or (attacked.hands,):
            each.append()

    with attacked.interrupted("committing", act), pytest.raises(BarrierBlockedError):
        attacked.commit()


def test_ours_is_kept_and_the_next_commit_is_told_of(attacked: Attacked, capsys: pytest.CaptureFixture[str]) -> None:
    block(attacked)
    theirs = attacked.main()
    assert main([*RESOLVE, "--table", AMOUNT, "--keep-ours"]) == 0
    said = capsys.readouterr().out
    assert f"{AMOUNT} is published with our snapshot" in said
    assert (
        f"theirs, snapshot {theirs}, no longer counts; it is kept by the tag barrier_shopping_b3_r0_set_aside" in said
    )
    assert "clear its commit task" in said
    attacked.commit()
    attacked.check_mains(UNDER_WAY)
    (audited, _) = [each for each in attacked.meta.audit.newest("shopping", 3) if each.event == "keep-ours"]
    assert audited.actor.endswith(" (airflow-barrier)")
    assert audited.detail["reason"] == "asked the owner"


def test_theirs_is_adopted_and_committed_at_once(attacked: Attacked, capsys: pytest.CaptureFixture[str]) -> None:
    attacked.stage_next()
    block(attacked, Hands(attacked.shop, attacked.barrier, attacked.hands.previous, name=SHOPPING))
    assert main([*RESOLVE, "--table", SHOPPING, "--adopt-theirs", "--commit"]) == 0
    said = capsys.readouterr().out
    assert f"NOT published: this epoch's rows of {SHOPPING}" in said
    assert f"computed from ours, and published as they are: {AMOUNT}, {PRICE}" in said
    assert "to be run again, since it stood on ours: job load at barrier 4 (clear its task)" in said
    assert "is COMMIT" in said
    assert attacked.meta.barriers.get("shopping", 3).state is BarrierState.COMMIT


def test_another_table_is_still_in_the_way(attacked: Attacked, capsys: pytest.CaptureFixture[str]) -> None:
    block(attacked, attacked.hands, Hands(attacked.shop, attacked.barrier, attacked.hands.previous, name=PRICE))
    assert main([*RESOLVE, "--table", AMOUNT, "--keep-ours"]) == 0
    assert f"is still BLOCKED: table {PRICE}" in capsys.readouterr().out
    assert main([*RESOLVE, "--table", PRICE, "--keep-ours", "--commit", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    said = f"Ours of {PRICE} stands. Committed barrier 3: readers have it."
    assert told == {"changed": True, "summary": said, "states": {"barrier 3": "COMMIT"}}


def test_a_refusal_is_exit_code_1_and_wrong_usage_2(attacked: Attacked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RESOLVE, "--table", AMOUNT, "--keep-ours"]) == 1
    assert "expected BLOCKED, found PRECOMMIT" in capsys.readouterr().err
    for wrong in (["--keep-ours"], ["--table", AMOUNT], ["--table", AMOUNT, "--keep-ours", "--adopt-theirs"]):
        with pytest.raises(SystemExit) as ended:
            main([*RESOLVE, *wrong])
        assert ended.value.code == 2


def test_status_and_the_api_tell_what_is_in_the_way_and_the_way_out(
    attacked: Attacked, capsys: pytest.CaptureFixture[str]
) -> None:
    block(attacked)
    assert main(["status", "shopping", "--conn-id", "foreign"]) == 0
    said = capsys.readouterr().out
    told = Asking({"prod": attacked.meta}).told(f"shopping/barriers/{UNDER_WAY}")
    for text in (f"table {AMOUNT}: expected main at", "resolve shopping 3 --table shop.user_item_amount --keep-ours"):
        assert text in said, "unbroken, so that it can be copied"
        assert text in told["reason"]
    assert "BLOCKED" in said
    assert told["state"] == "BLOCKED"
