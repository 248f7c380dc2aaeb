"""Tables in a Hive Metastore, by its Thrift API: a table's parameter `metadata_location` is the pointer.

A pointer moves under the metastore's exclusive lock on the table, which Spark and others take as well, and by a
comparison in the metastore itself, where it has one (HIVE-26882). Iceberg's own catalog does the same in
`org.apache.iceberg.hive.HiveTableOperations`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_barrier.protocol.errors import CatalogUnavailableError, ConfigurationError, MissingTableError
from airflow_barrier.tables._catalog import Draft, split
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import MAIN, Document, ref_of, snapshots_of
from airflow_barrier.tables._metastore import LOCATION, PREVIOUS, MetastoreTables, overtaken, pointer_of
from airflow_barrier.tables._retries import OvertakenError
from airflow_barrier.tables.spark_catalog import SparkCatalog

if TYPE_CHECKING:
    from hive_metastore.ThriftHiveMetastore import Client
    from pyiceberg.catalog.hive import HiveCatalog

log = logging.getLogger(__name__)

#: Seconds to wait for an answer, and for the lock on a table: Iceberg's own limit in Spark, too.
_TIMEOUT, _LOCK_TIMEOUT = 120, 180
#: Seconds between two looks at a lock that others hold.
_PAUSE = 0.1
#: Spark locks a table by default. A driver that sleeps past its lock overwrites what came since. With this property
#: Spark has the metastore compare instead, which Iceberg calls safe where the metastore can.
_BY_COMPARISON = {"engine.hive.lock-enabled": "false"}
#: What the metastore says of a comparison that did not hold.
_COMPARED = "The table has been modified"
#: Hive's numbers of a table, by the summary of the snapshot that they are told in.
_NUMBERS = {"numFiles": "total-data-files", "numRows": "total-records", "totalSize": "total-files-size"}
#: What Iceberg repeats there of the current snapshot, which the next commit by another engine puts in anew.
_OF_SNAPSHOT = ("current-snapshot-id", "current-snapshot-timestamp-ms", "current-snapshot-summary")


def connect(
    uri: str,
    warehouse: str,
    catalog_name: str,
    properties: Mapping[str, str],
    documents: Documents,
    *,
    atomic: bool,  # it is not, whatever the connection says
) -> MetastoreTables:
    """``uri``: `thrift://host:9083`; of several servers of one metastore one after the other, with commas between."""
    pointers = HivePointers(uri, catalog_name, {"warehouse": warehouse, **properties})
    return MetastoreTables(pointers, documents, f"{warehouse.rstrip('/')}/_barrier/catalog")


def spark_catalog(uri: str, warehouse: str, properties: Mapping[str, str]) -> SparkCatalog:
    """The metastore says where the tables of a database lie. Who enters is for Spark's own conf (Kerberos) to say."""
    return SparkCatalog({"type": "hive", "uri": uri})


