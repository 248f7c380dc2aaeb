"""Where a barrier's timestamp came from, in words that are kept with it; and the date by which Airflow has its run."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_INTERVAL = "data interval end of {} run"
_BEGAN = re.compile(r" \(interval since (?P<start>[^()]+)\)$")


def interval_origin(run_type: str, start: datetime | None, end: datetime) -> str:
    """That of a run with a data interval. Its start is kept where it is not its end: Airflow has the run by it.

    >>> monday, tuesday = datetime(2017, 1, 2, tzinfo=timezone.utc), datetime(2017, 1, 3, tzinfo=timezone.utc)
    >>> interval_origin("scheduled", tuesday, tuesday)
    'data interval end of scheduled run'
    >>> interval_origin("scheduled", monday, tuesday)
    'data interval end of scheduled run (interval since 2017-01-02T00:00:00+00:00)'
    """
    origin = _INTERVAL.format(run_type)
    if start is None or start == end:
        return origin
    return f"{origin} (interval since {start.astimezone(timezone.utc).isoformat()})"


def logical_date(timestamp: datetime, origin: str) -> datetime:
    """The logical date (UTC) of the scheduled run that opened the barrier: a backfill names runs by it.

    >>> tuesday = datetime(2017, 1, 3, tzinfo=timezone.utc)
    >>> logical_date(tuesday, "data interval end of scheduled run (interval since 2017-01-02T00:00:00+00:00)").day
    2
    >>> logical_date(tuesday, "data interval end of scheduled run").day
    3
    """
    began = _BEGAN.search(origin)
    return datetime.fromisoformat(began["start"]) if began is not None else timestamp
