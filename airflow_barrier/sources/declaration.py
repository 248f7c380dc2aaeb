"""An adapter's settings as they are registered with a topology, and the adapter again from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.topology import ExternalSource

if TYPE_CHECKING:
    from airflow_barrier.sources.port import Source

_S = TypeVar("_S", bound="Source")

#: For a setting that came later than others: while it has its default, it is left out, and what was declared before
#: there was such a setting stays as it was. ``field(default=..., metadata=ADDED)``
ADDED: Mapping[str, bool] = {"added": True}
#: Annotations of spans of time, as text: some others name classes that are imported for type checkers only.
_SPANS = ("timedelta", "timedelta | None")


def declaration_of(source: Source) -> ExternalSource:
    """Return the declaration of an adapter: all of its settings but the name, spans of time in seconds.

    ``source`` is a dataclass; a field that is no setting has ``init=False``.
    """
    options: dict[str, Any] = {}
    for each in fields(source):  # type: ignore[arg-type]
        value = getattr(source, each.name)
        if each.init and each.name != "name" and not (each.metadata.get("added") and value == each.default):
            options[each.name] = value.total_seconds() if isinstance(value, timedelta) else encode(value)
    return ExternalSource(source.name, source.kind, options)


def declared_source(kind: type[_S], declared: ExternalSource) -> _S:
    """Return the adapter that :func:`declaration_of` made ``declared`` of."""
    spans = {each.name for each in fields(kind) if each.type in _SPANS}  # type: ignore[arg-type]
    settings = {
        name: timedelta(seconds=value) if name in spans and value is not None else value
        for name, value in declared.options.items()
    }
    make: Callable[..., _S] = kind
    return make(name=declared.name, **settings)
