"""AWS Glue, with the object store of its tables: moto's server, in a process of its own.

moto takes every UpdateTable. This server refuses one whose `VersionId` is not the table's current one, as AWS does.

    with glue_server(folder) as server:
        GlueCatalog("glue", **server.properties)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import pytest

from tests.support.object_store import ObjectStore
from tests.support.ports import free_port
from tests.support.serving import serving

if TYPE_CHECKING:
    from moto.core.responses import ActionResult
    from moto.glue.responses import GlueResponse

BUCKET = "lake"


@dataclass(frozen=True)
class GlueServer:
    """``endpoint`` is Glue's and S3's."""

    endpoint: str

    uri = "glue://us-east-1"

    @property
    def warehouse(self) -> str:
        """The root of the tables; its bucket is there."""
        return f"s3://{BUCKET}/warehouse"

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, as in a connection of type `iceberg`."""
        of_store = ObjectStore(self.endpoint).properties
        return {
            "glue.endpoint": self.endpoint,
            "glue.access-key-id": of_store["s3.access-key-id"],
            "glue.secret-access-key": of_store["s3.secret-access-key"],
            "warehouse": self.warehouse,
            **of_store,
        }


@contextmanager
def glue_server(folder: Path) -> Iterator[GlueServer]:
    """``folder`` is for its log; nothing is kept once the server stops."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.support.glue", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, f"{endpoint}/moto-api/", folder / "glue.log", {"PYTHONPATH": root}):
        ObjectStore(endpoint).make_bucket(BUCKET)
        yield GlueServer(endpoint)


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlueServer]:
    with glue_server(tmp_path_factory.mktemp("glue")) as server:
        yield server


def _refuse_stale_versions() -> None:
    """Make moto compare versions before it updates a table; its server answers several requests at a time."""
    from moto.glue.exceptions import GlueClientError
    from moto.glue.responses import GlueResponse

    update, alone = GlueResponse.update_table, Lock()

    def compare_and_update(response: GlueResponse) -> ActionResult:
        asked = response.parameters
        expected = asked.get("VersionId")
        with alone:
            if expected is not None:
                table = response.glue_backend.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
                if expected != table.as_dict()["VersionId"]:
                    said = "Update table failed due to concurrent modifications."
                    raise GlueClientError("ConcurrentModificationException", said)
            return update(response)

    GlueResponse.update_table = compare_and_update


if __name__ == "__main__":
    from moto.server import main

    _refuse_stale_versions()
    main()
