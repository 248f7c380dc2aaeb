"""What the names in a query lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlglot import exp

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.reading._dialects import PinningDialect

Parts = tuple[str, ...]
_PART = re.compile(r'`(?:[^`]|``)+`|"(?:[^"]|"")+"|[^.`"]+')
Found = TypeVar("Found")


@dataclass(frozen=True)
class Place:
    """The place of a query: what names without catalog and namespace lead to.

    ``namespace``: its parts; a text is taken apart at its dots, and parts in it may be quoted as engines do it
    (``"eu.shop"``, ``"`my-shop`"``), else ConfigurationError. ``temporary``: names of the session's temporary views,
    which come before tables. ``case_sensitive``: Spark's ``spark.sql.caseSensitive``. ``catalogs``: what else a name
    can begin with, beside ``catalog`` and the topology's. Nothing of it is looked at that a name does not need: an
    engine may have to be asked.
    """

    catalog: str
    namespace: Parts | str = ()
    temporary: frozenset[str] = frozenset()
    case_sensitive: bool = False
    catalogs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.namespace, str):
            object.__setattr__(self, "namespace", _parts_of(self.namespace))

    def is_temporary(self, parts: Parts) -> bool:
        return len(parts) == 1 and any(self.same(parts[0], name) for name in self.temporary)

    def full_name(self, parts: Parts, catalog: str, dialect: PinningDialect) -> Parts:
        """The name with its catalog; ``catalog`` is the topology's, which is there beside the current one."""
        if len(parts) == 1:
            flat = not dialect.nested_namespaces and self.namespace
            namespace = ".".join(self.namespace).split(".") if flat else self.namespace
            return (self.catalog, *namespace, *parts)
        if dialect.nested_namespaces:
            is_whole = parts[0] == catalog or parts[0] in (self.catalog, *self.catalogs)
            return parts if is_whole else (self.catalog, *parts)
        first = (self.catalog,) if len(parts) == 2 else parts[:-2]
        return (*first, *parts[-2].split("."), parts[-1])

    def same(self, name: str, other: str) -> bool:
        return name == other or (name.casefold() == other.casefold() and not self.case_sensitive)


class Names(Generic[Found]):
    """A look-up by name that prefers the exact one and takes one in another case else.

    Engines differ in which of them tell cases apart. What another case leads to is pinned as well: an engine that
    takes it for another table does not find the snapshot in it.
    """

    def __init__(self, named: Mapping[Parts, Found]) -> None:
        self._exact = dict(named)
        self._folded = {_folded(parts): found for parts, found in named.items()}

    def get(self, parts: Parts) -> Found | None:
        return self._exact.get(parts, self._folded.get(_folded(parts)))


def _parts_of(namespace: str) -> Parts:
    parts = _PART.findall(namespace)
    if ".".join(parts) != namespace:
        raise ConfigurationError(
            f"place: expected a namespace such as eu.shop, found {namespace!r}; give its parts as a tuple"
        )
    return tuple(unquoted(part) if part[0] in '`"' else part for part in parts)


def unquoted(text: str) -> str:
    quote = text[:1]
    return text[1:-1].replace(quote * 2, quote)


def _folded(parts: Parts) -> Parts:
    return tuple(part.casefold() for part in parts)


def is_cte(table: exp.Table, place: Place) -> bool:
    """Return whether the name is that of a common table expression which is visible where it stands.

    One that is being defined sees those before it, and itself only if it is recursive.
    """
    if table.args.get("db") is not None:
        return False
    return any(place.same(table.name, cte.alias) for cte in _visible(table))


def _visible(table: exp.Expr) -> Iterator[exp.CTE]:
    inside: exp.Expr | None = None
    defining: exp.Expr | None = None
    node: exp.Expr | None = table
    while node is not None:
        clause = node.args.get("with_")
        if isinstance(clause, exp.With):
            if clause is not inside:
                yield from clause.expressions
            else:
                at = next(i for i, cte in enumerate(clause.expressions) if cte is defining)
                yield from clause.expressions[: at + 1 if clause.args.get("recursive") else at]
        if isinstance(node, exp.With):
            inside = node
        if isinstance(node, exp.CTE):
            defining = node
        node = node.parent