class HivePointers:
    """Implements :class:`~airflow_barrier.tables._metastore.Pointers`."""

    def __init__(self, uri: str, catalog_name: str, properties: Mapping[str, str]) -> None:
        self._name = catalog_name
        self._properties = {**properties, "uri": uri}
        self._servers = _Servers(self._properties)

    @property
    def title(self) -> str:
        return f"Hive Metastore at {self._properties['uri']}"

    @cached_property
    def catalog(self) -> HiveCatalog:
        from pyiceberg.catalog.hive import HiveCatalog

        class BoundedHiveCatalog(HiveCatalog):
            """It waits no longer than this, and finds the server that answers."""

            @staticmethod
            def _create_hive_client(properties: dict[str, str]) -> Any:
                return _Servers(properties)

        return BoundedHiveCatalog(self._name, **self._properties)

    def close(self) -> None:
        """Nothing to do: each use has a connection of its own."""

    def read(self, tables: Iterable[str]) -> dict[str, str]:
        with self.translated(), self._servers as client:
            return {table: self._location(table, self._found(client, table)) for table in sorted(set(tables))}

    def move(self, table: str, draft: Draft, before: Document, after: Document) -> None:
        with self.translated(), self._servers as client, self._locked(client, table), self.translated():
            row = self._found(client, table)
            location = self._location(table, row)
            if location != draft.based_on:  # safety: metastore-looks-under-its-lock
                raise overtaken(self.title, table, location)
            row.parameters = _parameters(row.parameters, draft, before, after)
            self._alter(client, table, row, draft.based_on)

    def prove(self, table: str) -> dict[str, str]:
        with self.translated(), self._servers as one, _Servers(self._properties) as other:
            with self._locked(one, table), self.translated():
                held = other.lock(_request(table))
                other.unlock(_unlock(held.lockid))
            if held.state == _states().ACQUIRED:
                raise ConfigurationError(  # safety: metastore-locks-are-proved
                    f"{self.title}: expected the exclusive lock on a table to keep others waiting, found that it gave "
                    "it to two at once, so that one commit could overwrite another. Switch its locks on: it needs the "
                    "tables of transactions in its database (schematool makes them)"
                )
            row = self._found(one, table)
            try:
                self._alter(one, table, row, f"not {self._location(table, row)}")
            except OvertakenError:
                return _BY_COMPARISON
        log.warning(
            "%s does not compare where a table is while it is moved (HIVE-26882): a process, Spark's too, that sleeps "
            "within its lock for longer than hive.txn.timeout may overwrite a commit when it wakes. Hive 2.3.10 does",
            self.title,
        )
        return {}

    # --- the metastore's rows ---------------------------------------------------------------------

    def _found(self, client: Client, table: str) -> Any:
        from hive_metastore.ttypes import NoSuchObjectException

        database, name = split(table)
        try:
            return client.get_table(database, name)
        except NoSuchObjectException as error:
            raise MissingTableError(
                f"expected table {table} in {self.title}, found none ({error.message}); create the table, or correct "
                "its name or the connection's"
            ) from error

    def _location(self, table: str, row: Any) -> str:
        return pointer_of(self.title, table, row.parameters, row.tableType)

    def _alter(self, client: Client, table: str, row: Any, expected: str) -> None:
        from hive_metastore.ttypes import EnvironmentContext, InvalidOperationException, MetaException

        compared = {"expected_parameter_key": LOCATION, "expected_parameter_value": expected}
        context = EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true", **compared})
        try:
            client.alter_table_with_environment_context(*split(table), row, context)
        except MetaException as error:
            if _COMPARED in (error.message or ""):
                raise overtaken(self.title, table) from error
            raise
        except InvalidOperationException as error:
            raise MissingTableError(
                f"expected table {table} in {self.title} while it was committed to, found it gone ({error.message})"
            ) from error

    @contextmanager
    def _locked(self, client: Client, table: str) -> Iterator[None]:
        """Hold the metastore's exclusive lock on the table. That of a process that died goes after a while."""
        states = _states()
        answer = client.lock(_request(table))
        lock, deadline, told = answer.lockid, time.monotonic() + _LOCK_TIMEOUT, False
        try:
            while answer.state == states.WAITING and time.monotonic() < deadline:
                if not told:
                    log.info("table %s: waits for its lock in %s, which another one holds", table, self.title)
                    told = True
                time.sleep(_PAUSE)
                answer = client.check_lock(_check(lock))
            if answer.state != states.ACQUIRED:
                raise CatalogUnavailableError(
                    f"{self.title}: expected the exclusive lock on {table} within {_LOCK_TIMEOUT} seconds, found that "
                    "others hold it. That of a process that died goes by itself (hive.txn.timeout); see who holds it "
                    "by SHOW LOCKS in Hive, then try again"
                )
            yield
        finally:
            with suppress(Exception):  # it goes by itself, and what was raised in between says more
                client.unlock(_unlock(lock))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """See :class:`~airflow_barrier.tables._metastore.Pointers`. The client's errors cannot leave another block of
        this kind: they are immutable, and Python notes in them where they came from.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        from thrift.Thrift import TApplicationException, TException

        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise MissingTableError(
                f"{self.title}: {error}; create it, or correct its name or the connection's"
            ) from error
        except TApplicationException as error:
            if error.type != TApplicationException.UNKNOWN_METHOD:
                raise self._unavailable(str(error)) from error
            raise ConfigurationError(
                f"{self.title}: expected a server of Hive 2.3 or 3.1, found {error}. Iceberg in Spark asks for the "
                "same, so it does not work with this server either: take one of Hive 3.1, or a REST catalog"
            ) from error
        except (TException, OSError) as error:
            raise self._unavailable(getattr(error, "message", None) or str(error) or type(error).__name__) from error

    def _unavailable(self, said: str) -> CatalogUnavailableError:
        first = said.splitlines()[0] if said else ""
        return CatalogUnavailableError(
            f"{self.title}: expected it to answer, found {first[:300]}; check that it and its database run, and "
            "what this user may do there, then try again"
        )


class _Servers(threading.local):
    """The servers of one metastore. Each ``with`` has a connection of its own, to the first one that takes it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._open: list[Any] = []

    def __enter__(self) -> Client:
        from hive_metastore.ThriftHiveMetastore import Client
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TTransport import TTransportException

        *others, last = self._properties["uri"].split(",")
        for uri in (*others, last):
            transport = self._transport(uri)
            try:
                transport.open()
                break
            except TTransportException:
                if uri is last:
                    raise
        client = Client(TBinaryProtocol(transport))
        if user := self._properties.get("ugi"):
            client.set_ugi(*user.split(":"))
        self._open.append(transport)
        return client

    def __exit__(self, *_: object) -> None:
        self._open.pop().close()

    def _transport(self, uri: str) -> Any:
        from pyiceberg.utils.properties import property_as_bool
        from thrift.transport import TSocket, TTransport

        place = urlsplit(uri.strip())
        plain = TSocket.TSocket(place.hostname, place.port or 9083)
        plain.setTimeout(_TIMEOUT * 1000)
        if not property_as_bool(dict(self._properties), "hive.kerberos-authentication", False):
            return TTransport.TBufferedTransport(plain)
        service = self._properties.get("hive.kerberos-service-name", "hive")
        return TTransport.TSaslClientTransport(plain, host=place.hostname, service=service)


