"""What the declarations of sinks have in common that write to logs: topics, and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.protocol.errors import ConfigurationError

Key = Sequence[str] | Mapping[str, Sequence[str]]


def check_rows(sink: str, rows: Rows, log: str) -> None:
    """Raises ConfigurationError for rows that a ``log``, such as `a topic`, cannot take."""
    if rows is Rows.TABLE:
        raise ConfigurationError(
            f"sink {sink}: expected rows='changes' or rows='appends', found 'table'; {log} keeps what was written, so "
            "all rows of each barrier would come beside those of the last one. Who applies the changes has the whole "
            "table at each barrier; if no columns tell the table's rows apart, have the job add one that does, or "
            "deliver to a FileSink"
        )


def keys_of(sink: str, key: Key, targets: Sequence[str], rows: Rows, called: str) -> dict[str, list[str]]:
    """Target -> the columns that tell its rows apart; none need be named for appended rows. ``key``: those of all
    targets, or of each; ``called``: what a target is.

    Raises ConfigurationError.
    """
    if rows is Rows.APPENDS and not key:
        return {}
    keys = key if isinstance(key, Mapping) else dict.fromkeys(targets, key)
    if set(keys) != set(targets) or not all(keys.values()) or any(isinstance(each, str) for each in keys.values()):
        raise ConfigurationError(
            f"sink {sink}: key: expected the columns that tell the rows of each {called} apart ({', '.join(targets)}), "
            f"found {key!r}; name them, key=[...] or key={{{called}: [...]}}, or deliver rows='appends'"
        )
    return {target: list(columns) for target, columns in keys.items()}
