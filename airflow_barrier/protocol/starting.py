"""What of its inlets is in a job's tables already when it joins a topology: how it is declared and written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError

#: The choices, in words for errors.
CHOICES = (
    "start_from='earliest' (nothing of its inlets is in them), 'latest' (all of it is, up to the barrier that the job "
    "joins with), a datetime (what was there by then is), {inlet: position} (up to that position of each inlet), or "
    "'history' (nothing is, and they are computed over history before the job joins)"
)

#: The job joins once a revision has computed its tables at the barriers of the past. Said of all its inlets at once.
HISTORY = "history"

StartFrom = str | datetime | Mapping[str, Any]


def declared_start(job: str, start_from: StartFrom | None, inlets: Sequence[str]) -> dict[str, Any] | None:
    """The declaration per inlet, in its durable form: ``"earliest"``, ``"latest"``, ``{"time": ISO}`` in UTC or
    ``{"at": position}``.

    A mapping names each inlet, with any of the first four choices; ``"history"`` is of all of them. Raises
    ConfigurationError.

    >>> declared_start("load", "latest", ["tills"])
    {'tills': 'latest'}
    >>> declared_start("load", {"tills": {"files": ["a.csv"]}, "shop.products": 4711}, ["tills", "shop.products"])
    {'tills': {'at': {'files': ['a.csv']}}, 'shop.products': {'at': 4711}}
    """
    if start_from is None:
        return None
    if start_from == HISTORY:
        if not inlets:
            raise ConfigurationError(
                f"job {job}: expected inlets to compute the tables of the past from, found none; leave out "
                "start_from='history'"
            )
        return dict.fromkeys(inlets, HISTORY)
    if isinstance(start_from, Mapping):
        if set(start_from) != set(inlets):
            raise ConfigurationError(
                f"job {job}: expected start_from to name each of its inlets, {', '.join(inlets) or 'none'}, found "
                f"{', '.join(map(str, start_from)) or 'none'}; an inlet of which nothing is in the tables is 'earliest'"
            )
        return {name: _position(job, position) for name, position in start_from.items()}
    return {name: _choice(job, start_from) for name in inlets}


def _position(job: str, position: Any) -> Any:
    if isinstance(position, (str, datetime)):
        return _choice(job, position)
    return {"at": dict(position) if isinstance(position, Mapping) else position}


def _choice(job: str, choice: str | datetime) -> Any:
    if isinstance(choice, datetime):
        if choice.tzinfo is None:
            raise ConfigurationError(
                f"job {job}: expected start_from with a time zone, found {choice}; pass an aware datetime, best in UTC"
            )
        return {"time": choice.astimezone(timezone.utc).isoformat()}
    if choice not in ("earliest", "latest"):
        raise ConfigurationError(f"job {job}: expected {CHOICES}; found {choice!r}")
    return choice
