"""An object store in memory that speaks as much S3 as pyarrow asks, and whose every answer takes some milliseconds.

A moto of its own takes more CPU for a hundred tables than they do.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_MISSING = b"<Error><Code>NoSuchKey</Code><Message>none of this key</Message></Error>"


@dataclass
class SlowStore:
    """``counts``: the requests by kind, such as `GET`, `LIST` and `POST uploads`."""

    seconds: float
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    port: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, as in a connection of type `iceberg`."""
        keys = {"s3.access-key-id": "tester", "s3.secret-access-key": "planted-object-store-key"}
        return {"s3.endpoint": f"http://127.0.0.1:{self.port}", "s3.region": "us-east-1", **keys}

    async def run(self, listening: threading.Event, over: Callable[[], Awaitable[object]]) -> None:
        """Answer for as long as it is not ``over``."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=2**20)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await over()
        server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection, until the client hangs up or all is over."""
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                await self.reply(reader, writer)

    async def reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        method, target, _ = line.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "transfer-encoding" in headers:
            body = b"".join([chunk async for chunk in _chunks(reader)])
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        if "aws-chunked" in headers.get("content-encoding", ""):
            inner = asyncio.StreamReader()
            inner.feed_data(body)
            body = b"".join([chunk async for chunk in _chunks(inner)])
        await asyncio.sleep(self.seconds)
        status, answer, more = self.answer(method, target, headers, body)
        sent = {"Content-Length": str(len(answer)), "ETag": '"e"', "Last-Modified": "Mon, 05 Jan 2026 00:00:00 GMT"}
        said = "".join(f"{name}: {value}\r\n" for name, value in {**sent, **more}.items())
        reply = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{said}\r\n".encode()
        writer.write(reply if method == "HEAD" else reply + answer)

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and further headers."""
        url = urlsplit(target)
        key, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        kind = "".join(f" {name}" for name in ("uploads", "uploadId", "delete") if name in query)
        self.counts["LIST" if "list-type" in query else method + kind] += 1
        if "list-type" in query:
            begin = f"{key.rstrip('/')}/{query.get('prefix', [''])[0]}"
            found = sorted(name for name in self.objects if name.startswith(begin))
            keys = "".join(
                f"<Contents><Key>{escape(name.split('/', 2)[2])}</Key><Size>{len(self.objects[name])}</Size></Contents>"
                for name in found
            )
            return 200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode(), {}
        if method == "POST" and "delete" in query:
            for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                self.objects.pop(f"{key.rstrip('/')}/{name}", None)
            return 200, b"<DeleteResult></DeleteResult>", {}
        if method == "POST":
            if "uploadId" in query:
                self.objects[key] = b"".join(part for _, part in sorted(self.parts.pop(key).items()))
            root = "InitiateMultipartUploadResult" if "uploads" in query else "CompleteMultipartUploadResult"
            return 200, f"<{root}><UploadId>u</UploadId><ETag>e</ETag></{root}>".encode(), {}
        if method == "PUT":
            if "partNumber" in query:
                self.parts.setdefault(key, {})[int(query["partNumber"][0])] = body
            else:
                self.objects[key] = body
            return 200, b"", {}
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, b"", {}
        if key not in self.objects:
            return 404, _MISSING, {}
        data = self.objects[key]
        if part := re.match(r"bytes=(\d+)-(\d+)", headers.get("range", "")):
            first, last = int(part[1]), min(int(part[2]), len(data) - 1)
            return 206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return 200, data, {}


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of a body in chunks, whose last one is empty; a trailer may follow that."""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readuntil(b"\r\n")).strip():
        pass


@contextmanager
def slow_store(seconds: float) -> Iterator[SlowStore]:
    """The store, and a thread that answers for it."""
    store, listening, over = SlowStore(seconds), threading.Event(), threading.Event()
    wait = partial(asyncio.to_thread, over.wait)
    thread = threading.Thread(target=lambda: asyncio.run(store.run(listening, wait)))
    thread.start()
    listening.wait()
    try:
        yield store
    finally:
        over.set()
        thread.join()
