"""Epochs of a stream, as they are cut and taken out of a real Pravega."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    RevisionRefusedError,
    SourceDataError,
    SourceUnavailableError,
)
from airflow_barrier.protocol.names import rehearsal_name
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.pravega import Pravega
from airflow_barrier.systems.pravega import Client
from tests.sources.databases import Beside
from tests.sources.landing import Cutter
from tests.sources.streams import numbered, numbers_of, source_of, taken
from tests.support.cases import cases
from tests.support.pravega import SCOPE
from tests.support.pravega import Pravega as Server

pytestmark = [
    pytest.mark.drawn("Pravega"),
    pytest.mark.touches("sources/pravega/cuts.py", "sources/pravega/__init__.py"),
]


class Stream:
    """A stream, who writes to it, and who cuts it."""

    def __init__(self, server: Server, beside: Beside, segments: int = 2) -> None:
        self.server, self.name, self.beside = server, server.stream(segments), beside
        self.source = source_of(server, self.name)
        self.barriers = Cutter(self.source, beside)
        self._now = datetime.now(timezone.utc)

    def write(self, *numbers: int) -> None:
        self.server.write(self.name, numbered(numbers))

    def cut(self) -> Cut:
        self._now += timedelta(minutes=1)
        return self.barriers.cut(self._now)

    @property
    def cuts(self) -> list[Cut]:
        return [cut for _, cut in self.barriers.cuts]


@pytest.fixture
def stream(pravega: Server, beside: Beside) -> Stream:
    return Stream(pravega, beside)


def test_a_stream_that_scales_between_barriers_keeps_each_keys_order(stream: Stream) -> None:
    stream.write(*range(1000))
    stream.cut()
    stream.write(*range(1000, 2000))
    stream.server.ask("scale", stream.name, [0], [(0.0, 0.1), (0.1, 0.5)])
    stream.write(*range(2000, 3000))
    stream.cut()
    later = sorted(set(stream.server.tail(stream.name)) - {1})
    assert len(later) == 2
    assert min(later) > 1 << 32
    stream.write(*range(3000, 4000))
    stream.server.ask("scale", stream.name, [1, *later], [(0.0, 0.7), (0.7, 1.0)])
    stream.cut()  # behind segments that have ended
    stream.write(*range(4000, 5000))
    stream.cut()
    stream.cut()  # of nothing
    assert numbers_of(stream.cuts) == list(range(5000))
    assert [each.end["last"] for each in stream.cuts] == [1000, 3000, 4000, 5000, 5000]


def test_events_that_come_while_an_epoch_is_taken_out_are_in_the_next_one(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, written = Client.ask, iter(range(100, 100_000))

    def ask(client: Client, request: str, *arguments: Any) -> Any:
        if request in ("begin", "slice") and client.what != "a test":
            stream.write(*(next(written) for _ in range(100)))
        return original(client, request, *arguments)

    stream.write(*range(100))
    monkeypatch.setattr(Client, "ask", ask)
    assert numbers_of([stream.cut()]) == list(range(100))
    stream.cut()
    monkeypatch.undo()
    stream.cut()
    assert numbers_of(stream.cuts) == list(range(next(written)))


def test_who_cuts_a_barrier_once_more_has_the_same_epoch(stream: Stream) -> None:
    stream.write(*range(100))
    first = stream.cut()
    stream.write(*range(100, 200))
    request = stream.barriers.request(stream._now + timedelta(minutes=1))
    again = [stream.source.cut(request)]
    stream.write(*range(200, 300))
    again.append(stream.source.cut(request))
    assert again[0] == again[1]
    assert isinstance(again[1], Cut)
    assert numbers_of([first, again[1]]) == list(range(200))


def test_one_who_died_after_the_end_was_kept_is_followed(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try has the same end, and takes out what is before it."""
    original = Client.ask

    class DeathError(BaseException):
        pass

    def ask(client: Client, request: str, *arguments: Any) -> Any:
        answer = original(client, request, *arguments)
        if request == "slice":
            raise DeathError
        return answer

    stream.write(*range(100))
    request = stream.barriers.request(stream._now)
    monkeypatch.setattr(Client, "ask", ask)
    with pytest.raises(DeathError):
        stream.source.cut(request)
    monkeypatch.undo()
    stream.write(*range(100, 200))
    found = stream.source.cut(request)
    assert isinstance(found, Cut)
    assert numbers_of([found]) == list(range(100))


