"""Values of any type that a record's field may have, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints


class Values:
    """Values of any type that a record's field may have."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def record(self, kind: type, empty: bool) -> Any:
        """``empty``: nothing in what may be empty."""
        hints = get_type_hints(kind)
        return kind(**{each.name: self._of(hints[each.name], empty) for each in fields(kind)})

    def _of(self, hint: Any, empty: bool) -> Any:
        parts, draw = get_args(hint), self._random
        if type(None) in parts:
            (other,) = (part for part in parts if part is not type(None))
            return None if empty else self._of(other, empty)
        some = range(0 if empty else draw.randint(1, 3))
        if get_origin(hint) is tuple:
            return tuple(self._of(parts[0], empty) for _ in some)
        if get_origin(hint) is Mapping:
            return {f"{self._text()}{number}": self._of(parts[1], empty) for number in some}
        if is_dataclass(hint):
            return self.record(hint, empty)  # type: ignore[arg-type]
        if issubclass(hint if isinstance(hint, type) else object, Enum):
            return draw.choice(list(hint))
        drawn: dict[Any, Any] = {
            str: self._text(),
            int: draw.randrange(2**31),
            float: draw.random(),
            bool: draw.random() < 0.5,
            datetime: datetime(2017, 1, 2, tzinfo=timezone.utc) + timedelta(microseconds=draw.randrange(10**15)),
            Any: draw.choice([None, True, 1, 2.5, "text", [1, "a"], {"a": {"b": None}}]),
        }
        return drawn[hint]

    def _text(self) -> str:
        return "".join(self._random.choice("ab /'\"%:{}äß漢🙂") for _ in range(self._random.randint(1, 8)))
