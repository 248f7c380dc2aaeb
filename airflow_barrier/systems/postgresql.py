"""PostgreSQL as MetaService and catalog connect to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Arguments of each connection, for psycopg.
CONNECT_ARGUMENTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    # Statements are planned each time: a generic plan compares long IN lists one by one, for minutes.
    "prepare_threshold": None,
    # A server that is lost without a word (its machine, the network) is noticed within a minute, not in hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
