"""What Spark says about input that it cannot read, as an error that names the file and what to do.

A frame is read long after the source made it, by the job's own action: so the driver that runs the job asks here.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.decimals import INEXACT

_FILE = re.compile(r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (?P<file>\S+)\. (?P<why>[^\n]*)")
_NO_REASON = "SQLSTATE"  # stands where the reason would, if Spark gives none
_CAUSE = re.compile(r"Caused by: [\w.$]+: (?P<why>[^\n]+)")
_INEXACT = re.compile(re.escape(INEXACT) + r"(?P<what>[^\n]+) in (?P<file>\S+)")
_REMEDY = (
    "Mend the file or move it away, and clear the task; where another job has read it already, abort the barrier, so "
    "that the epoch is cut anew"
)


def source_error(error: BaseException) -> SourceDataError | None:
    """The error, if it is about a file that a source reads; None if it is about something else."""
    text = str(error)
    inexact = _INEXACT.search(text)
    if inexact is not None:
        return SourceDataError(f"{unquote(inexact['file'])}: {inexact['what']}. {_REMEDY}")
    unreadable = _FILE.search(text)
    if unreadable is None:
        return None
    why = unreadable["why"].strip()
    cause = _CAUSE.search(text)
    if why.startswith(_NO_REASON) and cause is not None:
        why = cause["why"].strip()
    return SourceDataError(
        f"{unquote(unreadable['file'])}: expected records as declared, found: {why[:500]}. {_REMEDY}"
    )
