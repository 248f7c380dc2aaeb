"""Tables in AWS Glue, by its own API: a table's parameter `metadata_location` is the pointer.

A pointer moves by an UpdateTable that names the version which it was read at, and which Glue refuses when there is a
newer one. Iceberg's own catalog does the same in `org.apache.iceberg.aws.glue.GlueTableOperations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_barrier.protocol.errors import (
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
    MissingTableError,
)
from airflow_barrier.tables._catalog import Draft, split
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._here import AtOnce
from airflow_barrier.tables._metadata import Document
from airflow_barrier.tables._metastore import LOCATION, PREVIOUS, MetastoreTables, overtaken, pointer_of
from airflow_barrier.tables._retries import OvertakenError
from airflow_barrier.tables.spark_catalog import SparkCatalog

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog

#: Requests at once: no more than botocore keeps connections for.
_AT_ONCE = 8
_RETRIES = "glue.max-retries"
#: What Glue says when the version is no longer the table's, and of a table or a database that is not there.
_STALE, _MISSING = "ConcurrentModificationException", "EntityNotFoundException"
#: What AWS says of credentials that it does not take, or that may not do this.
_REFUSED = (
    "AccessDeniedException",
    "ExpiredTokenException",
    "InvalidSignatureException",
    "UnrecognizedClientException",
)


def connect(
    uri: str,
    warehouse: str,
    catalog_name: str,
    properties: Mapping[str, str],
    documents: Documents,
    *,
    atomic: bool,  # it is not, whatever the connection says
) -> MetastoreTables:
    """``uri``: `glue://` and the region. Without keys in ``properties`` boto3 finds credentials itself."""
    pointers = GluePointers(uri, catalog_name, {"warehouse": warehouse, "glue.region": _region(uri), **properties})
    return MetastoreTables(pointers, documents, f"{warehouse.rstrip('/')}/_barrier/catalog")


def spark_catalog(uri: str, warehouse: str, properties: Mapping[str, str]) -> SparkCatalog:
    """Credentials are Spark's own: a role, as a rule."""
    own = {name: properties[name] for name in ("glue.id", "glue.endpoint") if name in properties}
    options = {"type": "glue", "warehouse": warehouse, "client.region": _region(uri), **own}
    return SparkCatalog(options, modules=("iceberg-aws-bundle",))


def _region(uri: str) -> str:
    region = urlsplit(uri).netloc
    if not region:
        raise ConfigurationError(f"catalog: expected glue:// and a region, as glue://eu-central-1, found {uri!r}")
    return region


def _number(text: str) -> int:
    """boto3 takes it as a number only."""
    if not text.isdecimal():
        raise ConfigurationError(f"{_RETRIES}: expected a number, found {text!r}")
    return int(text)


class GluePointers:
    """Implements :class:`~airflow_barrier.tables._metastore.Pointers`."""

    def __init__(self, uri: str, catalog_name: str, properties: Mapping[str, str]) -> None:
        self._uri, self._name, self._properties = uri, catalog_name, dict(properties)
        self._at_once = AtOnce(_AT_ONCE)

    @property
    def title(self) -> str:
        return f"AWS Glue at {self._properties.get('glue.endpoint') or self._uri}"

    @cached_property
    def catalog(self) -> GlueCatalog:
        from pyiceberg.catalog.glue import GlueCatalog

        properties: dict[str, Any] = {**self._properties}
        if _RETRIES in properties:
            properties[_RETRIES] = _number(properties[_RETRIES])
        with self.translated():
            return GlueCatalog(self._name, **properties)

    def close(self) -> None:
        self._at_once.close()
        if "catalog" in self.__dict__:
            self.catalog.glue.close()

    def read(self, tables: Iterable[str]) -> dict[str, str]:
        names = sorted(set(tables))
        rows = self._at_once(self._found, names)
        return {table: self._location(table, row) for table, row in zip(names, rows, strict=True)}

    def move(self, table: str, draft: Draft, before: Document, after: Document) -> None:
        row = self._found(table)
        location = self._location(table, row)
        if location != draft.based_on:  # safety: glue-looks-at-the-pointer
            raise overtaken(self.title, table, location)
        parameters = {**row["Parameters"], LOCATION: draft.location, PREVIOUS: draft.based_on}
        self._update(table, {**row, "Parameters": parameters})

    def prove(self, table: str) -> dict[str, str]:
        row = self._found(table)
        self._update(table, row)
        try:
            self._update(table, row)
        except OvertakenError:
            return {}
        raise ConfigurationError(  # safety: glue-versions-are-proved
            f"{self.title}: expected it to refuse an UpdateTable whose VersionId is no longer the table's, as AWS Glue "
            "does, found that it took it, so that one commit could overwrite another. Take another catalog"
        )

    def _found(self, table: str) -> dict[str, Any]:
        database, name = split(table)
        with self.translated(table):
            found: dict[str, Any] = self.catalog.glue.get_table(DatabaseName=database, Name=name)["Table"]
        return found

    def _location(self, table: str, row: Mapping[str, Any]) -> str:
        return pointer_of(self.title, table, row.get("Parameters"), row.get("TableType"))

    def _update(self, table: str, row: Mapping[str, Any]) -> None:
        """Put ``row`` in the place of the version that it was read at."""
        glue = self.catalog.glue
        taken = glue.meta.service_model.shape_for("TableInput").members
        with self.translated(table):
            glue.update_table(
                DatabaseName=split(table)[0],
                TableInput={name: value for name, value in row.items() if name in taken},
                SkipArchive=self._properties.get("glue.skip-archive", "true").lower() == "true",
                VersionId=row["VersionId"],  # safety: glue-compares-versions
            )

    @contextmanager
    def translated(self, table: str | None = None) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ProfileNotFound
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise MissingTableError(
                f"{self.title}: {error}; create it, or correct its name or the connection's"
            ) from error
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == _STALE and table is not None:
                raise overtaken(self.title, table) from error
            if code == _MISSING:
                raise MissingTableError(
                    f"expected {f'table {table}' if table else 'it'} in {self.title}, found none ({error}); create "
                    "the table, or correct its name or the connection's"
                ) from error
            if code in _REFUSED:
                raise self._refused(f"{code} of {error.operation_name}") from error
            raise self._unavailable(str(error)) from error
        except (NoCredentialsError, ProfileNotFound) as error:
            raise self._refused(str(error)) from error
        except BotoCoreError as error:
            raise self._unavailable(str(error)) from error

    def _refused(self, said: str) -> CatalogRefusedError:
        return CatalogRefusedError(
            f"{self.title}: expected it to accept this deployment's requests, found {said}; it needs glue:GetDatabase, "
            "glue:GetDatabases, glue:GetTable and glue:UpdateTable (glue:CreateDatabase, glue:CreateTable and "
            "glue:DeleteTable for tables that are made): mend the role or the keys, then try again"
        )

    def _unavailable(self, said: str) -> CatalogUnavailableError:
        return CatalogUnavailableError(
            f"{self.title}: expected it to answer, found {said[:300]}; check the region and the network, then try again"
        )
