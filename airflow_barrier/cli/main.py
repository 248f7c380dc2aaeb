"""`airflow-barrier`: look at barriers, give one up, look after the MetaService's database."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_barrier.cli.resolve import add_barrier_command
from airflow_barrier.cli.screen import show_status
from airflow_barrier.cli.topology import add_topology_command
from airflow_barrier.coordinator.status import status
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService

_EPILOG = """\
The deployment is an Airflow connection (--conn-id; from AIRFLOW_CONN_..., a secrets backend or Airflow's database),
or just the database (--metaservice-url; its password from the environment variable AIRFLOW_BARRIER_PASSWORD).

exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 wrong usage"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code.

    >>> main(["abort", "shopping", "3", "--reason", "bad file"])  # doctest: +SKIP
    0
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except BarrierError as error:
        print(f"airflow-barrier: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-barrier",
        description="Timestamp barriers: what is committed, what is open, and what waits for whom.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _deployment_options(_status_command(commands))
    _deployment_options(_abort_command(commands))
    add_barrier_command(commands, _settings)
    add_topology_command(commands, _settings)
    _recover_command(commands)
    _db_command(commands)
    return parser


def _status_command(commands: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        "status", help="show a topology's barriers", description="Show what readers see and how far each barrier is."
    )
    command.add_argument("topology", nargs="?", help="default: every topology")
    command.add_argument("--json", action="store_true", help="for programs: one JSON document")
    command.set_defaults(run=_status)
    return command


def _abort_command(commands: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        "abort",
        help="give a barrier up",
        description="Give a barrier up, and every later uncommitted one with it. Their epochs join the next "
        "barrier's. Refused once the barrier is COMMITTING.",
    )
    command.add_argument("topology")
    command.add_argument("barrier", type=int, help="the barrier's id, as `status` shows it")
    command.add_argument("--reason", required=True, help="why, for the audit and for the tasks that meet the barrier")
    command.set_defaults(run=_abort)
    return command


def _recover_command(commands: Any) -> None:
    command = commands.add_parser(
        "recover",
        help="catch a MetaService up that was lost or restored from a backup",
        description="Catch the MetaService up from the tables and the journal beside them, after it was lost or "
        "restored from a backup. Stop the topology's DAGs before. Barriers that were in flight are given up: their "
        "epochs join the next barrier's.",
    )
    command.add_argument("topology")
    command.add_argument("--conn-id", default="barrier_default", help="Airflow connection (default: %(default)s)")
    command.set_defaults(run=_recover)


def _db_command(commands: Any) -> None:
    command = commands.add_parser("db", help="the MetaService's database")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, run, text in (
        ("migrate", _migrate, "Bring the database's schema to this version."),
        ("check", _check, "Say whether the database answers and has this version's schema."),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run)
        _deployment_options(action)


def _deployment_options(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--conn-id", default="barrier_default", help="Airflow connection (default: %(default)s)")
    which.add_argument("--metaservice-url", help="SQLAlchemy URL of the MetaService's database, without password")


# --- commands -------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    with closing(_meta_service(options)) as meta:
        names = [options.topology] if options.topology else meta.topologies()
        found = [status(meta, name) for name in names]
    if options.json:
        print(json.dumps([asdict(one) for one in found], default=str, indent=2))
        return 0
    show_status(found)
    return 0


def _abort(options: argparse.Namespace) -> int:
    actor = f"{getpass.getuser()} (airflow-barrier)"
    with closing(_meta_service(options)) as meta:
        aborted = meta.abort_barrier(options.topology, options.barrier, options.reason, actor)
    for barrier in aborted:
        print(f"aborted {barrier}")
    if not aborted:
        print(f"barrier {options.barrier} of {options.topology} was aborted before; nothing to do")
    return 0


def _recover(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.recovering import recover

    deployment = Deployment.connect(_settings(options.conn_id))
    try:
        recovered = recover(deployment, options.topology, actor=f"{getpass.getuser()} (airflow-barrier)")
    finally:
        deployment.close()
    for table in recovered.reattached:
        print(f"table {table}: the catalog points to its newest metadata again")
    for entry in recovered.entries:
        print(f"{entry} is COMMIT again")
    print(
        f"topology {recovered.topology}: {len(recovered.entries)} barriers put back, the newest is "
        f"{recovered.newest or 'the baseline'}; MetaService incarnation {recovered.incarnation} leads it now. "
        "Clear the start tasks of the runs that were in flight, which opens their barriers anew."
    )
    return 0


def _migrate(options: argparse.Namespace) -> int:
    from airflow_barrier.metaservice.migrate import migrate

    print(migrate(_url(options)))
    return 0


def _check(options: argparse.Namespace) -> int:
    from airflow_barrier.metaservice.migrate import check

    print(check(_url(options)))
    return 0


# --- the deployment -------------------------------------------------------------------------------


def _meta_service(options: argparse.Namespace) -> MetaService:
    from airflow_barrier.metaservice.store import MetaService

    return MetaService(_url(options), create=False)  # looking at a database makes none


def _url(options: argparse.Namespace) -> str:
    """The database's URL with its password; never printed."""
    from airflow_barrier.coordinator.deployment import with_password
    from airflow_barrier.coordinator.settings import require_no_password

    if options.metaservice_url:
        require_no_password(
            "--metaservice-url",
            options.metaservice_url,
            "everybody on a machine can read its command lines: use the environment variable AIRFLOW_BARRIER_PASSWORD",
        )
        return with_password(options.metaservice_url, os.environ.get("AIRFLOW_BARRIER_PASSWORD"))
    settings = _settings(options.conn_id)
    return with_password(settings.metaservice_url, settings.metaservice_password)


def _settings(conn_id: str) -> Any:
    # without this Airflow looks for connections in the environment only, as in a task without its supervisor
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_barrier.hooks.barrier import BarrierHook

    try:
        return BarrierHook(conn_id).get_settings()
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"connection {conn_id}: expected an Airflow connection of that id, found none; create it, set "
            f"AIRFLOW_CONN_{conn_id.upper()}, name another with --conn-id, or give --metaservice-url"
        ) from None
