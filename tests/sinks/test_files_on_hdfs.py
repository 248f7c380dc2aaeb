"""Files on a real HDFS: what any sink does, and replies that get lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

import pytest
import requests

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.errors import SinkRefusedError, SinkUnavailableError
from airflow_barrier.sinks.files.folders import FileChannel
from airflow_barrier.sinks.files.stores import HdfsStore
from tests.sinks.behaviour import CHANGES, SCHEMAS, Behaviour, Places, catch_up, check
from tests.sinks.files import FILES, TARGETS, FilesOnHdfs, around_requests
from tests.support.cases import cases
from tests.support.drawing import drawn
from tests.support.hdfs import Hdfs


@pytest.fixture
def places(hdfs_server: Hdfs) -> Callable[[], FilesOnHdfs]:
    return lambda: FilesOnHdfs(f"/places/{uuid4()}/out", hdfs_server)


@pytest.mark.drawn("files on HDFS")
@pytest.mark.touches(*FILES)
class TestHdfs(Behaviour):
    @pytest.fixture
    def places(self, places: Places) -> Places:
        return places


@pytest.mark.drawn("files on HDFS")
@pytest.mark.touches(*FILES)
@pytest.mark.every_landing
def test_each_reply_gets_lost(places: Callable[[], FilesOnHdfs], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the name node did what it was asked for is found out by asking the ledger."""
    calls: list[str] = []
    lost: int | None = None

    def lose(call: str) -> None:
        calls.append(call)
        if len(calls) - 1 == lost:
            raise requests.ConnectionError("the reply was lost")

    monkeypatch.setattr(requests.Session, "request", requests.Session.request)  # and back at the end
    around_requests(before=lambda _: None, after=lose)
    place = places()
    with place.channel(Rows.CHANGES) as channel:
        catch_up(channel, Rows.CHANGES, CHANGES[:2])
    all_calls = [*calls]
    with cases() as case:
        for number in drawn(range(len(all_calls)), "replies of HDFS that are lost"):
            with case(f"lost is {number}, {all_calls[number]}"):
                place, lost = places(), number
                calls.clear()
                with suppress(SinkUnavailableError), place.channel(Rows.CHANGES) as channel:
                    catch_up(channel, Rows.CHANGES, CHANGES[:2])
                assert len(calls) > number
                with place.channel(Rows.CHANGES) as channel:
                    catch_up(channel, Rows.CHANGES, CHANGES)
                check(place, CHANGES, Rows.CHANGES)
                assert place.left_over() == []


def test_who_may_not_write_there_is_told_before_a_first_barrier(places: Callable[[], FilesOnHdfs]) -> None:
    place = places()
    place.file_system.mkdir(place.path)
    server = place.server
    eve = place.sink.connect(
        place.sink.declare(TARGETS, Rows.CHANGES, "dag"), Credentials("hdfs", server.host, server.port, "eve")
    )
    with eve, pytest.raises(SinkRefusedError, match="expected rights to read and write there, found Permission denied"):
        eve.validate(SCHEMAS)
    assert place.all_files() == ["."]


class _MovedInto(HdfsStore):
    """As HDFS moves folders if it is not told otherwise: into one that is there."""

    def rename(self, folder: str, name: str) -> bool:
        return bool(self._ask("RENAME", self._full(folder), "put", destination=self._full(name))["boolean"])


def test_a_file_system_that_moves_folders_into_others_is_refused(places: Callable[[], FilesOnHdfs]) -> None:
    place = places()
    declared = place.sink.declare(TARGETS, Rows.TABLE, "dag")
    with (
        FileChannel(place.sink, declared, partial(_MovedInto, place.path, place.credentials)) as channel,
        pytest.raises(SinkRefusedError, match="expected a file system that moves no folder onto another one"),
    ):
        channel.validate(SCHEMAS)
    assert place.all_files() == []


def test_a_name_node_that_does_not_answer(places: Callable[[], FilesOnHdfs], hdfs_server: Hdfs) -> None:
    place = places()
    nowhere = Credentials("hdfs", hdfs_server.host, 1, hdfs_server.user)
    with (
        place.sink.connect(place.sink.declare("shop.prices", Rows.TABLE, "dag"), nowhere) as channel,
        pytest.raises(SinkUnavailableError, match="expected the file system to answer"),
    ):
        channel.validate({})
