"""How a system outside the lake is reached, and who enters it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Credentials:
    """The address and login of a source's or sink's system, from a connection of that system's own type.

    ``extra``: what else the connection says; an adapter takes what it knows of that and leaves the rest.
    """

    conn_id: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
