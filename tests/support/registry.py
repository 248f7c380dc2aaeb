"""A real schema registry, Apicurio's, which keeps its schemas in memory and speaks Confluent's API.

It lets everybody in: :func:`locked` is a proxy before one, which asks for a login as a gateway does.
"""

from __future__ import annotations

import base64
import json
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from airflow_barrier.project.java import find_java
from airflow_barrier.protocol.credentials import Credentials
from demo.jars import downloading
from tests.support.ports import free_port
from tests.support.serving import JARS, downloaded, serving
from tests.support.waiting import patience

_NAME = "apicurio-registry-app-3.0.9"
_ARCHIVE = f"io/apicurio/apicurio-registry-app/3.0.9/{_NAME}-all.tar.gz"
_DIGEST = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_API = "apis/ccompat/v7"
_JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True)
class Registry:
    url: str

    def credentials(self, login: str | None = None, password: str | None = None) -> Credentials:
        """With the port in its field, as most connections have it."""
        parts = urlsplit(self.url)
        host = f"{parts.scheme}://{parts.hostname}{parts.path}"
        return Credentials("registry_default", host, parts.port, login, password)

    def register(self, subject: str, schema: Any, kind: str = "AVRO", references: Any = ()) -> int:
        """The schema's id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = json.dumps({"schema": text, "schemaType": kind, "references": list(references)}).encode()
        return int(self._asked(f"subjects/{quote(subject, safe='')}/versions", body)["id"])

    def delete(self, subject: str, version: int) -> None:
        self._asked(f"subjects/{quote(subject, safe='')}/versions/{version}", method="DELETE")

    def _asked(self, path: str, body: bytes | None = None, method: str | None = None) -> Any:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=patience()) as answer:
            return json.load(answer)


@contextmanager
def locked(registry: Registry, login: str, password: str) -> Iterator[Registry]:
    """Lets nobody else in."""
    wanted = "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != wanted:
                self.send_error(401)
                return
            with urllib.request.urlopen(f"{registry.url.removesuffix(_API)}{self.path[1:]}") as answer:
                self.send_response(answer.status)
                self.end_headers()
                self.wfile.write(answer.read())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Registry(f"http://127.0.0.1:{server.server_port}/{_API}")
        server.shutdown()


@contextmanager
def registry_server(folder: Path) -> Iterator[Registry]:
    """``folder`` is for its log."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/{_API}"
    options = {"quarkus.http.host": "127.0.0.1", "quarkus.http.port": str(port), "quarkus.management.port": "0"}
    command = [find_java(), *_JAVA, *(f"-D{key}={value}" for key, value in options.items()), "-jar"]
    with serving([*command, str(_unpacked() / f"{_NAME}-runner.jar")], f"{url}/subjects", folder / "registry.log"):
        yield Registry(url)


def _unpacked() -> Path:
    archive, own = downloaded(_ARCHIVE, _DIGEST), JARS / _NAME
    with downloading(JARS):
        if not (own / "unpacked").exists():
            with tarfile.open(archive) as packed:
                packed.extractall(own, filter="data")
            (own / "unpacked").touch()
    return own


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Tests make subjects in it and leave those of others alone."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server
