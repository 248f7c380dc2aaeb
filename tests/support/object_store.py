"""An object store that speaks S3: moto's server, in a process of its own.

with object_store(folder) as store:
    store.make_bucket("lake")
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.serving import serving
from tests.support.waiting import patience


@dataclass(frozen=True)
class ObjectStore:
    endpoint: str

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, as in a connection of type `iceberg`."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "tester",
            "s3.secret-access-key": "planted-object-store-key",
        }

    def make_bucket(self, name: str) -> None:
        """``name`` has three letters or more."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=patience()):
            pass


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, f"{endpoint}/moto-api/", folder / "moto.log"):
        yield ObjectStore(endpoint)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store
