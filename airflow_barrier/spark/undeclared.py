"""A table or a source that a job uses and does not declare."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_barrier.protocol.errors import UndeclaredTableError
from airflow_barrier.protocol.names import nearest


def undeclared(job: str, what: str, name: str, role: str, declared: Collection[str]) -> UndeclaredTableError:
    """The error for ``what`` ("table", "external source") of that name, which is not among the job's ``role``."""
    line = f"inlets=[..., {name!r}]" if role == "inlets" else f"outlets=[..., {name!r}]"
    if what == "external source":
        line = f"inlets=[..., the source that is called {name!r}]"
    near = nearest(name, declared)
    meant = "Add" if near is None else f"Did you mean {near!r}? Otherwise add"
    return UndeclaredTableError(
        f"job {job} uses {what} {name!r}, which is not among its {role}; declared: "
        f"{', '.join(sorted(declared)) or 'none'}. {meant} {line} to its barrier.job(...), or to the task itself"
    )


def source_named(text: str, sources: Iterable[str]) -> tuple[str, str | None] | None:
    """Return the source that ``text`` names, and which of its tables, if one stands behind the name. None: none.

    >>> source_named("shop_db.public.orders", ["shop_db", "purchases"]), source_named("purchases", ["purchases"])
    (('shop_db', 'public.orders'), ('purchases', None))
    """
    name = max((each for each in sources if f"{text}.".startswith(f"{each}.")), key=len, default=None)
    return None if name is None else (name, text[len(name) + 1 :] or None)