def _parameters(there: Mapping[str, str], draft: Draft, before: Document, after: Document) -> dict[str, str]:
    """Return a row's parameters with the pointer moved, and with what they repeat of the document; others stay."""
    properties, gone = after.get("properties") or {}, before.get("properties") or {}
    kept = {
        name: value for name, value in there.items() if name not in (*_OF_SNAPSHOT, *(gone.keys() - properties.keys()))
    }
    main = ref_of(after, MAIN)
    summary = snapshots_of(after)[main]["summary"] if main is not None else {}
    numbers = {name: summary[told] for name, told in _NUMBERS.items() if told in summary}
    return {**kept, **properties, **numbers, LOCATION: draft.location, PREVIOUS: draft.based_on}


def _request(table: str) -> Any:
    from hive_metastore.ttypes import LockComponent, LockLevel, LockRequest, LockType

    database, name = split(table)
    component = LockComponent(
        type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname=database, tablename=name, isTransactional=True
    )
    return LockRequest(component=[component], user="airflow_barrier", hostname=socket.gethostname())


def _check(lock: int) -> Any:
    from hive_metastore.ttypes import CheckLockRequest

    return CheckLockRequest(lockid=lock)


def _unlock(lock: int) -> Any:
    from hive_metastore.ttypes import UnlockRequest

    return UnlockRequest(lockid=lock)


def _states() -> Any:
    from hive_metastore.ttypes import LockState

    return LockState
