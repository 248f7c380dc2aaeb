"""A stream of Pravega: what any sink does, and what is Pravega's own."""

from __future__ import annotations

import pytest

from tests.sinks.behaviour import Behaviour, Places
from tests.sinks.pravega_streams import FILES, Streams
from tests.support.pravega import Pravega


@pytest.fixture
def place(pravega: Pravega) -> Streams:
    return Streams.make(pravega)


@pytest.mark.drawn("Pravega")
@pytest.mark.touches(*FILES)
class TestPravega(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, pravega: Pravega) -> Places:
        return lambda: Streams.make(pravega)
