"""What is written down is what was written before: journals, specs and triggers outlive the process that wrote them."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.codec import digest
from tests.protocol.wire_forms import FORMS, TOPOLOGY, WRITTEN


@pytest.mark.parametrize("name", FORMS)
def test_a_document_keeps_its_text(name: str) -> None:
    value, write, read = FORMS[name]
    assert write() == WRITTEN[name]
    assert read(WRITTEN[name]) == value


def test_there_is_a_text_for_each_form() -> None:
    assert set(FORMS) == set(WRITTEN)


def test_a_topology_keeps_its_digest() -> None:
    assert digest(TOPOLOGY) == "d949d18d3edc18ce4309776821cbf01034a367ba3f01795a5fa4f4613078f0ea"
