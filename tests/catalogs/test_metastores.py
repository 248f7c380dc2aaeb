"""Tables in a Hive Metastore and in Glue: locks, versions, lost replies, and the errors that name what is wrong."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from thrift.transport.TTransport import TTransportException

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import spark_conf
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.errors import (
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
    MissingTableError,
    Retryable,
)
from airflow_barrier.systems.spark_versions import SPARK_VERSIONS
from airflow_barrier.tables import CATALOGS, _hive_catalog
from airflow_barrier.tables._catalog import Draft
from airflow_barrier.tables._hive_catalog import HivePointers
from airflow_barrier.tables._metadata import Changes, Document
from airflow_barrier.tables._retries import OvertakenError
from airflow_barrier.tables.iceberg import IcebergTables
from tests.catalogs.engines import Pyiceberg
from tests.catalogs.lake import Lake, connect, stamp_of
from tests.support.glue import GlueServer
from tests.support.hive import HiveServer
from tests.support.metastores import METASTORES, Metastore
from tests.support.object_store import ObjectStore
from tests.support.ports import free_port
from tests.support.waiting import wait_for

HIVES, GLUE = METASTORES[:2], METASTORES[2:]
#: Iceberg's property of a table: whether who commits to it by Hive locks it, and then does not compare.
BY_LOCK = "engine.hive.lock-enabled"
SEEN = Changes(properties={"seen": "yes"})


@pytest.fixture
def lake(metastore: Metastore, tmp_path: Path) -> Iterator[Lake]:
    with connect(metastore, str(tmp_path)) as tables:
        tables.prove()  # as the first barrier does
        yield Lake(Pyiceberg(tables))


def see(lake: Lake, table: str) -> None:
    lake.tables._committer.commit({table: lambda *_: SEEN})


def pointers_of(lake: Lake) -> Any:
    return lake.tables._committer._pointers  # type: ignore[attr-defined]


# --- moving a pointer -----------------------------------------------------------------------------


@pytest.mark.kills("metastore-looks-under-its-lock", "glue-looks-at-the-pointer")
@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_a_pointer_moves_from_where_it_was_seen_only(lake: Lake) -> None:
    (table,) = lake.create("a")
    seen, document = lake.tables._committer.current(table)
    see(lake, table)
    now = lake.tables.metadata_locations([table])[table]
    with pytest.raises(OvertakenError, match=f"expected {table} to stay as it is for a moment"):
        pointers_of(lake).move(table, Draft(seen, seen), document, document)
    assert lake.tables.metadata_locations([table])[table] == now


@pytest.mark.parametrize("metastore", HIVES, indirect=True)
def test_a_move_waits_for_the_lock_that_another_one_holds(lake: Lake) -> None:
    (table,) = lake.create("a")
    pointers: HivePointers = pointers_of(lake)
    moving = threading.Thread(target=see, args=(lake, table))
    with pointers._servers as client:
        with pointers._locked(client, table):
            moving.start()
            wait_for("the other one to ask for the lock", lambda: len(_locks(client, table)) == 2)
            assert lake.seen(table) is None
        wait_for("it to get the lock, and to give it back", lambda: not _locks(client, table))
    moving.join()
    assert lake.seen(table) == "yes"


def _locks(client: Client, table: str) -> list[Any]:
    from hive_metastore.ttypes import ShowLocksRequest

    database, name = table.split(".")
    return list(client.show_locks(ShowLocksRequest(dbname=database, tablename=name)).locks or ())


@pytest.mark.parametrize("metastore", HIVES[:1], indirect=True)
def test_a_committer_that_slept_past_its_lock_overwrites_nothing(lake: Lake) -> None:
    """The metastore compares once more, while it moves the pointer."""
    (table,) = lake.create("a")
    pointers: HivePointers = pointers_of(lake)
    with pointers._servers as client:
        row = pointers._found(client, table)
        seen = row.parameters["metadata_location"]
        see(lake, table)  # as others do when the lock has gone
        with pytest.raises(OvertakenError):
            pointers._alter(client, table, row, seen)
    assert lake.seen(table) == "yes"


@pytest.mark.parametrize("metastore", HIVES, indirect=True)
def test_the_metastore_repeats_what_it_is_told_of_a_table(lake: Lake) -> None:
    (table,) = lake.create("a")
    pointers: HivePointers = pointers_of(lake)

    def told() -> dict[str, str]:
        with pointers._servers as client:
            return dict(client.get_table(*table.split(".")).parameters)

    lake.tables.take_in([table])
    assert told()["write.wap.enabled"] == "true"
    lake.tables.publish([lake.stage(table, 1, None, [1, 2])])
    assert (told()["numRows"], told()["numFiles"]) == ("2", "1")
    assert told()["previous_metadata_location"] != told()["metadata_location"]
    lake.tables.give_back([table], "shop", ())
    assert "write.wap.enabled" not in told()
    assert told()["table_type"] == "ICEBERG", "what is not of the document stays"


@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_engines_compare_where_the_metastore_does(lake: Lake, metastore: Metastore) -> None:
    """From the first attempt on until the table leaves; who has said it otherwise is left alone."""
    table, other = lake.create("a", "b")
    lake.tables._committer.commit({other: lambda *_: Changes(properties={BY_LOCK: "true"})})
    lake.tables.prepare({table: None, other: None}, stamp_of(1))

    def told(name: str) -> str | None:
        return lake.engine.document(name)["properties"].get(BY_LOCK)

    compares = isinstance(metastore, HiveServer) and "old_hive" not in metastore.warehouse
    assert (told(table), told(other)) == ("false" if compares else None, "true")
    lake.tables.give_back([table, other], "shop", ())
    assert (told(table), told(other)) == (None, "true")


# --- replies that are lost ------------------------------------------------------------------------


def lost_once(call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The call is done, and its reply is lost, the first time."""
    done: list[int] = []

    def calling(*arguments: Any, **options: Any) -> Any:
        answer = call(*arguments, **options)
        done.append(1)
        if len(done) == 1:
            raise error
        return answer

    return calling


