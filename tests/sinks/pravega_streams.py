"""Where tables are delivered to in Pravega in tests, and what readers find there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.sinks.port import Channel
from airflow_barrier.sinks.pravega import PravegaSink
from airflow_barrier.sinks.pravega.client import Client
from tests.sinks.behaviour import AMOUNTS, CHANGES, PRICES, TABLES, applied, catch_up
from tests.support.pravega import SCOPE, Pravega

#: What the sink is made of.
FILES = tuple(
    f"sinks/{name}.py"
    for name in (
        *("pravega/channel", "pravega/client", "pravega/events", "pravega/ledger", "pravega/process"),
        *("pravega/streams", "json_rows"),
    )
)
#: What readers know the tables by.
LABELS = {PRICES: "prices", AMOUNTS: "amounts"}
_VALUES: dict[str, Callable[[Any], Any]] = {"price": Decimal, "at": datetime.fromisoformat}


@dataclass(frozen=True)
class Streams:
    """A stream of two segments, and a ledger that is not there at first. Other processes do not see the ``server``."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS)

    credentials: Credentials
    stream: str
    ledger: str
    server: Pravega | None

    @classmethod
    def make(cls, server: Pravega, segments: int = 2) -> Streams:
        stream = server.stream(segments)
        return cls(server.credentials, stream, f"{stream}-ledger", server)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "server": None}

    def sink(self, rows: Rows = Rows.CHANGES, key: str = "id", **settings: Any) -> PravegaSink:
        keys = [key] if rows is Rows.CHANGES else ()
        return PravegaSink(
            **{"stream": self.stream, "scope": SCOPE, "name": "out", "key": keys, "ledger": self.ledger, **settings}
        )

    def channel(
        self, rows: Rows = Rows.CHANGES, tables: Sequence[str] = TABLES, key: str = "id", **settings: Any
    ) -> Channel:
        sink = self.sink(rows, key, **settings)
        return sink.connect(sink.declare({table: LABELS[table] for table in tables}, rows, "dag"), self.credentials)

    def ask(self, request: str, *arguments: Any) -> Any:
        assert self.server is not None
        return self.server.ask(request, *arguments)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.ask("events", self.stream)]

    def entries(self) -> list[dict[str, Any]]:
        """Those of the ledger."""
        return [json.loads(entry) for entry in self.ask("bytes_of", self.ledger)]

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        barriers: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for event in self.events():
            if event["table"] == LABELS[table]:
                barriers.setdefault((event["barrier"], event["revision"]), []).append(event)
        in_order = [sorted(barriers[at], key=lambda event: int(event["n"])) for at in sorted(barriers)]
        for events in in_order:
            told = [(event["n"], event["of"]) for event in events]
            assert told == [(n, len(events)) for n in range(1, len(events) + 1)]
        if rows is Rows.APPENDS:
            return [row_of(event) for events in in_order for event in events]
        return applied([(event["op"], row_of(event)) for event in events] for events in in_order)

    def left_over(self) -> list[str]:
        """Nothing: the server ends transactions of which nobody has spoken for a while, and readers wait for none."""
        return []

    def forge(self, entry: str, value: object) -> None:
        newest = self.entries()[-1]
        self.ask("write", self.ledger, [("", json.dumps({**newest, entry: value}).encode())])

    def watch(self, tell: Callable[[str], None]) -> None:
        original = Client.change

        def change(client: Client, request: str, *arguments: Any) -> Any:
            tell(f"before {request}")
            return original(client, request, *arguments)

        Client.change = change  # type: ignore[method-assign]


def prepared(place: Streams, steps: int = 2) -> Streams:
    """The place, when so many of the suite's changes were delivered there."""
    with place.channel() as channel:
        catch_up(channel, Rows.CHANGES, CHANGES[:steps])
    return place


def row_of(event: dict[str, Any]) -> dict[str, Any]:
    return {name: _VALUES.get(name, lambda same: same)(found) for name, found in event["row"].items()}
