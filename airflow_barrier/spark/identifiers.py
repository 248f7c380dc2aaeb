"""Names and texts as Spark SQL takes them: always quoted, never pasted."""

from __future__ import annotations


def quoted(*parts: str) -> str:
    """One identifier of several parts.

    >>> quoted("lake", "shop", "odd`name")
    '`lake`.`shop`.`odd``name`'
    """
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def table_name(catalog: str, table: str, *suffix: str) -> str:
    """``table`` (``namespace.table``) in ``catalog``; ``suffix`` names a branch or a metadata table of it.

    >>> table_name("lake", "shop.shopping", "refs")
    '`lake`.`shop`.`shopping`.`refs`'
    """
    return quoted(catalog, *table.split("."), *suffix)


def literal(text: str) -> str:
    """A text as a literal of SQL.

    >>> print(literal("it's"))
    'it\\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
