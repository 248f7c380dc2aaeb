"""Names as Spark SQL takes them: always quoted, never pasted. Texts: :func:`airflow_barrier.protocol.ddl.literal`."""

from __future__ import annotations

import re

_PART = re.compile(r"`(?:[^`]|``)+`|\w+")
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def quoted(*parts: str) -> str:
    """One identifier of several parts.

    >>> quoted("lake", "shop", "odd`name")
    '`lake`.`shop`.`odd``name`'
    """
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def parts_of(name: str) -> tuple[str, ...]:
    """Return what an identifier consists of; empty if it is none.

    >>> parts_of("lake.shop.`odd``name`"), parts_of("lake.shop.odd name")
    (('lake', 'shop', 'odd`name'), ())
    """
    parts = _PART.findall(name) if _NAME.fullmatch(name) else ()
    return tuple(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts)


def table_name(catalog: str, table: str, *suffix: str) -> str:
    """``table`` (``namespace.table``) in ``catalog``; ``suffix`` names a branch or a metadata table of it.

    >>> table_name("lake", "shop.shopping", "refs")
    '`lake`.`shop`.`shopping`.`refs`'
    """
    return quoted(catalog, *table.split("."), *suffix)
