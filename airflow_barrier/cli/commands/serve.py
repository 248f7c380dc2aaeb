"""`airflow-barrier serve`"""

from __future__ import annotations

import argparse
import gc
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import connected, credentials, database_options, deployment_name, meta_service
from airflow_barrier.cli.frame import DONE, Command, say
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from rich.console import Console

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.metaservice.store import MetaService

#: The port where it listens unless told otherwise.
PORT = 8765
#: Seconds that requests under way have at the end.
_ENDS_WITHIN = 5
#: So many objects more than at the last time.
_COLLECTED_EACH = 50_000


@dataclass(frozen=True)
class Serving:
    """``url``: where the API is, below which there is ``/v1``. ``iceberg``: the `uri` of catalogs, if served."""

    url: str
    deployment: str
    iceberg: str | None = None


@dataclass(frozen=True)
class NewToken:
    """Shown once: the file has its digest."""

    name: str
    token: str


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="0: any that is free (default: %(default)s)")
    parser.add_argument(
        "--iceberg", action="store_true", help="serve the tables at barriers, too, as read-only Iceberg REST catalogs"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="who may ask; read again when it has changed")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="PEM; with its chain")
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM, without a password")
    parser.add_argument("--new-token", metavar="NAME", help="add a token for NAME to the token file, print it, and end")
    parser.add_argument("--dag", action="append", default=[], help="the new token reads this DAG only; or several")


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.api.server import Served, check_reach, create_server
    from airflow_barrier.api.tokens import Tokens, add_token

    if options.new_token is not None:
        if options.token_file is None:
            raise ConfigurationError("--new-token: expected --token-file, found none; say where tokens are kept")
        token = add_token(options.token_file, options.new_token, options.dag)
        answer(options, NewToken(options.new_token, token), _show_token)
        return DONE
    if (options.certificate is None) != (options.key is None):
        raise ConfigurationError("serve: expected --certificate and --key, found one of them; give both")
    encrypted = options.certificate is not None
    check_reach(options.host, tokens=options.token_file is not None, encrypted=encrypted)
    tokens = None if options.token_file is None else Tokens(options.token_file)
    name = deployment_name(options)
    with _reached(options) as (meta, deployment), closing(_listen(options.host, options.port)) as listening:
        meta.check()
        served = Served(name, meta, credentials(options), deployment)
        server = _server(create_server(served, tokens), options)
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http{'s' if encrypted else ''}://{host}:{listening.getsockname()[1]}"
        if tokens is None:
            say("whoever reaches this address may read everything, since there is no --token-file")
        answer(options, Serving(url, name, f"{url}/iceberg/{name}" if deployment else None), _show)
        options.out.flush()
        _collect_rarely()
        server.run(sockets=[listening])
    return DONE


@contextmanager
def _reached(options: argparse.Namespace) -> Iterator[tuple[MetaService, Deployment | None]]:
    """The MetaService, and the tables where they are served."""
    if not options.iceberg:
        with meta_service(options) as meta:
            yield meta, None
    elif options.metaservice_url:
        raise ConfigurationError(
            "serve: expected --conn-id with --iceberg, since tables are in the connection's catalog, found "
            "--metaservice-url; name the connection"
        )
    else:
        with connected(options.conn_id) as deployment:
            yield deployment.meta, deployment


def _collect_rarely() -> None:
    """Answers are thousands of small objects, which are gone with them. By default each few of them Python looks for
    garbage among all that there is, for a tenth of a second.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_EACH)


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(found[4][:2], family=found[0])
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"serve: expected to listen on {host}, port {port}, found that this cannot be: {error}; choose another "
            "--host or --port"
        ) from error


def _server(app: FastAPI, options: argparse.Namespace) -> uvicorn.Server:
    """Raises ConfigurationError for a certificate that cannot be used."""
    import uvicorn

    config = uvicorn.Config(
        app,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        timeout_graceful_shutdown=_ENDS_WITHIN,
    )
    try:
        config.load()
    except OSError as error:  # those of ssl are
        raise ConfigurationError(
            f"serve: expected a certificate and its key in {options.certificate} and {options.key}, found: {error}"
        ) from error
    return uvicorn.Server(config)


def _show(found: Serving, console: Console) -> None:
    line(console, f"Serving {found.deployment} at {found.url}/v1 (OpenAPI: {found.url}/v1/openapi.json).")
    if found.iceberg is not None:
        line(console, f"Iceberg REST catalogs: uri {found.iceberg}, warehouse TOPOLOGY@repeatable_read, or @b12.")


def _show_token(found: NewToken, console: Console) -> None:
    line(console, f"The token of {found.name}, shown only now: {found.token}")


SERVE = Command(
    "serve",
    "Serve the read API without Airflow. Callers send a token of the token file, as Authorization: Bearer. Beyond this "
    "machine it listens with tokens and TLS only; on it, without a token file, whoever reaches it reads everything.",
    (_options, database_options),
    _run,
    examples=(
        "",
        "--iceberg",
        "--token-file tokens --new-token grafana --dag shopping",
        "--host 0.0.0.0 --token-file tokens --certificate server.pem --key server.key",
    ),
)