def test_pravega_forgets_the_ends_of_earlier_epochs_and_of_rehearsals(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, forgotten = Client.ask, list[str]()

    def ask(client: Client, request: str, *arguments: Any) -> Any:
        if request == "forget":
            forgotten.append(arguments[1])
        return original(client, request, *arguments)

    def ends() -> list[str]:
        """The ends of epochs that were forgotten since."""
        found = [group for group in forgotten if "reading" not in group]
        forgotten.clear()
        return found

    monkeypatch.setattr(Client, "ask", ask)
    for number in range(5):
        stream.write(number)
        stream.cut()
    kept = [each.end["group"] for each in stream.cuts]
    assert ends() == kept[:2]  # the next epoch begins at the last one, or at the one before if that is aborted
    stream.write(5)
    request = stream.barriers.request(stream._now)
    name = rehearsal_name("shopping", "shopping", "manual")
    rehearsed = stream.source.cut(replace(request, topology=name))
    assert isinstance(rehearsed, Cut)
    assert [number for _, _, number in taken(rehearsed)] == [5]
    assert rehearsed.end["group"] in forgotten
    assert ends() == []
    stream.source.leave("shopping", stream.beside)
    assert sorted(ends()) == sorted(kept[2:])
    assert numbers_of(stream.cuts) == [0, 1, 2, 3, 4]


def test_an_end_that_pravega_has_forgotten_is_found_again(stream: Stream) -> None:
    stream.write(*range(100))
    stream.cut()
    stream.server.ask("forget", stream.cuts[0].end["group"])
    stream.write(*range(100, 200))
    stream.cut()
    stream.write(*range(200, 300))
    stream.cut()
    assert numbers_of(stream.cuts) == list(range(300))


@pytest.mark.kills("stream-is-there")
def test_a_stream_that_is_not_there_is_told(stream: Stream) -> None:
    stream.server.ask("drop", stream.name)
    with pytest.raises(SourceDataError, match=rf"expected stream {SCOPE}/{stream.name} at .*, found none; create it"):
        stream.cut()


@pytest.mark.kills("the-same-stream")
def test_a_stream_that_was_made_anew_is_told(stream: Stream) -> None:
    stream.write(*range(100))
    stream.cut()
    stream.server.ask("drop", stream.name)
    stream.server.ask("make", stream.name, 2)
    stream.write(*range(100, 300))
    with pytest.raises(SourceDataError, match=r"found one that was made anew since.*source resnapshot shopping events"):
        stream.cut()
    until, before = stream.barriers.cuts.pop()
    stream.barriers.cuts.append((until, before.then_anew("of our own will")))
    stream.cut()
    assert numbers_of(stream.cuts) == list(range(300))


@pytest.mark.kills("events-are-not-passed-over")
def test_events_that_are_gone_are_told_and_left_out_once_a_person_says_so(stream: Stream) -> None:
    stream.write(*range(100))
    stream.cut()
    stream.write(*range(100, 200))
    gone = stream.server.tail(stream.name)
    stream.write(*range(200, 300))
    stream.server.ask("truncate", stream.name, gone)
    with pytest.raises(SourceDataError, match=r"found that it was truncated behind it.*source resnapshot shopping"):
        stream.cut()
    until, before = stream.barriers.cuts.pop()
    stream.barriers.cuts.append((until, before.then_anew("they are of no worth")))
    stream.cut()
    assert numbers_of(stream.cuts) == [*range(100), *range(200, 300)]


def test_what_was_taken_out_already_may_be_truncated(stream: Stream) -> None:
    stream.write(*range(100))
    stream.cut()
    stream.server.ask("truncate", stream.name, stream.server.tail(stream.name))
    stream.write(*range(100, 200))
    stream.cut()
    assert numbers_of(stream.cuts) == list(range(200))


@pytest.mark.kills("events-follow-each-other")
def test_events_that_do_not_follow_are_told(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pravega's client goes on behind a gap."""
    original = Client.ask

    def ask(client: Client, request: str, *arguments: Any) -> Any:
        answer = original(client, request, *arguments)
        if request != "slice":
            return answer
        _, offsets, values, at = answer
        return None, offsets, values, at

    stream.write(*range(100))
    monkeypatch.setattr(Client, "ask", ask)
    with pytest.raises(SourceDataError, match="the stream was truncated while it was read"):
        stream.cut()


def test_a_topology_may_begin_with_what_comes_from_now_on(stream: Stream) -> None:
    stream.write(*range(100))
    request = stream.barriers.request(stream._now)
    found = stream.source.cut(replace(request, already=stream._now))
    assert isinstance(found, Cut)
    stream.barriers.cuts.append((stream._now, found))
    stream.write(*range(100, 200))
    stream.cut()
    assert numbers_of(stream.cuts) == list(range(100, 200))
    with pytest.raises(ConfigurationError, match="expected start_from to be 'earliest' or 'latest'"):
        stream.source.cut(replace(request, already=stream._now - timedelta(days=1)))


def test_events_of_megabytes_come_whole(stream: Stream) -> None:
    """The client reads the segment in parts that are smaller."""
    large = [b"0:" + b"%08d" % n * 1_000_000 for n in range(2)]
    stream.server.write(stream.name, [("0", b"0:1"), *(("0", each) for each in large), ("0", b"0:2")])
    found = stream.cut()
    (file,) = found.end["files"]
    assert parquet.read_table(file["uri"])["value"].to_pylist() == [b"0:1", *large, b"0:2"]


def test_lag_counts_bytes_that_were_not_taken_out(stream: Stream) -> None:
    assert stream.source.lag(None, stream._now) is None
    stream.write(*range(100))
    found = stream.cut()
    stream.server.write(stream.name, [("a", b"123456"), ("a", b"1234")])
    lag = stream.source.lag(found, stream._now)
    assert lag is not None
    assert (lag.unit, lag.called, lag.behind, len(lag.parts)) == ("bytes", "segment", 8 + 6 + 8 + 4, 2)
    stream.server.ask("scale", stream.name, [0], [(0.0, 0.5)])
    stream.write(*range(100, 200))
    later = stream.source.lag(found, stream._now)
    assert later is not None
    assert later.note == "the stream was scaled since: segments that ended are not counted"


@pytest.mark.kills("positions-are-not-cut-anew", "taken-changes-are-kept")
def test_epochs_are_read_again_while_their_files_are_there_and_not_cut_anew(stream: Stream) -> None:
    stream.write(*range(100))
    first, second = stream.cut(), stream.cut()
    with pytest.raises(RevisionRefusedError, match="found a stream"):
        stream.source.recut(stream.cuts, set)
    stream.source.let_go(first, stream.beside)
    stream.source.check_held(first, stream.beside)
    stream.source.let_go(second, stream.beside)
    with pytest.raises(SourceDataError, match="1 files are gone"):
        stream.source.check_held(first, stream.beside)
    stream.source.check_held(second, stream.beside)


# --- what cannot be entered -------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_waited_for_a_bounded_time() -> None:
    """Its client would wait for ever, and stop all of Python."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = Credentials("pravega", *silent.getsockname())
        with Client("source events", at, SourceUnavailableError, 2) as client:
            with pytest.raises(
                SourceUnavailableError, match=r"at 127.0.0.1:\d+ to answer, found: no answer within 2 s"
            ):
                client.ask("has", SCOPE, "s")
            with pytest.raises(SourceUnavailableError, match="an earlier question that was not answered"):
                client.ask("has", SCOPE, "s")
    with pytest.raises(SourceUnavailableError, match=r"found: .*refused; see that it runs"):
        Client("source events", at, SourceUnavailableError).__enter__()


def test_what_cannot_be_entered_or_declared_is_told(pravega: Server, tmp_path: Path) -> None:
    at = pravega.credentials
    with cases() as case:
        for credentials, expected in (
            (None, "expected a connection of type generic, found none"),
            (replace(at, host=None), "expected the host of Pravega's controller, found none"),
            (replace(at, login="me"), "expected no login and no password, found one"),
        ):
            source = Pravega("s", SCOPE, schema="n BIGINT").within(Limits(), *filter(None, [credentials]))
            with case(expected), pytest.raises(ConfigurationError, match=expected):
                source.look(Beside(tmp_path))
        for settings, expected in (
            ({"stream": "a_b"}, "stream: expected letters, digits, '.' and '-', 200 at most, found 'a_b'"),
            ({"stream": "s", "scope": "a/b"}, "scope: expected letters"),
            ({"stream": "s", "metadata": ("key",)}, r"expected metadata to be \(\) or \('seq',\), found \('key',\)"),
            ({"stream": "s", "schema": ""}, "schema and format='json' belong together"),
        ):
            with case(expected), pytest.raises(ConfigurationError, match=expected):
                Pravega(**{"scope": SCOPE, "schema": "n BIGINT", **settings})
