"""What Spark says about input that it cannot read, as an error that names the file or record and what to do.

A frame is read long after the source made it, by the job's own action: so the driver that runs the job asks here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.text.values import UNFIT
from airflow_barrier.systems.roots import SourceRoots

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

#: What stands before the text of an error that a query of ours has raised, in Spark 4 or in 3.5: a regular expression.
#: Where Spark refuses a query, its message shows the query's plan, in which that text stands, too, and nothing was
#: read.
RAISED = r"(?:\[USER_RAISED_EXCEPTION\] |java\.lang\.RuntimeException: )"

_FILE = re.compile(
    r"(?:\[FAILED_READ_FILE[.\w]*\]|SparkException:) "
    r"(?:Encountered error while reading|Parquet column cannot be converted in) file (?P<file>\S+)\. "
)
# what Spark says that quotes no record
_HARMLESS = re.compile(r"Malformed records are detected|Expected Spark type \S+, actual Parquet type \w+")
_KINDS = re.compile(r"\[(FAILED_READ_FILE[.\w]*)\]|Caused by: (?:[\w$]+\.)*([\w$]+)")
_UNFIT = re.compile(
    RAISED + re.escape(UNFIT) + r"(?P<what>[^\n]+) in (?:(?P<record>topic \S+, partition \d+, offset \d+"
    r"|stream \S+, event \d+)|(?P<file>\S+?)(?P<line>, line \d+)?)(?=\s|$)"
)
_REMEDY = (
    "Mend the file or move it away, and clear the task; where another job has read it already, abort the barrier, so "
    "that the epoch is cut anew"
)
_REMEDY_IN_LOGS = (
    "What was sent cannot be mended. Declare the source as its records are, or with format='binary' and have the "
    "job decode them and say what becomes of such a one; and abort the barrier, so that the epoch is cut anew"
)


def condition_of(error: PySparkException) -> str | None:
    """Return Spark's name for what is wrong: its error class, as it was called before Spark 4.0."""
    return error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()


def source_error(error: BaseException, places: Sequence[str]) -> SourceDataError | None:
    """The error, if it is about a file or a record that a source reads; None if it is about something else.

    ``places``: URLs of those files, or of folders with nothing else in them. A table's own data files are none: whoever
    mended one or moved it away would lose the table's rows.
    """
    text = str(error)
    unfit = _UNFIT.search(text)
    if unfit is not None and unfit["record"]:
        return SourceDataError(f"{unfit['record']}: {unfit['what']}. {_REMEDY_IN_LOGS}")
    if unfit is not None:
        return SourceDataError(f"{unquote(unfit['file'])}{unfit['line'] or ''}: {unfit['what']}. {_REMEDY}")
    unreadable = _FILE.search(text)
    if unreadable is None:
        return None
    file = unquote(unreadable["file"])
    if not _within(file, places):  # safety: own-files-are-no-sources
        return None
    return SourceDataError(f"{file}: expected records as declared, found: {_found(text)}. {_REMEDY}")


def _within(file: str, places: Sequence[str]) -> bool:
    return any(SourceRoots((place,)).allow(file) for place in places)


def file_without_line(error: BaseException) -> tuple[str, str] | None:
    """Return what is read and the URL of the file, where a text record is at fault whose line is not named yet."""
    unfit = _UNFIT.search(str(error))
    if unfit is None or unfit["line"] or unfit["record"]:
        return None
    return unfit["what"].split(":")[0], unquote(unfit["file"])


def _found(text: str) -> str:
    """Return what was wrong; of messages that may quote the file, what kind of error each is."""
    harmless = _HARMLESS.search(text)
    if harmless is not None:
        return harmless[0]
    return ", ".join(dict.fromkeys(condition or kind for condition, kind in _KINDS.findall(text)))
