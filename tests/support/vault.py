"""A deployment behind passwords, and what a test greps for to see that none of them leaks.

Each planted password is one word, by which it is found however it is quoted, and characters that need quoting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from tests.support.postgresql import USER, PostgreSQL, without_password

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

_QUOTED = " @:/?#&=%s+'\"\\"
META = f"planted5c1f.meta{_QUOTED}"
CATALOG = f"planted5c1f.catalog{_QUOTED}"
WRONG = f"planted5c1f.wrong{_QUOTED}"
SUBMIT = f"planted5c1f.submit{_QUOTED}"
CONNECT = "planted5c1f.connect"  # it travels in a URL, which the Spark provider does not quote
PLANTED = b"planted5c1f"


@dataclass(frozen=True)
class Vault:
    """``url`` is the MetaService's, without password; the one that belongs to it is :data:`META`."""

    url: str
    connections: dict[str, dict[str, Any]]

    def environment(self) -> dict[str, str]:
        return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(one) for name, one in self.connections.items()}


@pytest.fixture(scope="session")
def vault(spark_place: SparkServer, postgresql: PostgreSQL) -> Iterator[Vault]:
    """Connections by name: the MetaService on PostgreSQL, the tables in the Spark server's catalog."""
    port = spark_place.url.rpartition(":")[2]
    with postgresql.database() as owned:
        postgresql.run(
            sql.SQL("CREATE ROLE vault LOGIN PASSWORD {} IN ROLE {}").format(sql.Literal(META), sql.Identifier(USER))
        )
        url = without_password(owned).replace(f"{USER}@", "vault@", 1)
        closed = url.replace(f":{postgresql.port}/", ":1/")

        def barrier(metaservice_url: str, password: str) -> dict[str, Any]:
            extra = {
                "metaservice_url": metaservice_url,
                "catalog_uri": f"sqlite:///{spark_place.catalog_db}",
                "catalog_password": CATALOG,
                "warehouse": spark_place.warehouse.as_uri(),
            }
            return {"conn_type": "barrier", "password": password, "extra": extra}

        yield Vault(
            url,
            {
                "vault": barrier(url, META),
                "vault_wrong_password": barrier(url, WRONG),
                "vault_wrong_host": barrier(closed, META),
                "vault_wrong_database": barrier(f"{url}_nowhere", META),
                # `localhost` and not its address: for that one the client sends a token without TLS
                "vault_connect": {
                    "conn_type": "spark_connect",
                    "host": "localhost",
                    "port": int(port),
                    "password": CONNECT,
                },
                "vault_submit": {"conn_type": "spark", "host": "local[1]", "password": SUBMIT},
            },
        )
    postgresql.run("DROP ROLE vault")


class CommandLines:
    """The command lines of all processes of the machine that live while the block runs, as often as they can be read.

    >>> with CommandLines() as seen:  # doctest: +SKIP
    ...     work()
    >>> seen.lines  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.lines: set[bytes] = set()
        self.looks = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="command-lines")

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.looks += 1
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        self.lines.add((entry / "cmdline").read_bytes())
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it ended while we looked


def leaks(*folders: Path) -> tuple[list[Path], int]:
    """The files below the folders that hold a planted password, and how many were looked into."""
    found, looked = [], 0
    walked = (Path(parent, name) for folder in folders for parent, _, names in os.walk(folder) for name in names)
    for path in walked:
        with suppress(FileNotFoundError):  # other tests drop tables meanwhile
            if PLANTED in path.read_bytes():
                found.append(path)
            looked += 1
    return found, looked
