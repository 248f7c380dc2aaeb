"""What the API tells who may read everything, for ``--json``. It takes FastAPI, so it is imported for that only."""

from __future__ import annotations

import argparse

from airflow_barrier.api.server import Served, TokenAccess
from airflow_barrier.api.sight import Sight
from airflow_barrier.api.sight import sight_of as seen_by
from airflow_barrier.api.tokens import ANYBODY
from airflow_barrier.cli.connection import credentials, deployment_name
from airflow_barrier.metaservice.store import MetaService


def sight_of(options: argparse.Namespace, meta: MetaService) -> Sight:
    """The topology that the command is about. Raises UnknownTopologyError."""
    served = Served(deployment_name(options), meta, credentials(options))
    return seen_by(TokenAccess(served, lambda: ANYBODY), meta, options.topology)
