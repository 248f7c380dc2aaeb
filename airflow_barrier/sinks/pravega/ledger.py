"""The ledger of a sink in Pravega: a stream of one segment, whose order all deliverers agree on.

A transaction of Pravega is one stream's, so the ledger's entries are in none. They are written around it:

- *opened*: somebody wants to be the only deliverer. The first one of the highest epoch is.
- *begun*: a transaction has all events of a barrier, and is committed once this entry is seen to stand.
- *settled*: what was delivered. No outcome of a transaction is in question.

What an *opened* of a higher epoch stands before does not count. The outcome of a transaction that counts, and that
nobody has settled, is asked of Pravega: who opens the sink ends it, if it is open yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_barrier.protocol.deliveries import Counts, Remedy
from airflow_barrier.protocol.errors import LedgerError
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, Words, check_others, opened
from airflow_barrier.sinks.port import Delivery

OPENED, BEGUN, SETTLED = KINDS = "opened", "begun", "settled"


@dataclass(frozen=True)
class Entry:
    """``opener`` tells deliverers of one epoch apart. ``transaction``: the one that was begun, or settled."""

    kind: str
    epoch: int
    opener: str
    record: LedgerRecord
    transaction: int | None = None

    def encoded(self, who: Deliverer, said: Mapping[str, Any]) -> bytes:
        position = self.record.position
        own = {
            "kind": self.kind,
            "epoch": self.epoch,
            "opener": self.opener,
            "transaction": None if self.transaction is None else f"{self.transaction:x}",
            "request_key": who.request_key,
        }
        at = {"barrier": position and position.barrier_id, "revision": position and position.revision}
        return json.dumps({**self.record.to_json(), **own, **at, **said}).encode()


@dataclass(frozen=True)
class Ledger:
    """The sum of the entries. ``opener``: the only deliverer, of ``epoch``. ``record``: what was delivered (None:
    nobody has settled anything), which stands at ``offset``; ``begun``: a transaction since, whose outcome Pravega has.
    """

    epoch: int = 0
    opener: str = ""
    record: LedgerRecord | None = None
    offset: int = 0
    begun: Entry | None = None


def said_of(delivery: Delivery, counts: Mapping[str, Counts]) -> dict[str, Any]:
    """Return what the entries of a delivery say besides, for people."""
    return {"timestamp": delivery.timestamp.isoformat(), "counts": {each: asdict(counts[each]) for each in counts}}


def read(what: str, name: str, entries: Iterable[tuple[int, bytes]]) -> Ledger:
    """Return the sum of the entries of the ledger ``name``, by their offsets. Raises LedgerError for what is none."""
    found = Ledger()
    for offset, value in entries:
        entry = _entry(what, name, offset, value)
        if entry.kind == OPENED:
            if entry.epoch > found.epoch:
                found = replace(found, epoch=entry.epoch, opener=entry.opener)
        elif entry.kind == BEGUN:
            if entry.opener == found.opener:  # safety: begun-by-the-newest
                found = replace(found, begun=entry)
        elif _settles(entry, found):
            epoch, opener = max(entry.epoch, found.epoch), found.opener or entry.opener
            found = Ledger(epoch, opener, entry.record, offset)
    return found


def _settles(entry: Entry, found: Ledger) -> bool:
    """An older deliverer may still say that its own transaction was committed. The first entry of a ledger is left of
    a longer one, and says all that it came to.
    """
    own = found.begun is not None and entry.transaction == found.begun.transaction
    return own or entry.opener == found.opener or not found.opener


def _entry(what: str, name: str, offset: int, value: bytes) -> Entry:
    try:
        said = json.loads(value)
        number = said["transaction"]
        return Entry(
            KINDS[KINDS.index(said["kind"])],
            int(said["epoch"]),
            str(said["opener"]),
            LedgerRecord.from_json(said),
            None if number is None else int(number, 16),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError(
            f"{what}: expected entries of a sink only in the ledger {name}, found another one at offset {offset} "
            f"({type(error).__name__}); name a stream for the ledger that nobody else writes to"
        ) from None


# --- whose it is ----------------------------------------------------------------------------------


def check(
    who: Deliverer, name: str, seen: LedgerRecord | None, ours: LedgerRecord, remedy: Remedy | None
) -> LedgerRecord:
    """Return the record to go on from. Raises LedgerError if the ledger, or the stream, is another's."""
    words = words_of(who, name)
    if seen is not None and (seen.topology, seen.sink) != (who.topology, who.sink):
        check_others(who, words, ours, [seen], name)
        raise LedgerError(  # safety: ledger-of-one-sink
            f"{who}: expected a ledger of its own, found that of {seen} in {name}; name another stream for the ledger: "
            "PravegaSink(..., ledger=...)"
        )
    return opened(who, words, seen, ours, remedy)


def words_of(who: Deliverer, name: str) -> Words:
    return Words(
        ledger=f"ledger {name}",
        place="cluster and scope",
        target="table",
        another="give this sink another stream and another ledger",
        copied="If the controller has another address only, or if the stream was copied up to there as well, and "
        "deliveries move to this cluster",
        anew="Else declare a sink of another name for a new stream, which is delivered the tables whole first",
    )
