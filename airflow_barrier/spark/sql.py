"""SQL jobs: one statement, in which placeholders stand for the epoch's tables."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_barrier.protocol.ddl import timestamp_literal
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.statement import Token, applied, check, tokens_of
from airflow_barrier.spark.views import view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SqlJob:
    """One SQL statement as a job.

        SqlJob('''
            MERGE INTO {target:shop.user_amount} t
            USING (SELECT userId, sum(amount * _weight) AS d FROM {changes:shop.shopping} GROUP BY userId) s
            ON t.userId <=> s.userId  -- with = a NULL never finds its row again
            WHEN MATCHED THEN UPDATE SET amount = t.amount + s.d
            WHEN NOT MATCHED THEN INSERT (userId, amount) VALUES (s.userId, s.d)
        ''')

    ``{target:ns.table}`` is an outlet; ``{appends:…}``, ``{changes:…}``, ``{read:…}``, ``{previous:…}`` and
    ``{source:name}`` are relations, as the methods of :class:`~airflow_barrier.spark.epoch.Epoch` of these names;
    ``{timestamp}``, ``{previous_timestamp}`` and ``{seed}`` are literals. Single braces pass through Jinja.

    Changes of a source, or of a table, are put on an outlet without a MERGE of one's own, as
    :meth:`~airflow_barrier.spark.epoch.Epoch.apply` does; a query in brackets may stand in place of the relation:

        APPLY CHANGES INTO {target:shop.orders} FROM {source:shop_db.public.orders} KEYS (id)

    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a statement that cannot be used.
    """

    def __init__(self, statement: str) -> None:
        self._tokens = tuple(tokens_of(statement))
        check(self._tokens)

    def __call__(self, epoch: Epoch) -> None:
        applies = applied(self._tokens)
        if applies is None:
            epoch.spark.sql(self.render(epoch))
        else:
            changes = epoch.spark.sql(f"SELECT * FROM {_rendered(tokens_of(applies.changes), epoch)}")
            epoch.apply(changes, applies.table, applies.key)

    def render(self, epoch: Epoch) -> str:
        """The statement for one epoch; its relations become temporary views of the session."""
        return _rendered(self._tokens, epoch)


def _rendered(tokens: Iterable[Token], epoch: Epoch) -> str:
    views: dict[tuple[str, str], str] = {}
    return "".join(_replace(token, epoch, views) if token.role == "placeholder" else token.text for token in tokens)


def _replace(token: Token, epoch: Epoch, views: dict[tuple[str, str], str]) -> str:
    if token.kind == "target":
        return epoch.target(token.name or "")
    if token.kind == "timestamp":
        return _literal(epoch.timestamp)
    if token.kind == "previous_timestamp":
        return _literal(epoch.previous_timestamp)
    if token.kind == "seed":
        return str(epoch.seed)
    key = (token.kind, token.name or "")
    if key not in views:
        views[key] = view_of(_relation(epoch, *key), f"{key[0]}_{key[1]}_{len(views)}")
    return views[key]


def _relation(epoch: Epoch, kind: str, name: str) -> DataFrame:
    if kind == "appends":
        return epoch.appends(name)
    if kind == "changes":
        return epoch.changes(name)
    if kind == "read":
        return epoch.read(name)
    if kind == "previous":
        return epoch.previous(name)
    return epoch.source(name)


def _literal(moment: datetime | None) -> str:
    if moment is None:
        return "CAST(NULL AS TIMESTAMP_LTZ)"
    return timestamp_literal(moment, zoned=True)