@pytest.mark.kills("files-of-an-unknown-move")
@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_a_move_whose_reply_is_lost_is_found_done(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = lake.create("a")
    if isinstance(pointers_of(lake), HivePointers):
        call = "alter_table_with_environment_context"
        monkeypatch.setattr(Client, call, lost_once(getattr(Client, call), TTransportException(message="gone")))
    else:
        from botocore.exceptions import ConnectionClosedError

        glue = pointers_of(lake).catalog.glue
        lost = lost_once(glue.update_table, ConnectionClosedError(endpoint_url="glue"))
        monkeypatch.setattr(glue, "update_table", lost)
    lake.tables.prepare({table: None}, stamp_of(1))
    (root,) = lake.tables.load(table).metadata.snapshots
    assert lake.tables.load(table).io.new_input(root.manifest_list).exists()
    assert lake.rows(table, root.snapshot_id) == []


@pytest.mark.kills("files-of-a-repeated-move")
@pytest.mark.parametrize("metastore", GLUE, indirect=True)
def test_a_move_that_is_sent_twice_keeps_what_it_has_written(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As botocore does when a reply is lost: the second is refused, for the first has come through."""
    (table,) = lake.create("a")
    glue = pointers_of(lake).catalog.glue
    update = glue.update_table

    def twice(**asked: Any) -> Any:
        monkeypatch.setattr(glue, "update_table", update)
        update(**asked)
        return update(**asked)

    monkeypatch.setattr(glue, "update_table", twice)
    lake.tables.prepare({table: None}, stamp_of(1))
    (root,) = lake.tables.load(table).metadata.snapshots
    assert lake.rows(table, root.snapshot_id) == []


@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_what_loses_a_race_leaves_no_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = lake.create("a")
    written: list[str] = []
    kept: list[str] = []
    documents = lake.tables._documents
    write = documents.write

    def writing(document: Document, previous: str) -> str:
        location = write(document, previous)
        if not written:
            written.append(location)
            see(lake, table)
        else:
            kept.append(location)
        return location

    monkeypatch.setattr(documents, "write", writing)
    lake.tables._committer.commit({table: lambda *_: Changes(properties={"also": "yes"})})
    assert not documents.exists(written[0])
    assert [documents.exists(location) for location in kept] == [True, True]
    assert lake.seen(table) == "yes"


# --- what is found out ----------------------------------------------------------------------------


@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_what_was_found_good_is_remembered(metastore: Metastore, tmp_path: Path) -> None:
    with connect(metastore, str(tmp_path)) as tables:
        tables.prove()
        assert list(tables.catalog.list_tables("barrier_probe")) == []
    (remembered,) = (tmp_path / "_barrier" / "catalog").iterdir()
    assert json.loads(remembered.read_text())["publishes"] == "roll-forward"
    before = remembered.stat()
    with connect(metastore, str(tmp_path)) as tables:
        tables.prove()
    assert remembered.stat() == before


@pytest.mark.kills("metastore-locks-are-proved")
@pytest.mark.parametrize("metastore", HIVES, indirect=True)
def test_a_metastore_whose_locks_keep_nobody_waiting_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from hive_metastore.ttypes import LockType

    def shared(table: str) -> Any:
        asked = request(table)
        asked.component[0].type = LockType.SHARED_READ
        return asked

    request = _hive_catalog._request
    monkeypatch.setattr(_hive_catalog, "_request", shared)
    (table,) = lake.create("a")
    with pytest.raises(ConfigurationError, match=r"gave it to two at once.*Switch its locks on"):
        pointers_of(lake).prove(table)


@pytest.mark.kills("glue-compares-versions", "glue-versions-are-proved")
def test_a_catalog_like_glue_that_compares_no_versions_is_refused(
    glue: GlueServer, s3: ObjectStore, tmp_path: Path
) -> None:
    """moto as it is."""
    properties = {**glue.properties, **s3.properties, "glue.endpoint": s3.endpoint}
    s3.make_bucket("lake")
    with (
        IcebergTables.connect(glue.uri, str(tmp_path), properties=properties) as tables,
        pytest.raises(ConfigurationError, match="refuse an UpdateTable whose VersionId is no longer the table's"),
    ):
        tables.prove()
    with connect(glue, str(tmp_path)) as tables:
        tables.prove()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_what_is_no_table_of_iceberg_is_named(lake: Lake) -> None:
    lake.tables.catalog.create_namespace(lake.namespace)
    table = f"{lake.namespace}.plain"
    pointers = pointers_of(lake)
    if isinstance(pointers, HivePointers):
        from hive_metastore.ttypes import SerDeInfo, StorageDescriptor
        from hive_metastore.ttypes import Table as HiveTable

        with pointers._servers as client:
            serde = SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe")
            storage = StorageDescriptor(cols=[], serdeInfo=serde, location=f"file:///tmp/{lake.namespace}")
            plain = HiveTable(dbName=lake.namespace, tableName="plain", sd=storage, tableType="EXTERNAL_TABLE")
            client.create_table(plain)
    else:
        told = {"Name": "plain", "TableType": "EXTERNAL_TABLE"}
        pointers.catalog.glue.create_table(DatabaseName=lake.namespace, TableInput=told)
    with pytest.raises(ConfigurationError, match=f"table {table}: expected a table of Iceberg in .*_TABLE"):
        lake.tables.mains([table])


@pytest.mark.parametrize("metastore", HIVES, indirect=True)
def test_what_the_metastore_refuses_while_it_is_locked_is_retryable(lake: Lake) -> None:
    (table,) = lake.create("a")
    pointers: HivePointers = pointers_of(lake)
    location, document = lake.tables._committer.current(table)
    too_long = {**document, "properties": {"x" * 300: "y"}}  # for a column of its database
    with pytest.raises(CatalogUnavailableError, match=r"Hive Metastore at .*: expected it to answer, found"):
        pointers.move(table, Draft(location, location), document, too_long)
    assert lake.tables.metadata_locations([table]) == {table: location}


@pytest.mark.parametrize("metastore", HIVES[:1], indirect=True)
def test_a_metastore_that_lacks_a_call_is_named(lake: Lake) -> None:
    """As Hive 4 lacks `get_table`; this one has no materialized views."""
    pointers: HivePointers = pointers_of(lake)
    with (
        pytest.raises(ConfigurationError, match=r"expected a server of Hive 2\.3 or 3\.1, found Invalid method name"),
        pointers.translated(),
        pointers._servers as client,
    ):
        client.get_lock_materialization_rebuild("a", "b", 1)


@pytest.mark.parametrize(
    ("uri", "title"),
    [("thrift://127.0.0.1:{}", "Hive Metastore at thrift://"), ("glue://eu-central-1", "AWS Glue at http://")],
)
def test_a_metastore_that_does_not_answer_is_retryable(tmp_path: Path, uri: str, title: str) -> None:
    port = free_port()
    keys = {"client.access-key-id": "me", "client.secret-access-key": "planted-key", "glue.max-retries": "0"}
    properties = {"glue.endpoint": f"http://127.0.0.1:{port}", **keys} if uri.startswith("glue") else {}
    with (
        IcebergTables.connect(uri.format(port), str(tmp_path), properties=properties) as tables,
        pytest.raises(CatalogUnavailableError, match=f"{title}.*expected it to answer, found") as refused,
    ):
        tables.mains(["shop.t"])
    assert isinstance(refused.value, Retryable)
    assert "planted-key" not in str(refused.value)


def test_credentials_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with (
        IcebergTables.connect("glue://eu-central-1", str(tmp_path)) as tables,
        pytest.raises(CatalogRefusedError, match="Unable to locate credentials; it needs glue:GetDatabase"),
    ):
        tables.mains(["shop.t"])
    with pytest.raises(ConfigurationError, match="expected glue:// and a region"):
        IcebergTables.connect("glue://", str(tmp_path))


@pytest.mark.parametrize("metastore", HIVES[:1], indirect=True)
def test_of_several_servers_the_first_that_answers_serves(metastore: HiveServer, tmp_path: Path) -> None:
    uri = f"thrift://127.0.0.1:{free_port()},{metastore.uri}"
    with IcebergTables.connect(uri, str(tmp_path)) as tables:
        tables.catalog.list_namespaces()
        with pytest.raises(MissingTableError, match=r"expected table shop\.gone in Hive Metastore"):
            tables.mains(["shop.gone"])


@pytest.mark.parametrize(("kind", "package"), [("hive", "thrift"), ("glue", "boto3")])
def test_a_package_that_is_missing_is_named(kind: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("airflow_barrier.tables.find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(
        ConfigurationError, match=rf"expected the package {package} .*airflow-provider-barrier\[{kind}\]"
    ):
        CATALOGS[kind].load()


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("metastore", [HIVES[0], *GLUE], indirect=True)
def test_testing_a_connection_says_what_is_there(
    metastore: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = {"warehouse": str(tmp_path), "iceberg_conn_id": "lake"}
    kind = "glue" if isinstance(metastore, GlueServer) else "hive"
    own = {name: value for name, value in dict(metastore.properties).items() if "key" not in name}
    lake: dict[str, Any] = {"conn_type": "iceberg", "host": metastore.uri, "extra": {"type": kind, **own}}
    if kind == "glue":
        lake |= {"login": "tester", "password": "planted-object-store-key"}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps({"conn_type": "barrier", "extra": barrier}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    good, said = BarrierHook("barrier_test").test_connection()
    assert good, said
    assert "databases, published table by table." in said
    assert ("AWS Glue at" if kind == "glue" else f"Hive Metastore at {metastore.uri}") in said


def test_a_catalog_of_another_kind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = {"warehouse": str(tmp_path), "catalog_uri": "dynamodb://eu-central-1"}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_TEST", json.dumps({"conn_type": "barrier", "extra": barrier}))
    good, said = BarrierHook("barrier_test").test_connection()
    assert not good
    assert "a Hive Metastore (thrift://) or AWS Glue (glue://), found NoSuchModuleError" in said
    assert said.endswith("Other kinds of catalogs are not served")


def test_spark_is_told_how_to_enter() -> None:
    def told(uri: str, **properties: str) -> dict[str, str]:
        settings = Settings("sqlite:////m.db", uri, "s3://lake/w", catalog_properties=tuple(properties.items()))
        conf = spark_conf(settings, spark=SPARK_VERSIONS["3.5"]).conf
        return {name.removeprefix("spark.sql.catalog.lake."): value for name, value in conf.items()}

    hive = told("thrift://one:9083,thrift://two:9083")
    assert (hive["type"], hive["uri"]) == ("hive", "thrift://one:9083,thrift://two:9083")
    glue = told("glue://eu-central-1", **{"glue.id": "4711", "client.secret-access-key": "planted"})
    assert (glue["type"], glue["client.region"], glue["glue.id"]) == ("glue", "eu-central-1", "4711")
    assert "org.apache.iceberg:iceberg-aws-bundle:1.12.0" in glue["spark.jars.packages"].split(",")
    assert "planted" not in str(glue)


# --- after a loss ---------------------------------------------------------------------------------


@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
def test_pointers_that_are_lost_or_old_are_brought_back(lake: Lake) -> None:
    (table,) = lake.create("a")
    first = lake.stage(table, 1, None, [1])
    lake.tables.publish([first])
    old = lake.tables.metadata_locations([table])[table]
    second = lake.stage(table, 2, first.new, [2])
    lake.tables.publish([second])
    newest = lake.tables.metadata_locations([table])[table]
    lake.tables.catalog.drop_table(table)
    assert lake.tables.reattach({table: (newest, second.new)}) == [table]
    assert lake.rows(table) == [1, 2]
    lake.tables.catalog.drop_table(table)
    lake.tables.catalog.register_table(table, old)
    assert lake.rows(table) == [1]
    assert lake.tables.reattach({table: (newest, second.new)}) == [table]
    assert lake.rows(table) == [1, 2]
    assert lake.tables.reattach({table: (newest, second.new)}) == []
