"""The Hive Metastores of tests, each in a process of its own: `demo.local_hive`, with the jars of a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo import local_hive
from demo.local_hive import HiveServer, sparks_jars
from tests.support.serving import downloaded
from tests.support.waiting import patience

#: The one that Spark 4 brings: it refuses to alter a table whose metadata are others than expected (HIVE-26882).
VERSION = "2.3.10"
#: One that does not know of that.
OLD = "2.3.9"

#: Of each version the jars that set it apart, with their SHA-256; all others are those that Spark brings.
_JARS = {
    VERSION: {
        "org/apache/hive/hive-metastore/2.3.10/hive-metastore-2.3.10.jar": (
            "20786e707c40793b5e23688c61dc1959b3c828a821945712a530983cb7ea6c24"
        ),
        "org/apache/thrift/libthrift/0.16.0/libthrift-0.16.0.jar": (
            "b311ad08f7dc5ba90139910ec8619460914a4a2952f738603f1d7803ffdbe0a8"
        ),
    },
    OLD: {
        "org/apache/hive/hive-metastore/2.3.9/hive-metastore-2.3.9.jar": (
            "224b4a59344ff8136a68c0033801390f20d4d01c30ea5fd5dd9c4592f9c8a9ef"
        ),
        "org/apache/thrift/libthrift/0.12.0/libthrift-0.12.0.jar": (
            "28478ea7b296ff569aae07271ddaf1d2118bcb325495f25a2d323891cfc46c68"
        ),
    },
}


@contextmanager
def hive_metastore(folder: Path, version: str = VERSION, lock_timeout: int = 10) -> Iterator[HiveServer]:
    """See :func:`demo.local_hive.hive_metastore`."""
    with local_hive.hive_metastore(
        folder, jars=_jars(version), lock_timeout=lock_timeout, patience=patience()
    ) as server:
        yield server


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveServer]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as server:
        yield server


@pytest.fixture(scope="session")
def old_hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveServer]:
    with hive_metastore(tmp_path_factory.mktemp("old_hive"), OLD) as server:
        yield server


def _jars(version: str) -> list[Path]:
    """The server's class path."""
    own = {path.rpartition("/")[2]: (path, digest) for path, digest in _JARS[version].items()}
    others = {path.rpartition("/")[2] for jars in _JARS.values() for path in jars} - set(own)
    brought = [jar for jar in sparks_jars() if jar.name not in others]
    names = {jar.name for jar in brought}
    return [*brought, *(downloaded(*said) for name, said in own.items() if name not in names)]
