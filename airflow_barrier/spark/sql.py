"""SQL jobs: one statement, in which placeholders stand for the epoch's tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.views import view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELATIONS = ("appends", "changes", "read", "previous", "source")
_VALUES = ("timestamp", "previous_timestamp", "seed")
_KNOWN = ", ".join(
    ["{target:ns.table}", *(f"{{{kind}:…}}" for kind in _RELATIONS), *(f"{{{value}}}" for value in _VALUES)]
)

# What must not be looked into (literals, quoted names, comments) comes before what is looked for.
_TOKEN = re.compile(
    r"""(?P<verbatim> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` )
      | (?P<comment> --[^\n]* | /\*.*?\*/ )
      | (?P<placeholder> \{ \s* (?P<kind>[A-Za-z_]+) \s* (?: : \s* (?P<name>[^{}]*?) \s* )? \} )
      | (?P<end> ; )
      | (?P<text> [^'"`\-/{;]+ | . )""",
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER_IN_QUOTES = re.compile(
    r"\{\s*(?:(?:target|" + "|".join(_RELATIONS) + r")\s*:[^{}]*|(?:" + "|".join(_VALUES) + r")\s*)\}", re.IGNORECASE
)


class _Token(NamedTuple):
    role: str
    text: str
    kind: str = ""
    name: str | None = None


class SqlJob:
    """One SQL statement as a job.

        SqlJob('''
            MERGE INTO {target:shop.user_amount} t
            USING (SELECT userId, sum(amount * _weight) AS d FROM {changes:shop.shopping} GROUP BY userId) s
            ON t.userId = s.userId
            WHEN MATCHED THEN UPDATE SET amount = t.amount + s.d
            WHEN NOT MATCHED THEN INSERT (userId, amount) VALUES (s.userId, s.d)
        ''')

    ``{target:ns.table}`` is a sink; ``{appends:…}``, ``{changes:…}``, ``{read:…}``, ``{previous:…}`` and
    ``{source:name}`` are relations, as the methods of :class:`~airflow_barrier.spark.epoch.Epoch` of these names;
    ``{timestamp}``, ``{previous_timestamp}`` and ``{seed}`` are literals. Single braces pass through Jinja.
    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a statement that cannot be used.
    """

    def __init__(self, statement: str) -> None:
        self._tokens = tuple(_tokens(statement))
        _check(self._tokens)

    def __call__(self, epoch: Epoch) -> None:
        epoch.spark.sql(self.render(epoch))

    def render(self, epoch: Epoch) -> str:
        """The statement for one epoch; its relations become temporary views of the session."""
        views: dict[tuple[str, str], str] = {}
        return "".join(
            _replace(token, epoch, views) if token.role == "placeholder" else token.text for token in self._tokens
        )


def _tokens(statement: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(statement):
        role = match.lastgroup or ""
        if match["placeholder"] is not None:
            yield _Token("placeholder", match[0], match["kind"].lower(), match["name"])
        else:
            yield _Token(role, match[0])


def _check(tokens: tuple[_Token, ...]) -> None:
    ended = False
    for token in tokens:
        if token.role == "end":
            ended = True
        elif ended and token.role != "comment" and token.text.strip():
            raise ConfigurationError(
                "SQL job: expected one statement, found more after ';'; make a job of each, so that each sink has "
                "its own place in the barrier"
            )
        if token.role == "placeholder":
            _check_placeholder(token)
        if token.role == "verbatim":
            _check_verbatim(token)
    if not any(token.kind == "target" for token in tokens):
        raise ConfigurationError(
            "SQL job: expected {target:ns.table} where the statement writes, found none; a job that writes past its "
            "sinks would show half an epoch to readers"
        )


def _check_placeholder(token: _Token) -> None:
    named = token.kind in (*_RELATIONS, "target")
    if not named and token.kind not in _VALUES:
        raise ConfigurationError(f"SQL job: expected one of {_KNOWN}, found {token.text}; correct the placeholder")
    if named and not token.name:
        raise ConfigurationError(
            f"SQL job: expected a name in {token.text}; write {{{token.kind}:…}} with a table or source after the colon"
        )
    if not named and token.name is not None:
        raise ConfigurationError(f"SQL job: expected {{{token.kind}}} without a name, found {token.text}")


def _check_verbatim(token: _Token) -> None:
    """A placeholder in quotes would silently stay as it is."""
    if _PLACEHOLDER_IN_QUOTES.search(token.text):
        raise ConfigurationError(
            f"SQL job: found {token.text}; a placeholder stands for a quoted name or a whole literal: leave the "
            "quotes away"
        )


def _replace(token: _Token, epoch: Epoch, views: dict[tuple[str, str], str]) -> str:
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
        return "CAST(NULL AS TIMESTAMP)"
    return f"TIMESTAMP '{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}+00:00'"
