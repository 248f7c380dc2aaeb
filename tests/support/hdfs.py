"""A real HDFS: a name node and a data node, each a process of its own.

with hdfs(folder) as server:
    Credentials("hdfs", server.host, server.port, server.user)
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.jars import resolved
from tests.support.ports import free_port
from tests.support.serving import JARS, serving
from tests.support.waiting import patience, wait_for

_SERVER = "org.apache.hadoop.hdfs.server"
_OPTIONS = ("-Xmx400m", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED")
_LOG = """
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %c: %m%n
"""


@dataclass(frozen=True)
class Hdfs:
    """Where the name node answers HTTP, and the user who may do everything."""

    port: int
    user: str
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def hdfs(folder: Path) -> Iterator[Hdfs]:
    from airflow_barrier.project.java import find_java

    java = find_java()
    names, http, data, ipc, data_http = (free_port() for _ in range(5))
    conf = folder / "conf"
    for page in ("hdfs", "datanode", "static"):  # the jars bring none, and a node does not start without
        (conf / "webapps" / page).mkdir(parents=True)
    (conf / "log4j.properties").write_text(_LOG)
    _configure(conf / "core-site.xml", {"fs.defaultFS": f"hdfs://127.0.0.1:{names}", "hadoop.tmp.dir": f"{folder}/tmp"})
    options = {
        "dfs.replication": "1",
        "dfs.namenode.name.dir": f"{folder}/names",
        "dfs.datanode.data.dir": f"{folder}/data",
        "dfs.namenode.http-address": f"127.0.0.1:{http}",
        "dfs.datanode.address": f"127.0.0.1:{data}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
        "dfs.datanode.http.address": f"127.0.0.1:{data_http}",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.fs-limits.min-block-size": "4096",
    }
    _configure(conf / "hdfs-site.xml", options)
    jars = resolved(Path(__file__).with_name("hdfs.ivy.xml"), JARS)
    command = [java, *_OPTIONS, "-cp", ":".join(map(str, (conf, *jars)))]
    name_node = [*command, f"{_SERVER}.namenode.NameNode"]
    done = subprocess.run(
        [*name_node, "-format", "-nonInteractive"], capture_output=True, text=True, timeout=patience(), check=False
    )
    if done.returncode:
        raise RuntimeError(f"the name node cannot be formatted:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    server = Hdfs(http, pwd.getpwuid(os.getuid()).pw_name)
    with (
        serving(name_node, f"{server.url}/webhdfs/v1/?op=GETFILESTATUS", folder / "name-node.log"),
        serving([*command, f"{_SERVER}.datanode.DataNode"], f"http://127.0.0.1:{data_http}", folder / "data-node.log"),
    ):
        wait_for("the name node to know the data node", lambda: _live_nodes(server))
        yield server


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


def _configure(file: Path, options: Mapping[str, str]) -> None:
    lines = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in options.items())
    file.write_text(f"<configuration>{''.join(lines)}</configuration>")


def _live_nodes(server: Hdfs) -> int:
    with urllib.request.urlopen(
        f"{server.url}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystem", timeout=10
    ) as answer:
        return int(json.load(answer)["beans"][0]["NumLiveDataNodes"])
