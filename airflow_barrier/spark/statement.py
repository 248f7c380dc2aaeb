"""SQL text taken apart without a parser, as far as placeholders need it: a driver has Python's own library only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.undeclared import source_named, undeclared

if TYPE_CHECKING:
    from airflow_barrier.protocol.topology import Job

RELATIONS = ("appends", "changes", "read", "previous", "source")
_VALUES = ("timestamp", "previous_timestamp", "seed")
_KNOWN = ", ".join(
    ["{target:ns.table}", *(f"{{{kind}:…}}" for kind in RELATIONS), *(f"{{{value}}}" for value in _VALUES)]
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
    r"\{\s*(?:(?:target|" + "|".join(RELATIONS) + r")\s*:[^{}]*|(?:" + "|".join(_VALUES) + r")\s*)\}", re.IGNORECASE
)

_CHANGES_ROWS = re.compile(
    r"(?:DELETE\s+FROM|UPDATE|MERGE\s+INTO|INSERT\s+(?:INTO|OVERWRITE)(?:\s+TABLE)?)\s+"
    r"\{\s*target\s*:\s*(?P<table>[^{}]*?)\s*\}",
    re.IGNORECASE,
)
_APPLIES = re.compile(
    r"\s*APPLY\s+CHANGES\s+INTO\s+\{\s*target\s*:\s*(?P<table>[^{}]*?)\s*\}"
    r"\s+FROM\s+(?P<changes>\S.*?)\s*\bKEYS\s*\((?P<keys>[^()]+)\)\s*",
    re.IGNORECASE | re.DOTALL,
)
_BEGINS_TO_APPLY = re.compile(r"\s*APPLY\b", re.IGNORECASE)
_IN_CORRECTIONS = ("target", "read", "source", *_VALUES)


class Token(NamedTuple):
    role: str
    text: str
    kind: str = ""
    name: str | None = None


class Applied(NamedTuple):
    """A statement ``APPLY CHANGES INTO {target:table} FROM changes KEYS (key, ...)``; ``changes`` is a relation or a
    query in brackets.
    """

    table: str
    changes: str
    key: tuple[str, ...]


def applied(tokens: Sequence[Token]) -> Applied | None:
    """None: it is another statement. Raises ConfigurationError."""
    text = _text(tokens)
    if not _BEGINS_TO_APPLY.match(text):
        return None
    words = _APPLIES.fullmatch(text)
    if words is None:
        raise ConfigurationError(
            "SQL job: expected APPLY CHANGES INTO {target:ns.table} FROM {source:…} KEYS (column, …), with a relation "
            "or a query in brackets after FROM, found something else after APPLY"
        )
    return Applied(words["table"], words["changes"], tuple(key.strip().strip("`") for key in words["keys"].split(",")))


def _text(tokens: Sequence[Token]) -> str:
    """The statement without its comments."""
    return "".join(" " if token.role == "comment" else token.text for token in tokens if token.role != "end").strip()


def tokens_of(statement: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(statement):
        role = match.lastgroup or ""
        if match["placeholder"] is not None:
            yield Token("placeholder", match[0], match["kind"].lower(), match["name"])
        else:
            yield Token(role, match[0])


def check(tokens: Sequence[Token]) -> None:
    ended = False
    for token in tokens:
        if token.role == "end":
            ended = True
        elif ended and token.role != "comment" and token.text.strip():
            raise ConfigurationError(
                "SQL job: expected one statement, found more after ';'; make a job of each, so that each outlet has "
                "its own place in the barrier"
            )
        if token.role == "placeholder":
            _check_placeholder(token)
        if token.role == "verbatim":
            _check_verbatim(token)
    if not any(token.kind == "target" for token in tokens):
        raise ConfigurationError(
            "SQL job: expected {target:ns.table} where the statement writes, found none; a job that writes past its "
            "outlets would show half an epoch to readers"
        )
    applied(tokens)


def check_for(statement: str, job: Job) -> None:
    """Refuse, before anything runs, a statement that cannot be ``job``'s.

    Raises ConfigurationError and UndeclaredTableError, which name the job.
    """
    tokens = tuple(tokens_of(statement))
    try:
        check(tokens)
    except ConfigurationError as error:
        raise ConfigurationError(f"job {job.name}: {error}") from None
    check_names(tokens, job)
    _check_outlets(tokens, job)


def check_names(tokens: Sequence[Token], job: Job) -> None:
    """Raise UndeclaredTableError for a table or a source in ``tokens`` that ``job`` does not declare."""
    sources = {source.name: source.options.get("tables", ()) for source in job.externals}
    for token in tokens:
        name = token.name or ""
        if token.kind == "source":
            source, table = source_named(name, sources) or ("", None)
            if not source or (table is not None and table not in sources[source]):
                raise undeclared(job.name, "external source", name, "inlets", sources)
        if token.kind == "target" and name not in job.outlets:
            raise undeclared(job.name, "table", name, "outlets", job.outlets)
        if token.kind in RELATIONS and token.kind != "source" and name not in job.inlets:
            raise undeclared(job.name, "table", name, "inlets", job.inlets)


def _check_outlets(tokens: Sequence[Token], job: Job) -> None:
    """Raise ConfigurationError for an outlet of ``job`` that the statement does not write."""
    written = {token.name for token in tokens if token.kind == "target"}
    written |= {source.options.get("dead_letters") for source in job.externals}  # which the driver writes
    silent = [outlet for outlet in job.outlets if outlet not in written]
    if silent:
        raise ConfigurationError(
            f"job {job.name}: expected its SQL to write each of its outlets, found no {{target:{silent[0]}}}; an "
            "outlet gets something at every barrier, and SQL cannot call epoch.unchanged: take the table out of "
            "outlets=[...], or make a job of its own for it"
        )


def _check_placeholder(token: Token) -> None:
    named = token.kind in (*RELATIONS, "target")
    if not named and token.kind not in _VALUES:
        raise ConfigurationError(f"SQL job: expected one of {_KNOWN}, found {token.text}; correct the placeholder")
    if named and not token.name:
        raise ConfigurationError(
            f"SQL job: expected a name in {token.text}; write {{{token.kind}:…}} with a table or source after the colon"
        )
    if not named and token.name is not None:
        raise ConfigurationError(f"SQL job: expected {{{token.kind}}} without a name, found {token.text}")


def _check_verbatim(token: Token) -> None:
    """A placeholder in quotes would silently stay as it is."""
    if _PLACEHOLDER_IN_QUOTES.search(token.text):
        raise ConfigurationError(
            f"SQL job: found {token.text}; a placeholder stands for a quoted name or a whole literal: leave the "
            "quotes away"
        )


def require_writes_only(tokens: Sequence[Token], table: str) -> None:
    """Raises :class:`ConfigurationError` unless the statement changes rows of ``{target:table}`` and nothing else.

    In Spark's grammar what a statement writes stands behind its first words, so no more than these is looked at.
    """
    text = _text(tokens)
    words = _CHANGES_ROWS.match(text)
    if words is None or words["table"] != table:
        raise ConfigurationError(  # safety: corrects-its-table
            f"correction of {table}: expected DELETE FROM, UPDATE, MERGE INTO, INSERT INTO or INSERT OVERWRITE "
            f"{{target:{table}}}, found a statement that begins with {' '.join(text.split()[:4])!r}; a correction "
            "changes the rows of its table only (put WITH into the query that uses it)"
        )
    for token in tokens:
        if token.role == "placeholder" and token.kind not in _IN_CORRECTIONS:
            raise ConfigurationError(
                f"correction of {table}: expected {{target:{table}}}, {{read:…}}, {{source:…}} or a value, found "
                f"{token.text}; a correction is about the tables as they were at its barrier"
            )
