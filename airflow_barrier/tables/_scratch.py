"""Scratch tables, on which it is found out what a catalog does; and the memory of that, so that it costs once a
deployment.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import BarrierError, CatalogRefusedError, ConfigurationError
from airflow_barrier.tables._documents import Documents

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Where the scratch tables are made, and dropped again.
NAMESPACE = "barrier_probe"


@dataclass(frozen=True)
class Proof:
    """The file in ``folder`` that says what was found of ``catalog``, of which it was ``declared`` how it publishes."""

    documents: Documents
    folder: str
    catalog: str
    declared: str

    @property
    def _location(self) -> str:
        return f"{self.folder}/{hashlib.sha256(f'{self.catalog} {self.declared}'.encode()).hexdigest()[:16]}.json"

    def recall(self) -> dict[str, Any] | None:
        """Return what was found; None: nobody has looked yet."""
        try:
            found: dict[str, Any] = json.loads(self.documents.read_bytes(self._location))
        except FileNotFoundError:
            return None
        return found

    def remember(self, **found: Any) -> None:
        text = json.dumps({"catalog": self.catalog, **found, "publishes": self.declared})
        self.documents.write_bytes(self._location, text.encode())


@contextmanager
def scratch_tables(
    catalog: Catalog, translated: Callable[[], AbstractContextManager[None]], count: int
) -> Iterator[list[str]]:
    """Make so many empty tables, and drop them at the end. ``translated`` raises this package's errors.

    Raises CatalogRefusedError, ConfigurationError.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    tables = [f"{NAMESPACE}.{uuid.uuid4().hex}" for _ in range(count)]
    try:
        try:
            with translated():
                catalog.create_namespace_if_not_exists(NAMESPACE)
                for table in tables:
                    catalog.create_table(table, Schema(NestedField(1, "id", LongType())))
        except (CatalogRefusedError, ConfigurationError) as error:
            raise type(error)(
                f"{error}. To find out what the catalog can do, this makes (and drops) empty tables in the "
                f"namespace {NAMESPACE}: let an administrator create it, where the connection may create tables"
            ) from error
        yield tables
    finally:
        for table in tables:
            with suppress(BarrierError), translated():  # what stays is empty, and bears a name of its own
                catalog.drop_table(table)
