"""Where files are delivered to in tests in an object store, what a reader of manifests finds, and what may go wrong."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, ClassVar
from urllib.parse import urlsplit

import boto3
import pyarrow.parquet
from botocore.httpsession import URLLib3Session

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, Rows
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.port import Channel
from tests.sinks.behaviour import TABLES, applied
from tests.sinks.files import KEYS, TARGETS
from tests.support.waiting import patience

BUCKET = "deliveries"
#: What the sink is made of.
FILES = ("sinks/files/steps.py", "sinks/files/manifests.py", "sinks/files/object_store.py")


@dataclass(frozen=True)
class Objects:
    """Parquet under a prefix of a bucket, where nothing is at first."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS, Rows.TABLE)

    endpoint: str
    prefix: str

    @property
    def sink(self) -> FileSink:
        return FileSink(f"s3://{BUCKET}/{self.prefix}", name="out", key=KEYS, conn_id="aws", readers="manifest")

    @property
    def credentials(self) -> Credentials:
        extra = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return Credentials("aws", login="tester", password="planted-object-store-key", extra=extra)

    def channel(self, rows: Rows, tables: Sequence[str] = TABLES, key: str = "id") -> Channel:
        sink, targets = replace(self.sink, key=[key]), {table: TARGETS[table] for table in tables}
        return sink.connect(sink.declare(targets, rows, "dag"), self.credentials)

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        found: list[list[dict[str, Any]]] = []
        for manifest in self.delivered():
            if TARGETS[table] in manifest["whole"]:
                found.clear()
            found.append(self.rows_of(manifest, TARGETS[table]))
        if rows is Rows.CHANGES:
            return applied([(row.pop(CHANGE), row) for row in each] for each in found)
        return [row for each in found for row in each]

    def left_over(self) -> list[str]:
        named = {path for manifest in self.delivered() for path in self.named_by(manifest)}
        return [path for path in self.paths() if not path.startswith("_manifests/") and path not in named]

    def forge(self, entry: str, value: object) -> None:
        path, newest = list(self.manifests())[-1]
        self.put(path, json.dumps({**newest, entry: value}).encode())

    def watch(self, tell: Callable[[str], None]) -> None:
        original = URLLib3Session.send

        def send(session: URLLib3Session, request: Any) -> Any:
            if request.method not in ("GET", "HEAD"):
                tell(f"{request.method} {re.sub(r'[0-9a-f-]{32,36}', '*', urlsplit(request.url).path)}")
            return original(session, request)

        URLLib3Session.send = send

    # --- a reader ---------------------------------------------------------------------------------

    def paths(self, after: str = "") -> list[str]:
        """Of all objects that come after that one, relative to the sink's folder."""
        begin = f"{self.prefix}/"
        found = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=begin, StartAfter=f"{begin}{after}"
        )
        return [each["Key"].removeprefix(begin) for page in found for each in page.get("Contents", ())]

    def get(self, path: str) -> bytes:
        return bytes(self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{path}")["Body"].read())

    def put(self, path: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{path}", Body=data)

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{path}")

    def manifests(self, after: str = "_manifests/") -> Iterator[tuple[str, dict[str, Any]]]:
        for path in self.paths(after):
            if path.startswith("_manifests/"):
                yield path, json.loads(self.get(path))

    def delivered(self) -> list[dict[str, Any]]:
        found = [manifest for _, manifest in self.manifests()]
        assert [manifest["number"] for manifest in found] == list(range(1, len(found) + 1))
        return [manifest for manifest in found if manifest["says"] == "delivered"]

    def named_by(self, manifest: dict[str, Any]) -> list[str]:
        return [f"{target}/{file['name']}" for target, files in manifest["files"].items() for file in files]

    def rows_of(self, manifest: dict[str, Any], target: str) -> list[dict[str, Any]]:
        """Raises if a file is not there, or is not what the manifest says."""
        found: list[dict[str, Any]] = []
        for file in manifest["files"].get(target, []):  # the sink may have been declared without it
            data = self.get(f"{target}/{file['name']}")
            rows = pyarrow.parquet.read_table(BytesIO(data)).to_pylist()
            assert (len(data), len(rows)) == (file["bytes"], file["rows"])
            found += rows
        return found

    @property
    def client(self) -> Any:
        return _client(self.endpoint)


@cache
def _client(endpoint: str) -> Any:
    session = boto3.session.Session("tester", "planted-object-store-key", region_name="us-east-1")
    return session.client("s3", endpoint_url=endpoint)


# --- on the way to the store ----------------------------------------------------------------------


@dataclass
class Front:
    """A server before the object store, to which each request goes, but for what is said here.

    It does one change at a time: moto looks for an object and puts it in two steps, a real store in one.
    """

    store: str
    address: str = ""
    #: drop the condition of each put, as a store does that knows of none
    ignores_conditions: bool = False
    #: how many puts with a condition meet another request to the same object
    conflicts: int = 0
    #: of the change of that number the reply is lost, and from then on nothing is answered
    lost: int | None = None
    #: the reply to a change of such an object is lost, once
    loses: str | None = None
    changes: list[str] = field(default_factory=list)
    one_change: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes] | None:
        """None: no reply."""
        if method in ("GET", "HEAD"):
            return None if self._is_silent() else self._ask(method, path, headers, body)
        with self.one_change:
            if self._is_silent():
                return None
            self.changes.append(f"{method} {re.sub(r'[0-9a-f-]{32,36}', '*', urlsplit(path).path)}")
            condition = next((name for name in headers if name.lower() == "if-none-match"), None)
            if condition and self.conflicts:
                self.conflicts -= 1
                said = b"<Error><Code>ConditionalRequestConflict</Code><Message>another request</Message></Error>"
                return 409, {"Content-Type": "application/xml"}, said
            if condition and self.ignores_conditions:
                del headers[condition]
            answer = self._ask(method, path, headers, body)
            if self.loses and path.endswith(self.loses):
                self.loses = None
                return None
            return None if self._is_silent() else answer

    def _is_silent(self) -> bool:
        return self.lost is not None and len(self.changes) > self.lost

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        connection = HTTPConnection(self.store, timeout=patience())
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@contextmanager
def front_of(endpoint: str) -> Iterator[Front]:
    front = Front(urlsplit(endpoint).netloc)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits for the client to acknowledge its headers

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            passed = {name: value for name, value in self.headers.items() if name.lower() not in ("expect",)}
            answer = front.answer(self.command, self.path, passed, body)
            if answer is None:
                self.close_connection = True
                return
            status, headers, data = answer
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                    self.send_header(name, value)
            self.send_header("Content-Length", headers["Content-Length"] if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    front.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
