"""`airflow-barrier serve` as a process: who gets in, where it listens, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import UnauthorizedError

from airflow_barrier.api.tokens import Tokens, add_token
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.topology import Job
from airflow_barrier.reading.duckdb_views import load_extension
from tests.metaservice.world import World
from tests.support.certificates import Authority
from tests.support.waiting import patience, wait_for

SCRIPT = Path(sys.executable).parent / "airflow-barrier"
LOAD = Job("load", "shop", outlets=("shop.orders",))
RATIO = Job("ratio", "crm", inlets=("shop.orders",), outlets=("crm.ratio",))
#: A server that is being started, by its arguments: its process, and where it listens.
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A MetaService with a barrier of two DAGs."""
    url = f"sqlite:///{tmp_path_factory.mktemp('served')}/barrier.db"
    meta = MetaService(url)
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    world.declare([RATIO], "crm")
    world.committed(1)
    meta.close()
    return url


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    servers: list[subprocess.Popen[str]] = []

    def started(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
        with open(tmp_path / "log", "a") as log:
            server = run(url, "--port", "0", *arguments, stderr=log)
        servers.append(server)
        assert server.stdout is not None
        found = re.search(r"at (http\S+)/v1 ", server.stdout.readline())
        assert found is not None, (tmp_path / "log").read_text()
        return server, found[1]

    yield started
    for server in servers:
        server.kill()
        server.wait(patience())
        assert server.stdout is not None
        server.stdout.close()
    log = (tmp_path / "log").read_text() if servers else ""
    assert "Traceback" not in log, log


def run(url: str, *arguments: str | Path, **streams: Any) -> subprocess.Popen[str]:
    """Where no Airflow is, a test finds out that none is asked."""
    which = () if "--conn-id" in arguments else ("--metaservice-url", url)
    return subprocess.Popen(
        [str(SCRIPT), "serve", *map(str, arguments), *which],
        text=True,
        env={**os.environ, "AIRFLOW_HOME": "/nowhere"} if which else {**os.environ},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def refused(url: str, *arguments: str | Path) -> str:
    process = run(url, *arguments)
    out, err = process.communicate(timeout=patience())
    assert (process.returncode, out) == (1, ""), out + err
    return err


def ask(base: str, path: str, token: str | None = None, **options: Any) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{base}/v1{path}", headers=headers | options.pop("headers", {}), timeout=patience(), **options)


def test_on_loopback_whoever_reaches_it_reads_everything(start: Start, tmp_path: Path) -> None:
    server, base = start()
    assert ask(base, "/deployments").json()["deployments"] == [{"deployment": "metaservice"}]
    told = ask(base, "/deployments/metaservice/topologies/shop").json()
    assert (told["dags"], told["readable"]["barrier_id"]) == (["crm", "shop"], 1)
    assert ask(base, "/deployments/another/topologies").status_code == 404
    paths = ask(base, "/openapi.json").json()["paths"]
    assert "/v1/deployments/{deployment}/topologies/{topology}/grid" in paths
    # a page in a browser on this machine that has its own name resolved to it
    assert ask(base, "/deployments", headers={"Host": "evil.example"}).status_code == 400
    assert "whoever reaches this address may read everything" in (tmp_path / "log").read_text()
    assert server.poll() is None


def test_tokens(start: Start, tmp_path: Path, url: str) -> None:
    file = tmp_path / "tokens"
    everything, shop = add_token(file, "grafana", []), add_token(file, "shopper", ["shop"])
    _, base = start("--token-file", file)
    for path in ("/deployments", "/openapi.json", "/deployments/metaservice/topologies/shop"):
        for wrong in (None, "x", everything[:-1], file.read_text().split(":")[1][:64]):
            answer = ask(base, path, wrong)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert ask(base, path, everything).status_code == 200
    assert ask(base, "/deployments", headers={"Authorization": f"Basic {everything}"}).status_code == 401
    told = ask(base, "/deployments/metaservice/topologies/shop", shop).json()
    assert (told["dags"], told["hidden_dags"], [job["job"] for job in told["jobs"]]) == (["shop"], 1, ["load"])
    # a token that is taken out gets in no longer, one that is added does
    file.write_text(file.read_text().splitlines()[1] + "\n")
    another = add_token(file, "another", [])
    assert [ask(base, "/deployments", token).status_code for token in (everything, shop, another)] == [401, 200, 200]
    file.write_text(f"grafana:{everything}\n")
    assert [ask(base, "/deployments", token).status_code for token in (everything, shop)] == [401, 401]
    log = (tmp_path / "log").read_text()
    assert f"{file}, line 1: expected name:SHA-256" in log
    assert not {token for token in (everything, shop, another) if token in log}


def test_catalogs_are_for_who_has_a_token(
    start: Start, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = Path(url.removeprefix("sqlite:///")).parent
    connection = {"conn_type": "barrier", "extra": {"warehouse": str(warehouse)}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_PROD", json.dumps(connection))
    token = add_token(tmp_path / "tokens", "shopper", ["shop"])
    _, base = start("--iceberg", "--conn-id", "barrier_prod", "--token-file", tmp_path / "tokens")
    catalog = RestCatalog("pinned", uri=f"{base}/iceberg/barrier_prod", warehouse="shop", token=token)
    assert catalog.list_tables("shop") == [("shop", "orders")]
    with duckdb.connect() as connection:
        for extension in ("httpfs", "avro", "iceberg"):
            load_extension(connection, extension)
        options = f"TYPE iceberg, ENDPOINT '{base}/iceberg/barrier_prod', TOKEN '{token}'"
        connection.execute(f"ATTACH 'shop' AS pinned ({options})")
        assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("orders",)]
    with pytest.raises(UnauthorizedError, match="expected a token"):
        RestCatalog("pinned", uri=f"{base}/iceberg/barrier_prod", warehouse="shop", token="another")
    with closing(MetaService(url)) as meta:
        held = {(lease.barrier_id, lease.holder) for lease in meta.leases.of("shop")}
    assert held == {(1, "Iceberg catalog of shopper (airflow-barrier serve)")}


def test_catalogs_need_a_connection(url: str) -> None:
    assert "expected --conn-id with --iceberg, since tables are in the connection's catalog" in refused(
        url, "--iceberg"
    )


def test_tls(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.signed("server")
    file = tmp_path / "tokens"
    token = add_token(file, "grafana", [])
    _, base = start("--host", "0.0.0.0", "--token-file", file, "--certificate", certificate, "--key", key)
    base = base.replace("0.0.0.0", "127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    assert ask(base, "/deployments", token, verify=trusting).status_code == 200
    assert ask(base, "/deployments", verify=trusting).status_code == 401
    with pytest.raises(httpx.ConnectError):
        ask(base, "/deployments", token)


def test_it_does_not_listen_beyond_this_machine_without_both(url: str, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).signed("server")
    file = tmp_path / "tokens"
    add_token(file, "grafana", [])
    said = refused(url, "--host", "0.0.0.0", "--token-file", file)
    assert "found 0.0.0.0 without --certificate and --key; give these, or listen on 127.0.0.1" in said
    said = refused(url, "--host", "::", "--certificate", certificate, "--key", key)
    assert "found :: without --token-file" in said
    assert "found example.org without --token-file" in refused(url, "--host", "example.org")
    assert "expected --certificate and --key, found one" in refused(url, "--key", key)
    assert "expected a certificate and its key in" in refused(url, "--certificate", file, "--key", key)


def test_it_ends_while_somebody_listens(start: Start) -> None:
    server, base = start()
    with httpx.stream("GET", f"{base}/v1/deployments/metaservice/events", timeout=patience()) as stream:
        assert next(stream.iter_lines()) == "event: change"
        server.send_signal(signal.SIGTERM)
        wait_for("the server to end", lambda: server.poll() is not None)
    assert server.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("grafana:plain-text", 0o600, r"line 1: expected name:SHA-256\[:dag,dag,...\], found something else; make"),
        ("", 0o640, "expected a file that its owner alone can read, found mode 640; run chmod 600"),
        (None, 0o600, "expected a file of tokens, found that it cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, mode: int, said: str) -> None:
    file = tmp_path / "tokens"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(ConfigurationError, match=said) as refusal:
        Tokens(file)
    assert "plain-text" not in str(refusal.value)


@pytest.mark.parametrize(("name", "dags"), [("a:b", []), ("a b", []), ("", []), ("a", ["b,c:d"]), ("a", ["b\nx:y"])])
def test_a_name_that_would_be_another_line(tmp_path: Path, name: str, dags: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="expected a name, and DAGs, without colons, commas and spaces"):
        add_token(tmp_path / "tokens", name, dags)
    assert not (tmp_path / "tokens").exists()
    add_token(tmp_path / "tokens", "twice", [])
    with pytest.raises(ConfigurationError, match="expected no token of twice yet, found one"):
        add_token(tmp_path / "tokens", "twice", [])


def test_a_new_token_is_shown_once(url: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    process = run(url, "--token-file", file, "--new-token", "grafana", "--dag", "shop", "--dag", "crm", "--json")
    out, err = process.communicate(timeout=patience())
    assert (process.returncode, err) == (0, "")
    token = re.search(r'"token": "(.+)"', out)
    assert token is not None
    bearer = Tokens(file).bearer(token[1])
    assert bearer is not None
    assert (bearer.name, bearer.dags) == ("grafana", {"shop", "crm"})
    assert token[1] not in file.read_text()
    assert "--new-token: expected --token-file" in refused(url, "--new-token", "grafana")
