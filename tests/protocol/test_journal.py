"""Files of the journal are read by the version that wrote them."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import JournalError
from airflow_barrier.protocol.journal import JournalHead


def test_a_head_comes_back_as_it_was() -> None:
    head = JournalHead("incarnation-1", 7)
    assert JournalHead.loads(head.dumps()) == head


@pytest.mark.kills("journal-version")
def test_a_journal_of_another_version_is_not_read() -> None:
    text = JournalHead("incarnation-1", 7).dumps()
    with pytest.raises(JournalError, match="expected version 1, found 2"):
        JournalHead.loads(text.replace('"version": 1', '"version": 2'))
    for damaged in ("", "[]", text[:-2]):
        with pytest.raises(JournalError, match="expected a JSON object"):
            JournalHead.loads(damaged)
