"""What a task orders of the driver that takes its rows, and what it believes of the answer."""

from __future__ import annotations

import json

import pytest

from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.errors import NotAppendOnlyError, SpecError, UnprovenFileError
from airflow_barrier.spark.delivering import Extract
from airflow_barrier.spark.extracting import Order
from airflow_barrier.spark.spec import digest_of, signed

EXTRACTS = (
    Extract("shop.amount", None, 7, Rows.CHANGES, whole=True, key=("userId", "itemId")),
    Extract("shop.price", 7, 8, Rows.APPENDS, whole=False),
)
ORDER = Order("lake", EXTRACTS, "file:///warehouse/_barrier/shopping/deliveries/1", "nonce of 1")


def test_the_driver_gets_the_order_as_it_was_given() -> None:
    text = ORDER.dumps()
    assert Order.loads(text, digest_of(text)) == ORDER
    with pytest.raises(SpecError, match=r"^order of extracts: expected digest"):
        Order.loads(text.replace("shop.price", "shop.wages"), digest_of(text))
    with pytest.raises(SpecError, match=r"^order of extracts: expected version"):
        Order.loads("{}", digest_of("{}"))
    assert ORDER.nonce not in repr(ORDER)


@pytest.mark.kills("driver-error-is-the-tasks")
def test_an_answer_says_where_the_files_are_or_what_is_to_be_raised() -> None:
    files = [["file:///a", "file:///b"], []]
    assert ORDER.files(signed({"files": files}, ORDER.nonce)) == files
    said = "table shop.price: expected appends only, found a delete"
    with pytest.raises(NotAppendOnlyError, match=f"^{said}$"):
        ORDER.files(signed({"error": "NotAppendOnlyError", "message": said}, ORDER.nonce))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps({"files": [[], []]}),
        signed({"files": [[], []]}, "nonce of 2"),
        signed({"files": [[]]}, ORDER.nonce),
        signed({"files": [[], [1]]}, ORDER.nonce),
        signed({"files": "ab"}, ORDER.nonce),
        signed({"files": [[], []], "error": "annotations", "message": "of a module"}, ORDER.nonce),
        signed({"error": "SystemExit", "message": "no error of ours"}, ORDER.nonce),
    ],
)
def test_nothing_else_is_believed(text: str) -> None:
    with pytest.raises(UnprovenFileError, match=r"^answer file:///warehouse/.*/1/answer\.json: expected") as raised:
        ORDER.files(text)
    assert ORDER.nonce not in str(raised.value)
