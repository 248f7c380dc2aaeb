"""A closing record counts if the attempt's own driver wrote it; any other ends the attempt with a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import BarrierError, NotClosedError, StagedTableError, UnprovenFileError
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, proven, signed
from tests.support.cases import cases
from tests.support.shop import SHOPPING, Shop, make_shop

ROWS = [{"amount": 1000, "price": 1}]
UNCHANGED = {SHOPPING: {"table": SHOPPING, "snapshot_id": None, "unchanged": True}}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/barrier.db"
    shop = make_shop(Settings(url, url, (tmp_path / "warehouse").as_uri()))
    yield shop
    shop.deployment.close()


def leave(shop: Shop, ready: Ready, text: str) -> None:
    shop.deployment.tables.write_text(ready.spec.closing_uri, text)


def end(shop: Shop, ready: Ready) -> None:
    close(shop.deployment, ready.attempt, actor="test")


def state(shop: Shop, ready: Ready) -> AttemptState:
    return shop.deployment.meta.attempts.get(ready.attempt.attempt_id).state


def record(ready: Ready, **instead: Any) -> dict[str, Any]:
    return {"attempt_id": ready.attempt.attempt_id, "staged": UNCHANGED, "nonce": ready.spec.nonce, **instead}


@pytest.mark.kills("file-bears-the-nonce", "unproven-is-given-up")
def test_a_forged_record_publishes_nothing(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    leave(shop, ready, json.dumps({"attempt_id": ready.attempt.attempt_id, "staged": UNCHANGED}))
    with pytest.raises(UnprovenFileError, match=r"expected the attempt's nonce, .* found none: somebody else") as error:
        end(shop, ready)
    assert str(ready.attempt) in str(error.value)
    assert ready.spec.closing_uri in str(error.value)
    assert state(shop, ready) is AttemptState.ABORTED
    assert shop.process(barrier, "load", ROWS).state is BarrierState.OPEN


def test_a_retry_adopts_no_forged_record_and_begins_anew(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    for text in json.dumps(record(ready, nonce="guessed")), "{}":
        leave(shop, ready, text)
        again = shop.begin(barrier, "load")
        assert again.attempt.attempt_id > ready.attempt.attempt_id
        assert state(shop, ready) is AttemptState.ABORTED
        ready = again
    shop.close(ready, shop.write(ready, ROWS))


def test_a_retry_adopts_what_the_attempts_own_driver_closed(shop: Shop) -> None:
    barrier = shop.open(1)
    ready = shop.begin(barrier, "load")
    leave(shop, ready, shop.write(ready, ROWS).dumps(ready.spec.nonce))
    key = f"shopping_dag/{barrier.barrier_id}/load"
    begin(shop.deployment, barrier, "load", Asking(request_key=key, generation="g0", actor="test"))
    assert state(shop, ready) is AttemptState.PROCESSED


@pytest.mark.kills("record-names-its-tables", "record-of-this-attempt")
def test_garbage_ends_the_attempt_with_a_sentence(shop: Shop) -> None:
    barrier = shop.open(1)
    with cases() as case:
        for name, instead in {
            "nothing": "",
            "half": '{"attempt_id": 1, "staged": {',
            "deep": "[" * 100_000,
            "a list": "[]",
            "an empty object": "{}",
            "a nonce that is no text": {"nonce": 7},
            "another's nonce": {"nonce": "0" * 32},
            "another attempt": {"attempt_id": 999_999},
            "no attempt": {"attempt_id": None},
            "nothing staged": {"staged": None},
            "a list staged": {"staged": [SHOPPING]},
            "a table that is text": {"staged": {SHOPPING: "unchanged"}},
            "a table with more": {"staged": {SHOPPING: {**UNCHANGED[SHOPPING], "more": 1}}},
            "another table": {"staged": {SHOPPING: {**UNCHANGED[SHOPPING], "table": "shop.other"}}},
            "unchanged in words": {"staged": {SHOPPING: {**UNCHANGED[SHOPPING], "unchanged": "no"}}},
            "a snapshot in words": {"staged": {SHOPPING: {**UNCHANGED[SHOPPING], "snapshot_id": "4711"}}},
        }.items():
            with case(name):
                ready = shop.begin(barrier, "load")
                leave(shop, ready, instead if isinstance(instead, str) else json.dumps(record(ready, **instead)))
                with pytest.raises(UnprovenFileError, match=r"closing record .*closed\.json: expected") as error:
                    end(shop, ready)
                assert ready.spec.nonce not in str(error.value)
                assert state(shop, ready) is AttemptState.ABORTED
    shop.process(barrier, "load", ROWS)


def test_bytes_that_are_no_text_end_the_attempt(shop: Shop) -> None:
    ready = shop.begin(shop.open(1), "load")
    Path(ready.spec.closing_uri.removeprefix("file://")).write_bytes(b"\xff\xfe{")
    with pytest.raises(UnprovenFileError, match="expected text"):
        end(shop, ready)
    assert state(shop, ready) is AttemptState.ABORTED


def test_unchanged_is_not_taken_from_a_proven_file_alone(shop: Shop) -> None:
    ready = shop.begin(shop.open(1), "load")
    shop.write(ready, ROWS)
    said = {SHOPPING: StagedTable(SHOPPING, None, unchanged=True)}
    leave(shop, ready, ClosingRecord(ready.attempt.attempt_id, said).dumps(ready.spec.nonce))
    with pytest.raises(StagedTableError, match="was declared unchanged, but branch"):
        end(shop, ready)
    assert state(shop, ready) is AttemptState.ABORTED


def test_an_attempt_without_a_nonce_believes_no_file() -> None:
    """Those of before the upgrade have none, and "" is what anybody would guess."""
    with pytest.raises(UnprovenFileError):
        proven(signed({}, ""), "", "the file")


def test_nonces_are_each_attempts_own_and_are_not_shown(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    barrier = shop.open(1)
    first = shop.begin(barrier, "load")
    with pytest.raises(NotClosedError) as error:
        end(shop, first)
    second = shop.begin(barrier, "load")
    nonces = {first.spec.nonce, second.spec.nonce}
    assert [len(nonce) for nonce in nonces] == [32, 32]
    assert second.spec.nonce == shop.deployment.meta.attempts.get(second.attempt.attempt_id).nonce
    spec = EpochSpec.loads(shop.deployment.tables.read_text(second.spec_uri), second.digest)
    assert spec.nonce == second.spec.nonce
    assert isinstance(error.value, BarrierError)
    shown = [str(error.value), caplog.text, repr((first, second)), str(spec.stamp.properties())]
    shown += [repr(entry) for entry in shop.deployment.meta.audit.newest("shopping")]
    for nonce in nonces:
        assert not [text for text in shown if nonce in text]
