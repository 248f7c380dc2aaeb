"""What places are called in OpenLineage: namespace and name, as https://openlineage.io/docs/spec/naming has them.

A source and a sink at one place bear one name, and a table's folder the one that Spark's own OpenLineage listener gives
it. Who enters is in no name.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_barrier.protocol.records import Barrier

#: The scheme of object stores, whose names begin without a slash, by all that Hadoop and fsspec call it.
_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs"}
#: Their addresses are container@account.
_AZURE = ("abfs", "abfss")
_KAFKA_PORT = 9092


class At(NamedTuple):
    """A dataset at a barrier: of a table its snapshot, and what its folder is called, if that was looked up."""

    barrier: Barrier
    snapshot: int | None = None
    folder: tuple[str, str] | None = None


def folder(url: str) -> tuple[str, str]:
    """A folder's, by its path or URL.

    >>> folder("/out/prices/"), folder("file:///out/prices")
    (('file', '/out/prices'), ('file', '/out/prices'))
    >>> folder("s3a://lake/shop/prices"), folder("hdfs://me:secret@namenode:8020/in")
    (('s3://lake', 'shop/prices'), ('hdfs://namenode:8020', '/in'))
    """
    scheme, separator, rest = url.partition(":")
    if not separator or "/" in scheme:
        scheme, rest = "file", url
    if scheme == "file":
        return "file", "/" + rest.strip("/")
    host, _, path = rest.removeprefix("//").partition("/")
    path = path.strip("/")
    if scheme in _OBJECT_STORES:
        return f"{_OBJECT_STORES[scheme]}://{_without_user(host)}", path or "/"
    return f"{scheme}://{_without_user(host, azure=scheme in _AZURE)}", f"/{path}"


def topic(bootstrap_servers: str, name: str) -> tuple[str, str]:
    """A Kafka topic's; of several brokers the first one names the cluster.

    >>> topic("SASL_SSL://one:9093,two:9093", "prices"), topic("one", "prices")
    (('kafka://one:9093', 'prices'), ('kafka://one:9092', 'prices'))
    """
    first = bootstrap_servers.partition(",")[0].strip()
    broker = _without_user(first.rpartition("://")[2])
    port = "" if broker.rpartition("]")[2].count(":") else f":{_KAFKA_PORT}"
    return f"kafka://{broker}{port}", name


def catalog(address: str) -> str:
    """The namespace of a catalog's tables, by its address or the path or URL of its warehouse.

    >>> catalog("https://me:secret@catalog:8181/iceberg/"), catalog("/data/warehouse")
    ('https://catalog:8181/iceberg', 'file:///data/warehouse')
    >>> catalog("thrift://metastore:9083,thrift://another:9083")
    'hive://metastore:9083'
    """
    scheme, separator, rest = address.partition("://")
    if scheme == "thrift":
        scheme, rest = "hive", rest.partition(",")[0]
    if not separator:
        scheme, rest = "file", address
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{_without_user(host, azure=scheme in _AZURE)}{slash}{path}".rstrip("/")


def _without_user(host: str, *, azure: bool = False) -> str:
    user, _, host = host.rpartition("@")
    container = user.rpartition("@")[2].partition(":")[0] if azure else ""
    return f"{container}@{host}" if container else host
