"""Systems that several rooms enter: how an adapter is found, and how a system is entered and asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_barrier.protocol.deliveries import SinkDeclaration
    from airflow_barrier.protocol.topology import ExternalSource


def adapter_of(what: str, declared: ExternalSource | SinkDeclaration, ours: Mapping[str, str], group: str) -> Any:
    """The adapter of a declared source or sink (``what``), of one of ``ours`` (kind -> ``module:class``) or of another
    distribution's, which an entry point of ``group`` names by its kind. One that is registered so goes before ours.

    Raises :class:`ConfigurationError` for a kind, or settings, that are not known here.
    """
    known = {**ours, **_registered(group)}
    if declared.kind not in known:
        raise ConfigurationError(
            f"{what} {declared.name}: expected a kind of {sorted(known)}, found {declared.kind!r}; run the same "
            "version of airflow-provider-barrier everywhere, and of the package that brings this kind, if one does"
        )
    try:
        return resolve_name(known[declared.kind]).of(declared)
    except (ImportError, AttributeError) as error:
        if declared.kind not in _registered(group):
            raise
        raise ConfigurationError(
            f"{what} {declared.name}: expected an adapter at entry point {declared.kind} = {known[declared.kind]} of "
            f"group {group}, found {error}; correct the entry point, and install its package again"
        ) from error
    except (TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{what} {declared.name}: expected settings of {declared.kind!r} as this version knows them, found others "
            f"({error}); run the same version of airflow-provider-barrier everywhere"
        ) from error


@cache
def _registered(group: str) -> dict[str, str]:
    """Looked up once in a process: it reads the metadata of all that is installed."""
    return {entry.name: entry.value for entry in entry_points(group=group)}
