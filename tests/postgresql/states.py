"""All that a MetaService database holds, and what its methods answer, without what differs from run to run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from tests.support.postgresql import PostgreSQL

#: Numbers that nothing refers to.
_COUNTED = ("audit_id", "lease_id")
_INCARNATION = re.compile(r"[0-9a-f]{32}|[0-9a-f-]{36}")


class Kept:
    """A database that can be put back to how it is now."""

    def __init__(self, server: PostgreSQL, url: str) -> None:
        self._admin = server.admin(url)
        found = self._admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = sorted(name for (name,) in found)
        self._admin.execute("CREATE SCHEMA kept")
        for name in names:
            self._admin.execute(f"CREATE TABLE kept.{name} AS TABLE {name}")
        # Whatever refers to whatever: constraints need not hold in between.
        self._back = "SET session_replication_role = replica;" + "".join(
            f"DELETE FROM {name}; INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM kept.{name};"
            for name in names
        )

    def put_back(self) -> None:
        self._admin.execute(self._back)

    def close(self) -> None:
        self._admin.close()


def everything(connection: Connection, answer: object = None) -> tuple[dict[str, list[Any]], object]:
    """Table -> its rows; and what a method ``answer``-ed.

    Times only say whether there is one. Numbers are counted anew: what is rolled back leaves gaps.
    """
    column = schema.attempt.c.attempt_id
    attempts = connection.execute(select(column).order_by(column)).scalars()
    ids = {attempt_id: rank for rank, attempt_id in enumerate(attempts, start=1)}
    rows = {
        table.name: [
            comparable(dict(row._mapping), ids)
            for row in connection.execute(select(table).order_by(*table.primary_key.columns))
        ]
        for table in schema.metadata.sorted_tables
    }
    return rows, comparable(answer, ids)


def comparable(value: Any, ids: Mapping[int, int], key: str = "") -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return comparable(asdict(value), ids)
    if isinstance(value, Mapping):
        of_attempt = value.get("kind") == "attempt"
        told = {name: comparable(each, ids, name) for name, each in value.items() if name not in _COUNTED}
        return {**told, "subject": ids.get(int(told["subject"]), "forgotten")} if of_attempt else told
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [comparable(each, ids, key) for each in value]
    if key in ("attempt_id", "voided") and value is not None:
        return ids.get(value, "forgotten")
    if isinstance(value, datetime) and key != "timestamp":
        return "a time"
    if isinstance(value, Enum):
        return value.value
    return _INCARNATION.sub("an incarnation", value) if isinstance(value, str) else value
